"""The verb `verify`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.cli.errors import ExitCode
from orchestrator.stores.files.recovery import previous_path
from orchestrator.stores.run_notes import IDENTIFIERS
from orchestrator.stores.state import state_path
from tests.cli.conftest import Call, damage
from tests.stores.stored import damage as spoil
from tests.stores.stored import damage_plan


def test_a_good_directory_and_archive(call: Call, small_set: Path, cache_file: Path) -> None:
    folder = cache_file.parent
    done = call("verify", folder, small_set)
    assert done.code == ExitCode.OK
    assert "4 checks: 4 good, 0 bad" in done.out
    assert done.out.count("1 plans") == 1
    checked = call("verify", folder, small_set, "--json").document["checked"]
    assert [each["next_step"] for each in checked] == [""] * 4


def test_directories_in_a_directory_are_said_not_to_be_checked(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for each in ("one", "two", "quarantine"):
        (folder / each).mkdir(parents=True)
    assert "2 directories in it not checked" in call("verify", folder).out
    assert "not checked" not in call("verify", folder / "one").out


@pytest.mark.parametrize("name", ["x.pipeline-cache.previous", "state.sqlite"])
def test_a_directory_in_the_place_of_a_file(call: Call, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "cache"
    (folder / name).mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    done = call("verify", folder)
    assert done.code == ExitCode.BAD_INPUT
    assert "1 good, 1 bad" in done.out
    assert "a directory has the name of a file" in done.out
    assert "next: move it away" in done.out


def test_a_directory_in_the_place_of_a_previous_generation(call: Call, cache_file: Path) -> None:
    older = previous_path(cache_file)
    older.mkdir()
    done = call("verify", cache_file.parent)
    assert done.code == ExitCode.BAD_INPUT
    assert "its previous generation is UNREADABLE: it is not a regular file" in done.out
    assert f"next: move {older} away" in done.out


def test_damage_in_the_database_is_named_and_mended(call: Call, small_set: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    options = ("-d", "simulated", "--in-process", "--identifiers", "--json")
    arguments = ("compile", small_set, "--cache-dir", folder, *options)
    call(*arguments)
    path = state_path(folder)
    done = call("verify", folder)
    assert done.code == ExitCode.OK
    for kept in ("1 compile times", "1 contents", "1 groups", "1 shader-module identifiers", "1 plans"):
        assert kept in done.out
    spoil(folder, IDENTIFIERS)
    damage_plan(folder, 0)
    done = call("verify", path, "--json")
    assert done.code == ExitCode.BAD_INPUT
    (checked,) = done.document["checked"]
    (problem,) = checked["problems"]
    assert problem.count("it is damaged") == 2
    # The next run says so, and mends it.
    notes = " ".join(call(*arguments).document["notes"])
    for said in ("identifiers were not used", "plan of the set was made anew"):
        assert said in notes
    assert call("verify", path).code == ExitCode.OK


def test_a_database_that_is_none(call: Call, cache_file: Path) -> None:
    state_path(cache_file.parent).write_bytes(b"no database" * 100)
    done = call("verify", cache_file.parent)
    assert done.code == ExitCode.BAD_INPUT
    assert "file is not a database" in done.out


def test_damage_has_a_next_step(
    call: Call, cache_file: Path, damaged_set: tuple[Path, int], tmp_path: Path
) -> None:
    damage(cache_file)
    done = call("verify", cache_file, damaged_set[0], tmp_path / "nothing", "--json")
    assert done.code == ExitCode.BAD_INPUT
    cache, archive, nothing = done.document["checked"]
    assert "HASH_MISMATCH" in cache["problems"][0]
    assert cache["next_step"].startswith("remove it")
    assert f"{damaged_set[1]:016x}" in archive["problems"][0]
    assert archive["unusable_records"] == 1
    assert nothing["problems"] == ["No such file or directory"]
    assert (done.document["good"], done.document["bad"]) == (0, 3)


def test_generations_and_permissions(call: Call, cache_file: Path) -> None:
    path = cache_file
    shutil.copy(path, previous_path(path))
    path.write_bytes(path.read_bytes()[:-1])
    (checked,) = call("verify", path, "--json").document["checked"]
    assert "TRUNCATED" in checked["problems"][0]
    assert "previous generation is whole" in checked["next_step"]
    shutil.copy(previous_path(path), path)
    path.chmod(0o666)
    path.parent.chmod(0o770)
    done = call("verify", path.parent, "--json")
    directory, file, *beside = done.document["checked"]
    assert "chmod go-w" in directory["problems"][0]
    assert len(file["problems"]) == 2
    assert file["previous_generation"] == "LOADED"
    assert [each["kind"] for each in beside] == ["database"]
    assert all("chmod go-w" in each["problems"][0] for each in beside)
