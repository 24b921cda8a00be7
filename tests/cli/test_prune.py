"""The verb `prune`."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve

from orchestrator.cli.errors import ExitCode
from orchestrator.devices.listing import DeviceEntry, Listing
from orchestrator.stores.cache_file import cache_path, save_cache_file
from orchestrator.stores.culprits import QUARANTINE, Cause, Culprit, add_culprits
from orchestrator.stores.files.recovery import forgive_loads, previous_path
from orchestrator.stores.files.writer_lock import writer_lock
from orchestrator.stores.pruning import plan_prune, prune
from orchestrator.stores.run_notes import DURATIONS, PlanIdentity, add_durations, save_plan
from tests.cli.conftest import Call
from tests.stores.faults.sets import IDENTITY, OLD, OURS, data_of, die_loading, file_of
from tests.stores.packs import make_pack
from tests.stores.stored import names as names_of
from tests.stores.stored import plans

DAY_NS = 86_400 * 10**9


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a good file, and its driver here."""
    monkeypatch.setattr("orchestrator.cli.prune.list_all", lambda **_: Listing((DeviceEntry("0", IDENTITY),)))
    path = tmp_path / "cache"
    save_cache_file(cache_path(path, IDENTITY), IDENTITY, data_of(OURS))
    return path


def removed(call: Call, folder: Path, *options: str) -> dict[str, str]:
    """Names and reasons of what was removed."""
    done = call("prune", "--cache-dir", folder, "--json", *options)
    assert done.code == ExitCode.OK
    return {Path(each["path"]).name: each["reason"] for each in done.document["removed"]}


def test_everything_that_nobody_needs(call: Call, folder: Path) -> None:
    path = cache_path(folder, IDENTITY)
    shutil.copy(path, previous_path(path))
    other = evolve(IDENTITY, driver_version=IDENTITY.driver_version + 1, pipeline_cache_uuid=bytes(16))
    inner = bytearray(data_of(OLD))
    inner[16:32] = bytes(16)
    save_cache_file(cache_path(folder, other), other, bytes(inner))
    elsewhere = evolve(IDENTITY, device_id=IDENTITY.device_id + 1)
    inner = bytearray(data_of(OLD))
    inner[12:16] = elsewhere.device_id.to_bytes(4, "little")
    save_cache_file(cache_path(folder, elsewhere), elsewhere, bytes(inner))
    (folder / "quarantine").mkdir()
    (folder / "quarantine" / "000001-x").write_bytes(b"x")
    leftover = folder / f".{path.name}.{'0' * 16}.tmp"
    leftover.write_bytes(b"x")
    expected = {
        "000001-x": "quarantine",
        previous_path(path).name: "previous generation",
        cache_path(folder, other).name: "other driver",
    }
    assert removed(call, folder, "--dry-run") == expected
    assert leftover.exists()
    assert previous_path(path).exists()
    assert removed(call, folder) == expected
    assert not leftover.exists()
    assert {each.name for each in folder.glob("*.pipeline-cache*") if not each.name.endswith(".lock")} == {
        path.name,
        cache_path(folder, elsewhere).name,
    }


def _saved(folder: Path, number: int, *, device_id: int) -> Path:
    """A cache file of a build of a driver, saved so many days after the first one."""
    uuid = bytes([number] * 16)
    build = evolve(IDENTITY, device_id=device_id, driver_version=number, pipeline_cache_uuid=uuid)
    inner = bytearray(data_of(OURS))
    inner[12:16] = build.device_id.to_bytes(4, "little")
    inner[16:32] = build.pipeline_cache_uuid
    path = cache_path(folder, build)
    save_cache_file(path, build, bytes(inner))
    os.utime(path, ns=(0, (number + 1) * DAY_NS))
    return path


def test_builds_that_are_gone(call: Call, folder: Path) -> None:
    """An absent device keeps the files of the last builds; one that is here also its own, however old."""
    gone = [_saved(folder, number, device_id=7) for number in range(5)]
    kept = [_saved(folder, number, device_id=8) for number in range(3)]
    add_durations(gone[0], np.ones(1, np.uint64), np.ones(1, np.int64))
    expected = dict.fromkeys((each.name for each in gone[:2]), "old build")
    state = {"state.sqlite": "notes of a removed file"}
    assert removed(call, folder, "--dry-run") == expected | state
    assert removed(call, folder, "--dry-run", "--keep-builds", "5") == {}
    assert removed(call, folder) == expected | state
    installed = evolve(IDENTITY, device_id=8, driver_version=0, pipeline_cache_uuid=bytes(16))
    here = [evolve(installed, driver_version=each) for each in range(3)]
    old = {each.path for each in plan_prune(folder, here=here, keep_builds=1).items}
    assert old == {*gone[2:4], *kept[1:]}


def test_what_others_put_into_the_quarantine_stays(call: Call, folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "letter.txt").write_bytes(b"x")
    (elsewhere / "000001-x.pipeline-cache").write_bytes(b"x")
    (folder / "quarantine").symlink_to(elsewhere)
    assert removed(call, folder) == {"000001-x.pipeline-cache": "quarantine"}
    assert (elsewhere / "letter.txt").exists()


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def test_a_dry_run_finds_the_leftovers_and_changes_nothing(call: Call, folder: Path) -> None:
    ours = cache_path(folder, IDENTITY).name
    of = (ours, f"{ours}.previous", "manifest.json", "x.binaries")
    leftovers = [folder / f".{each}.{'0' * 16}.tmp" for each in of]
    for each in leftovers:
        each.write_bytes(b"x")
    foreign = folder / f".mine.{'0' * 16}.tmp"
    foreign.write_bytes(b"x")
    before = names(folder)
    tried = call("prune", "--cache-dir", folder, "--dry-run", "--json").document
    assert names(folder) == before
    assert sorted(tried["leftovers"]) == sorted(map(str, leftovers))
    assert "and 4 leftovers" in call("prune", "--cache-dir", folder, "--dry-run").out
    done = call("prune", "--cache-dir", folder, "--json").document
    assert (done["leftovers"], done["leftovers_failed"]) == (tried["leftovers"], [])
    assert not any(each.exists() for each in leftovers)
    assert foreign.exists()


def test_what_is_being_written_is_no_leftover(call: Call, folder: Path) -> None:
    for file in (cache_path(folder, IDENTITY), folder / "manifest.json"):
        leftover = file.with_name(f".{file.name}.{'0' * 16}.tmp")
        leftover.write_bytes(b"x")
        with writer_lock(file):
            for more in ((), ("--dry-run",)):
                done = call("prune", "--cache-dir", folder, "--json", *more)
                assert done.document["leftovers"] == []
        assert leftover.exists()
        leftover.unlink()


def test_a_leftover_that_cannot_be_removed_is_told(call: Call, folder: Path) -> None:
    leftover = folder / f".{cache_path(folder, IDENTITY).name}.{'0' * 16}.tmp"
    leftover.mkdir()
    done = call("prune", "--cache-dir", folder)
    assert done.code == ExitCode.BAD_INPUT
    assert f"not removed  leftover of a killed process  {leftover}" in done.out
    again = call("prune", "--cache-dir", folder, "--json")
    assert again.document["leftovers_failed"] == [str(leftover)]


def test_a_previous_generation_stays_where_the_current_one_is_damaged(call: Call, folder: Path) -> None:
    path = cache_path(folder, IDENTITY)
    shutil.copy(path, previous_path(path))
    path.write_bytes(file_of(OURS)[:-1])
    assert removed(call, folder) == {}
    path.unlink()
    assert removed(call, folder) == {}
    previous_path(path).write_bytes(b"\x89OPCF\r\n\x1a")
    assert removed(call, folder) == {previous_path(path).name: "damaged previous generation"}


def test_what_is_damaged_goes_before_its_previous_generation_for_room(call: Call, folder: Path) -> None:
    path = cache_path(folder, IDENTITY)
    shutil.copy(path, previous_path(path))
    os.utime(previous_path(path), ns=(DAY_NS, DAY_NS))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    size = str(path.stat().st_size)
    assert removed(call, folder, "--max-size", size) == {path.name: "over the size"}
    assert previous_path(path).exists()


def test_a_previous_generation_stays_beside_what_may_crash_the_driver(call: Call, folder: Path) -> None:
    path = cache_path(folder, IDENTITY)
    shutil.copy(path, previous_path(path))
    plan = plan_prune(folder)
    die_loading(path, OURS)
    assert removed(call, folder, "--dry-run") == {}
    # It was not suspected yet when the plan was made.
    ((_, why),) = prune(plan).failed
    assert "a process loads it or died of it" in why
    forgive_loads(folder)
    assert removed(call, folder) == {previous_path(path).name: "previous generation"}


def test_what_stays_is_counted(call: Call, folder: Path) -> None:
    path = cache_path(folder, IDENTITY)
    with writer_lock(path) as held:
        assert held
        done = call("prune", "--cache-dir", folder, "--max-size", "0", "--json")
    assert done.code == ExitCode.BAD_INPUT
    assert done.document["removed"] == []
    assert [each["path"] for each in done.document["kept"]] == [str(path)]
    assert done.document["kept_bytes"] == path.stat().st_size


def test_bounds(call: Call, folder: Path) -> None:
    for option in ("--max-size", "--older-than"):
        assert removed(call, folder, option, "9" * 400) == {}
        done = call("prune", "--cache-dir", folder, option, "much")
        assert (done.code, "such as" in done.err) == (ExitCode.BAD_INPUT, True)
    path = cache_path(folder, IDENTITY)
    size = path.stat().st_size
    assert removed(call, folder, "--older-than", "1h", "--max-size", str(size)) == {}
    os.utime(path, ns=(0, path.stat().st_mtime_ns - 2 * DAY_NS))
    assert removed(call, folder, "--older-than", "1d", "--dry-run") == {path.name: "old"}
    assert removed(call, folder, "--max-size", f"{size - 1}B") == {path.name: "over the size"}
    assert not path.exists()


def rows(folder: Path) -> set[str]:
    return {*names_of(folder, DURATIONS), *names_of(folder, QUARANTINE)}


def test_notes_go_with_their_driver_or_by_age(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other = cache_path(folder, IDENTITY), evolve(IDENTITY, driver_version=IDENTITY.driver_version + 1)
    gone = folder / "gone.pipeline-cache"
    times = np.ones(1, np.uint64), np.ones(1, np.int64)
    for each in (ours, gone):
        add_durations(each, *times)
    culprit = Culprit(key="0" * 16, kind="compute", cause=Cause.SIGNAL, reason="", seen_at=1.0)
    add_culprits(folder, evolve(other, pipeline_cache_uuid=bytes(16)), [culprit])
    save_plan(ours, PlanIdentity("set", "device"), [bytes(1000)])
    of_other = cache_path(folder, evolve(other, pipeline_cache_uuid=bytes(16))).name
    assert removed(call, folder) == {"state.sqlite": "other driver"}
    assert of_other not in rows(folder)
    assert rows(folder) == {ours.name, gone.name}
    # A plan goes before a cache file: it can be made again.
    size = ours.stat().st_size
    assert removed(call, folder, "--max-size", str(size + 1000)) == {}
    assert removed(call, folder, "--max-size", str(size + 999)) == {"state.sqlite": "over the size"}
    assert (plans(folder), ours.exists()) == (0, True)
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + 40 * DAY_NS)
    document = call("prune", "--cache-dir", folder, "--json", "--older-than", "30d").document
    assert {each["reason"] for each in document["removed"]} == {"old"}
    assert rows(folder) == set()


def test_the_files_of_a_pack_stay(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are for other machines: of other builds of the driver, and of any age."""
    monkeypatch.setattr("orchestrator.cli.prune.list_all", lambda **_: Listing((DeviceEntry("0", IDENTITY),)))
    other = evolve(IDENTITY, driver_version=IDENTITY.driver_version + 1)
    pack = make_pack(tmp_path / "pack", identity=other).directory
    leftover = pack / f".manifest.json.{'0' * 16}.tmp"
    leftover.write_bytes(b"x")
    assert removed(call, pack, "--older-than", "0", "--max-size", "0") == {}
    assert not leftover.exists()
    assert call("verify", pack).code == ExitCode.OK
    (pack / "manifest.json").write_bytes(b"{")
    done = call("prune", "--cache-dir", pack, "--json")
    assert done.code == ExitCode.BAD_INPUT
    assert "it is damaged" in done.document["error"]["message"]
    assert cache_path(pack, other).exists()


def test_what_is_being_saved_or_was_replaced_stays(folder: Path) -> None:
    path = cache_path(folder, IDENTITY)
    plan = plan_prune(folder, max_bytes=0)
    with writer_lock(path) as held:
        assert held
        report = prune(plan)
    assert [why for _, why in report.failed] == ["a process is saving it"]
    os.utime(path, ns=(0, 0))
    assert [why for _, why in prune(plan).failed] == ["it was replaced meanwhile"]
    assert path.exists()
