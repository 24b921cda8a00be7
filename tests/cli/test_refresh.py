"""The verb `refresh`: what was compiled for another driver is compiled again, within limits."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from orchestrator.cli.stopping import run_until_signal
from orchestrator.stores.compiles import remember_compile, remembered_compiles
from tests.cli.conftest import Call, run_program


@pytest.fixture
def kept(compiled_folder: Path, small_set: Path, tmp_path: Path) -> Path:
    """A cache directory that remembers a compile of the small set for an older driver."""
    kept = tmp_path / "kept"
    shutil.copytree(compiled_folder, kept)
    (cache,) = kept.glob("*.pipeline-cache")
    cache.rename(kept / "older.pipeline-cache")
    (was,) = remembered_compiles(kept)
    assert was.cache_file == cache.name
    remember_compile(kept, replace(was, cache_file="older.pipeline-cache"))
    return kept


def outcomes(call: Call, kept: Path, *options: str) -> tuple[int, list[str]]:
    done = call("refresh", "--cache-dir", kept, "--json", *options)
    return done.code, [each["outcome"] for each in done.document["compiles"]]


def test_what_was_compiled_for_another_driver_is_compiled_again_once(call: Call, kept: Path) -> None:
    assert outcomes(call, kept, "--dry-run") == (0, ["needed"])
    assert [each.name for each in kept.glob("*.pipeline-cache")] == ["older.pipeline-cache"]
    assert outcomes(call, kept, "--time", "10m") == (0, ["compiled"])
    assert len([*kept.glob("*.pipeline-cache")]) == 2
    assert outcomes(call, kept) == (0, ["fits"])


def test_without_time_the_rest_is_for_the_next_run(call: Call, kept: Path) -> None:
    assert outcomes(call, kept, "--time", "1ms") == (75, ["needed"])


def test_a_set_that_is_gone_is_left(call: Call, kept: Path) -> None:
    (was,) = remembered_compiles(kept)
    remember_compile(kept, replace(was, paths=(b"/nowhere/gone.foz",)))
    assert outcomes(call, kept, "--dry-run") == (0, ["left", "needed"])


def test_the_units_run_the_same_command(call: Call, tmp_path: Path) -> None:
    done = call("refresh", "--systemd", "--idle", "--time", "1h", "--cache-dir", tmp_path)
    assert done.code == 0
    (start,) = [line for line in done.out.splitlines() if line.startswith("ExecStart=")]
    assert start.endswith(f" -m orchestrator refresh --idle --time 1h --cache-dir {tmp_path}")
    assert "[Timer]\n" in done.out


def test_a_signal_ends_the_compile_in_order() -> None:
    ended = []

    async def job() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await trio.sleep_forever()
        finally:
            ended.append("saved")

    with pytest.raises(KeyboardInterrupt, match="what was compiled is saved"):
        run_until_signal(job)
    assert ended == ["saved"]


def test_a_pack_grows_by_what_another_driver_makes(call: Call, small_set: Path, tmp_path: Path) -> None:
    pack, key, place = tmp_path / "pack", tmp_path / "team.key", tmp_path / "place"
    assert call("key", "new", key).code == 0
    shutil.copy(small_set, game := tmp_path / "game.foz")
    made = call("compile", game, "-d", "simulated", "--out", pack, "--sign", key, "--cache-dir", place)
    assert (made.code, outcomes(call, place)) == (0, (0, ["fits"]))
    (was,) = remembered_compiles(place)
    remember_compile(place, replace(was, cache_file="older.pipeline-cache"))
    whole = game.read_bytes()
    game.write_bytes(b"nothing")
    assert outcomes(call, place, "--sign", str(key)) == (1, ["failed"])
    assert call("verify", pack, "--complete", "--trust", tmp_path / "team.pub").code == 0
    game.write_bytes(whole)
    (cache,) = pack.glob("*.pipeline-cache")
    cache.unlink()
    assert outcomes(call, place) == (1, ["failed"])  # it is signed
    assert outcomes(call, place, "--sign", str(key)) == (0, ["compiled"])
    assert call("verify", pack, "--complete", "--trust", tmp_path / "team.pub").code == 0
    shutil.rmtree(pack)
    assert outcomes(call, place) == (0, ["left"])


@pytest.mark.driver
def test_what_another_build_of_mesa_compiled_is_compiled_again(other_mesa: Path, tmp_path: Path) -> None:
    (manifest,) = other_mesa.glob("usr/share/vulkan/icd.d/radeon_icd*.json")
    icd = json.loads(manifest.read_text())
    (library,) = other_mesa.glob("usr/lib/*/libvulkan_radeon.so")
    icd["ICD"]["library_path"] = str(library)
    (old := tmp_path / "old.json").write_text(json.dumps(icd))
    places = "--cache-dir", tmp_path / "place"
    compiles = "compile", "sample", "-d", "radv:navi21", "--shard", "1/8", *places

    def outcomes_here() -> list[str]:
        done = run_program("refresh", *places, "--json")
        assert done.code == 0, done.err
        return [each["outcome"] for each in done.document["compiles"]]

    for more in ((), ("--driver-cache", "--out", tmp_path / "pack")):
        done = run_program(*compiles, *more, environment={"VK_DRIVER_FILES": str(old)})
        assert done.code == 0, done.err
    assert outcomes_here() == ["compiled", "compiled"]
    assert outcomes_here() == ["fits", "fits"]
    targets = run_program("inspect", tmp_path / "pack", "--json").document["files"][0]["targets"]
    assert len({each["driver"] for each in targets if each["driver_cache"]}) == 2
