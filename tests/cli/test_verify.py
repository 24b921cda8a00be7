"""The verb `verify`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import verify
from orchestrator.cli.errors import ExitCode
from orchestrator.stores.files.recovery import previous_path
from tests.cli.conftest import Call, damage


def test_a_good_directory_and_archive(call: Call, small_set: Path, cache_file: Path) -> None:
    folder = cache_file.parent
    done = call("verify", folder, small_set)
    assert done.code == ExitCode.OK
    assert "7 checks: 7 good, 0 bad" in done.out
    assert done.out.count(".plan  plan, ") == 1
    checked = call("verify", folder, small_set, "--json").document["checked"]
    assert [each["next_step"] for each in checked] == [""] * 7


def test_directories_in_a_directory_are_said_not_to_be_checked(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for each in ("one", "two", "quarantine"):
        (folder / each).mkdir(parents=True)
    assert "2 directories in it not checked" in call("verify", folder).out
    assert "not checked" not in call("verify", folder / "one").out


@pytest.mark.parametrize("name", ["x.pipeline-cache.previous", "x.durations", "state.sqlite"])
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


@pytest.mark.parametrize("removed", [".durations", ".plan"])
def test_what_is_removed_meanwhile_is_not_checked(
    call: Call, cache_file: Path, monkeypatch: pytest.MonkeyPatch, removed: str
) -> None:
    folder = cache_file.parent
    (gone,) = folder.glob(f"*{removed}")
    inspect = verify._one_file

    def one_file(path: Path, *rest: Any) -> verify._Checked:
        if path == gone:
            path.unlink()
        return inspect(path, *rest)

    monkeypatch.setattr(verify, "_one_file", one_file)
    done = call("verify", folder)
    assert done.code == ExitCode.OK
    assert "5 checks: 5 good, 0 bad" in done.out


def test_a_damaged_plan(call: Call, cache_file: Path) -> None:
    (path,) = cache_file.parent.glob("*.plan")
    assert call("verify", path).code == ExitCode.OK
    damage(path)
    done = call("verify", path, "--json")
    assert done.code == ExitCode.BAD_INPUT
    (checked,) = done.document["checked"]
    assert "does not have the hash" in checked["problems"][0]
    assert "makes a new one" in checked["next_step"]


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [
        (".plan", "plan"),
        (".identifiers", "identifiers"),
        (".durations", "compile times"),
        (".contents", "contents"),
    ],
)
def test_a_file_without_its_first_bytes_is_known_by_its_name(
    suffix: str, kind: str, call: Call, small_set: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "cache"
    call("compile", small_set, "-d", "simulated", "--cache-dir", folder, "--identifiers")
    (path,) = folder.glob(f"*{suffix}")
    good = call("verify", path, "--json")
    assert good.code == ExitCode.OK
    path.write_bytes(bytes(8) + path.read_bytes()[8:])
    bad = call("verify", path, "--json")
    assert bad.code == ExitCode.BAD_INPUT
    assert [each.document["checked"][0]["kind"] for each in (good, bad)] == [kind, kind]
    (problem,) = bad.document["checked"][0]["problems"]
    assert "at byte 0" in problem
    assert call("verify", folder).code == ExitCode.BAD_INPUT


def test_damaged_identifiers(call: Call, small_set: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    call("compile", small_set, "-d", "simulated", "--cache-dir", folder, "--identifiers")
    (path,) = folder.glob("*.identifiers")
    done = call("verify", folder)
    assert done.code == ExitCode.OK
    assert f"{path.name}  identifiers of " in done.out
    damage(path)
    done = call("verify", path, "--json")
    assert done.code == ExitCode.BAD_INPUT
    (checked,) = done.document["checked"]
    assert "does not have the hash" in checked["problems"][0]
    assert "queries them again" in checked["next_step"]
    # The next run says so, and mends it.
    done = call("compile", small_set, "-d", "simulated", "--cache-dir", folder, "--identifiers", "--json")
    assert any("identifiers were not used" in each for each in done.document["notes"])
    assert call("verify", path).code == ExitCode.OK


def test_damage_is_named_with_a_next_step(
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
    assert [each["kind"] for each in beside] == [
        "plan",
        "contents",
        "compile times",
        "groups of applications",
    ]
    assert all("chmod go-w" in each["problems"][0] for each in beside)
