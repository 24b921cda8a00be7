"""The verb `merge`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.cli.errors import ExitCode
from orchestrator.devices import opening
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import DriverBugs, SimulatedDevice, SimulatedOptions
from orchestrator.sets.sample import sample_path
from orchestrator.stores.cache_file import save_cache_file
from orchestrator.stores.run_notes import CompiledGroup, add_feature_groups, read_feature_groups
from orchestrator.stores.state import state_path
from tests.cli.conftest import Call
from tests.stores.faults.sets import IDENTITY, OLD, OURS, UNION, data_of, loaded_keys, path_in


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Cache files of two sets that share some pipelines."""
    paths = []
    for name, keys in (("one", OLD), ("two", OURS)):
        path = path_in(tmp_path / name)
        save_cache_file(path, IDENTITY, data_of(keys))
        paths.append(path)
    return paths[0], paths[1]


def test_each_file_adds_what_was_not_there(call: Call, two: tuple[Path, Path], tmp_path: Path) -> None:
    out = path_in(tmp_path / "out")
    done = call("merge", *two, two[0], "-o", out, "-d", "simulated", "--json")
    assert done.code == ExitCode.OK
    added = [each["added_bytes"] for each in done.document["files"]]
    assert added == [len(data_of(OLD)) - 32, len(data_of(UNION)) - len(data_of(OLD)), 0]
    assert done.document["data_bytes"] == len(data_of(UNION))
    assert loaded_keys(out)[0] == UNION
    shown = call("merge", *two, "-o", out, "-d", "simulated")
    assert shown.code == ExitCode.OK
    assert shown.out.count("merged") >= 2


def test_what_it_was_made_for_is_behind_a_link(call: Call, two: tuple[Path, Path], tmp_path: Path) -> None:
    made_for = CompiledGroup(DeviceRequest(), 3)
    add_feature_groups(two[0], [made_for])
    link, out = tmp_path / "link.pipeline-cache", path_in(tmp_path / "out")
    link.symlink_to(two[0])
    assert call("merge", link, "-o", out, "-d", "simulated").code == ExitCode.OK
    assert read_feature_groups(out) == ((made_for,), "")


def test_a_record_that_is_not_written_is_a_note(call: Call, two: tuple[Path, Path], tmp_path: Path) -> None:
    out = path_in(tmp_path / "out")
    state_path(out.parent).mkdir(parents=True)
    out.parent.chmod(0o700)
    done = call("merge", *two, "-o", out, "-d", "simulated", "--json")
    assert done.code == ExitCode.OK
    assert "what the cache file was made for was not noted" in done.document["note"]
    assert loaded_keys(out)[0] == UNION


def test_a_file_that_would_not_load_is_left_out(call: Call, two: tuple[Path, Path], tmp_path: Path) -> None:
    two[1].write_bytes(two[1].read_bytes()[:-1])
    out = path_in(tmp_path / "out")
    done = call("merge", *two, tmp_path / "nothing", "-o", out, "-d", "simulated", "--json")
    assert done.code == ExitCode.BAD_INPUT
    assert [each["status"] for each in done.document["files"]] == ["LOADED", "TRUNCATED", "MISSING"]
    assert loaded_keys(out)[0] == OLD
    none = path_in(tmp_path / "none")
    shown = call("merge", two[1], "-o", none, "-d", "simulated")
    assert shown.code == ExitCode.BAD_INPUT
    assert "nothing was written: no file was merged" in shown.out
    assert not none.exists()


@pytest.mark.parametrize(
    ("bugs", "status"),
    [
        (DriverBugs(merge_does_nothing=True), "NOT_MERGED"),
        (DriverBugs(initial_data_dropped=True), "DROPPED_BY_DRIVER"),
    ],
)
def test_a_driver_that_does_not_merge_is_found(
    call: Call,
    two: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bugs: DriverBugs,
    status: str,
) -> None:
    options = SimulatedOptions(bugs=bugs)
    monkeypatch.setattr(opening, "open_device", lambda *_, **__: SimulatedDevice(options))
    done = call("merge", *two, "-o", path_in(tmp_path / "out"), "-d", "simulated", "--json")
    assert done.code == ExitCode.BAD_INPUT
    assert {each["status"] for each in done.document["files"]} == {status}


def test_what_is_no_cache_file_is_not_overwritten(call: Call, two: tuple[Path, Path], tmp_path: Path) -> None:
    archive, empty = tmp_path / "game.foz", tmp_path / "empty"
    archive.write_bytes(sample_path().read_bytes())
    done = call("merge", *two, "-o", archive, "-d", "simulated")
    assert done.code == ExitCode.BAD_INPUT
    assert "is no cache file" in done.err
    assert archive.read_bytes() == sample_path().read_bytes()
    assert "name a file" in call("merge", *two, "-o", tmp_path, "-d", "simulated").err
    empty.touch(mode=0o600)
    assert call("merge", *two, "-o", empty, "-d", "simulated").code == ExitCode.OK
    # A damaged cache file holds nothing that could be lost.
    empty.write_bytes(empty.read_bytes()[:-1])
    assert call("merge", *two, "-o", empty, "-d", "simulated").code == ExitCode.OK


def test_what_the_driver_says_is_shown_but_noise(
    call: Call, two: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(_: str, **listing: object) -> SimulatedDevice:
        if not listing:
            os.write(2, b"a warning\noutput is based on invalid pci bus info.\nwithout an end")
        return SimulatedDevice()

    monkeypatch.setattr(opening, "open_device", opened)
    done = call("merge", *two, "-o", path_in(tmp_path / "out"), "-d", "simulated")
    assert (done.code, done.err) == (ExitCode.OK, "a warning\nwithout an end")
