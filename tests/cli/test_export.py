"""The driver's bytes of a cache file, written by themselves."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from orchestrator.cli.errors import ExitCode
from tests.cli.conftest import Call, damage
from tests.hosts.run_host import strip_prefix_header


@pytest.mark.parametrize("device", [(), ("--device", "simulated")], ids=["file", "device"])
def test_the_driver_s_bytes(call: Call, cache_file: Path, tmp_path: Path, device: tuple[str, ...]) -> None:
    raw = tmp_path / "raw.bin"
    raw.write_bytes(b"what was there")
    done = call("export", cache_file, "-o", raw, *device, "--json")
    assert done.code == ExitCode.OK
    expected = strip_prefix_header(cache_file.read_bytes())
    assert raw.read_bytes() == expected
    assert stat.S_IMODE(raw.stat().st_mode) & 0o022 == 0
    assert done.document["status"] == "LOADED"
    assert done.document["written_bytes"] == len(expected)
    assert "the driver's data of" in call("export", cache_file, "-o", raw, *device).out
    assert call("inspect", raw, "--json").document["files"][0]["kind"] == "driver data without our header"


def test_nothing_is_written_of_damage_or_no_cache_file(call: Call, cache_file: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw.bin"
    damage(cache_file)
    done = call("export", cache_file, "-o", raw, "--json")
    assert (done.code, done.document["status"]) == (ExitCode.BAD_INPUT, "HASH_MISMATCH")
    assert "next: orchestrator inspect" in call("export", cache_file, "-o", raw).out
    assert call("export", Path(__file__), "-o", raw, "--json").document["status"] == "BAD_MAGIC"
    assert call("export", tmp_path / "none", "-o", raw, "--json").document["status"] == "MISSING"
    assert not raw.exists()
    assert call("export", cache_file, "-o", tmp_path).code == ExitCode.BAD_INPUT


@pytest.mark.driver("radv:navi21")
def test_nothing_is_written_for_another_device(call: Call, cache_file: Path, tmp_path: Path) -> None:
    done = call("export", cache_file, "-o", tmp_path / "raw.bin", "-d", "radv:navi21", "--json")
    assert (done.code, done.document["status"]) == (ExitCode.BAD_INPUT, "OTHER_DEVICE")
    assert not (tmp_path / "raw.bin").exists()
