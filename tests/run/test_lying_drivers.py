"""Drivers that lie about pipeline caches: nothing is called a hit that is none, and nothing is lost.

Each lie once by the simulated device, and once by a layer in C (tests/hosts/lying_layer.c) over RADV.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import trio

from orchestrator.devices.device import (
    ERROR_OUT_OF_HOST_MEMORY,
    FEEDBACK_APPLICATION_CACHE_HIT,
    FEEDBACK_VALID,
    CreationBatch,
    PipelineCache,
)
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions
from orchestrator.errors import DriverError
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import RunOptions
from orchestrator.run.records import CompileReport
from tests.drivers import require_header, require_tool, run_on_device
from tests.run.small_sets import compiled, write_small_set
from tests.run.support import EACH_BATCH, ONE, prepared_set

COUNT = 6
NO_MERGE = "the driver did not merge all worker caches"
CASES = (
    ("hit", CacheMode.PER_WORKER, "6 pipelines came from a cache that held none"),
    ("hit", CacheMode.NONE, "6 pipelines came from a cache that held none"),
    ("hit", CacheMode.BINARIES, ""),
    ("merge-fails", CacheMode.PER_WORKER, f"{NO_MERGE} (vkMergePipelineCaches returned"),
    ("merge-fails", CacheMode.TWO_LEVEL, NO_MERGE),
    ("merge-nothing", CacheMode.PER_WORKER, f"{NO_MERGE} (it said success"),
    ("merge-nothing", CacheMode.TWO_LEVEL, NO_MERGE),
    ("merge-first", CacheMode.PER_WORKER, ""),
    ("size-nothing", CacheMode.PER_WORKER, ""),
    ("size-nothing", CacheMode.SHARED, ""),
    ("no-flags", CacheMode.PER_WORKER, "the driver refuses externally synchronized caches"),
    ("no-flags", CacheMode.TWO_LEVEL, "the driver refuses externally synchronized caches"),
    ("hit+merge-nothing", CacheMode.PER_WORKER, "6 pipelines came from a cache that held none"),
    ("merge-fails+size-nothing", CacheMode.PER_WORKER, NO_MERGE),
    ("merge-nothing+size-nothing+no-flags", CacheMode.PER_WORKER, NO_MERGE),
)
"""Lies, the mode that meets it, and what is told in the first run."""
EACH_LIE = tuple({case[0]: case for case in reversed(CASES)}.values())


def refusal(command: str) -> DriverError:
    return DriverError(command, ERROR_OUT_OF_HOST_MEMORY, "VK_ERROR_OUT_OF_HOST_MEMORY")


class LyingDevice(SimulatedDevice):
    """The simulated device with lies of the layer, with a + between two."""

    def __init__(self, lie: str, options: SimulatedOptions | None = None) -> None:
        super().__init__(options)
        self.lies = lie.split("+")

    def _create(self, *given: object, **named: object) -> CreationBatch:
        batch = super()._create(*given, **named)  # type: ignore[arg-type]
        return self._lied(batch)

    def _create_captured(self, *given: object, **named: object) -> CreationBatch:
        return self._lied(super()._create_captured(*given, **named))  # type: ignore[arg-type]

    def _lied(self, batch: CreationBatch) -> CreationBatch:
        if "hit" in self.lies:
            batch.feedback_flags |= np.uint32(FEEDBACK_VALID | FEEDBACK_APPLICATION_CACHE_HIT)
        return batch

    def _create_cache(self, data: bytes, external: bool, merged_internally: bool, name: str) -> int:
        if "no-flags" in self.lies and (external or merged_internally):
            raise refusal("vkCreatePipelineCache")
        return super()._create_cache(data, external, merged_internally, name)

    def _merge_caches(self, destination: PipelineCache, sources: Sequence[PipelineCache]) -> None:
        if "merge-fails" in self.lies:
            raise refusal("vkMergePipelineCaches")
        if "merge-nothing" not in self.lies:
            super()._merge_caches(destination, sources[:1] if "merge-first" in self.lies else sources)

    def _cache_size(self, cache: PipelineCache) -> int:
        return 0 if "size-nothing" in self.lies else super()._cache_size(cache)


def outcome(report: CompileReport) -> tuple[int, int, str]:
    """Compiled, hits, and all that was told."""
    counts = report.outcomes
    return counts.compiled, counts.cache_hits, "\n".join((*report.notes, *report.warnings))


def check(mode: CacheMode, words: str, first: tuple[int, int, str], second: tuple[int, int, str]) -> None:
    assert first[:2] == (COUNT, 0)
    assert words in first[2]
    assert first[2].count(NO_MERGE) <= 1
    assert second[:2] == ((COUNT, 0) if mode is CacheMode.NONE else (0, COUNT)), second
    assert NO_MERGE not in second[2]


@pytest.mark.parametrize(("lie", "mode", "words"), CASES)
async def test_a_simulated_driver_that_lies(
    archive: Path, folder: Path, lie: str, mode: CacheMode, words: str
) -> None:
    def opener(request: DeviceRequest) -> SimulatedDevice:
        return LyingDevice(lie, SimulatedOptions(request=request))

    first, second = [outcome(await compiled(archive, folder, opener, mode=mode)) for _ in range(2)]
    check(mode, words, first, second)


def compile_under_lies(archive: str, folder: str) -> list[list[tuple[int, int, str]]]:
    """In a process of RADV and the layer: the outcomes of two runs for each case."""

    async def outcomes(number: int, lie: str, mode: CacheMode) -> list[tuple[int, int, str]]:
        os.environ["LIES"] = lie
        own = Path(folder) / str(number)
        own.mkdir(mode=0o700)
        return [
            outcome(await compiled(Path(archive), own, mode=mode, selector="radv:navi21")) for _ in range(2)
        ]

    return [trio.run(outcomes, number, lie, mode) for number, (lie, mode, _) in enumerate(EACH_LIE)]


def test_radv_under_a_layer_that_lies(archive: Path, tmp_path: Path) -> None:
    require_header("vulkan/vk_layer.h", "libvulkan-dev")
    source = Path(__file__).parent.parent / "hosts" / "lying_layer.c"
    command = [require_tool("gcc"), "-shared", "-fPIC", "-Wall", "-Werror", "-o", "liblying.so", str(source)]
    subprocess.run(command, check=True, cwd=tmp_path)
    layer = {
        "name": "VK_LAYER_LYING",
        "type": "GLOBAL",
        "library_path": str(tmp_path / "liblying.so"),
        "api_version": "1.4.350",  # of an older one, keys are not asked for
        "implementation_version": "1",
        "description": "lies about pipeline caches",
    }
    (tmp_path / "lying.json").write_text(json.dumps({"file_format_version": "1.2.0", "layer": layer}))
    environment = {"VK_ADD_LAYER_PATH": str(tmp_path), "VK_INSTANCE_LAYERS": "VK_LAYER_LYING"}
    target = f"{__name__}:compile_under_lies"
    found = run_on_device("radv:navi21", target, str(archive), str(tmp_path), environment=environment)
    for (_, mode, words), (first, second) in zip(EACH_LIE, found, strict=True):
        check(mode, words, tuple(first), tuple(second))


# --- what a run itself makes of a lie


@pytest.mark.parametrize("workers", [1, 2])
async def test_what_was_not_merged_is_in_the_data_of_a_run(workers: int) -> None:
    device = LyingDevice("merge-nothing")
    report = await run_pipelines(device, prepared_set(device, 40), RunOptions(workers=workers))
    assert report.merge is not None
    assert report.merge.unmerged == 0
    (warning,) = report.merge.warnings
    assert "40 pipelines were compiled again" in warning
    again = await run_pipelines(
        device, prepared_set(device, 40), RunOptions(workers=1), primary=report.cache_data
    )
    assert again.cache_hits == 40
    assert again.merge is not None
    assert again.merge.warnings == ()
    assert device.live_pipelines == 0


async def test_what_a_driver_lost_and_a_stop_left_is_told() -> None:
    class Stopping(LyingDevice):
        def _merge_caches(self, *given: object) -> None:
            trio.from_thread.run_sync(stop.set)

    stop = trio.Event()
    device = Stopping("merge-nothing")
    report = await run_pipelines(device, prepared_set(device, 40), RunOptions(workers=2), stop=stop)
    assert report.merge is not None
    (warning,) = report.merge.warnings
    held = [size for size in report.merge.source_bytes if size > PipelineCache.header_bytes]
    assert report.merge.unmerged == len(held) > 0
    assert "what only these hold is lost: it said success" in warning


async def test_a_warm_cache_that_grew_is_saved_though_all_is_called_a_hit(
    tmp_path: Path, folder: Path
) -> None:
    """Feedback of a lie cannot be told from hits where the cache held something; its size can."""
    small, large = tmp_path / "small.foz", tmp_path / "large.foz"
    write_small_set(small, 0, 6)
    write_small_set(large, 0, 12)
    await compiled(small, folder, lambda request: SimulatedDevice(SimulatedOptions(request=request)))

    def opener(request: DeviceRequest) -> SimulatedDevice:
        return LyingDevice("hit", SimulatedOptions(request=request))

    for mode in (CacheMode.PER_WORKER, CacheMode.SHARED):
        report = await compiled(large, folder, opener, mode=mode)
        assert report.outcomes.cache_hits == 12
    assert report.cache_file.not_saved == "nothing new: the loaded cache held everything"
    honest = await compiled(large, folder, lambda request: SimulatedDevice(SimulatedOptions(request=request)))
    assert honest.outcomes.cache_hits == 12


async def test_equal_content_in_several_caches_is_no_loss() -> None:
    """A cache with nothing but what the primary holds, some bytes larger than that, is no false alarm."""

    merged, compiled_keys = threading.Event(), list[int]()

    class Padding(SimulatedDevice):
        def _cache_size(self, cache: PipelineCache) -> int:
            return super()._cache_size(cache) + 4 * (cache.name != "primary")

        def _merge_caches(self, destination: PipelineCache, sources: Sequence[PipelineCache]) -> None:
            super()._merge_caches(destination, sources)
            merged.set()

    def half_after_a_merge(key: int) -> None:
        compiled_keys.append(key)
        if len(compiled_keys) == 20:
            assert merged.wait(60)

    options = SimulatedOptions(same_binary=dict.fromkeys(range(1, 40), 0), on_compile=half_after_a_merge)
    device = Padding(options)
    run = RunOptions(workers=1, merge=EACH_BATCH, schedule=ONE)
    report = await run_pipelines(device, prepared_set(device, 40), run)
    assert report.merge is not None
    assert report.merge.rolling is not None
    assert report.merge.rolling.folds > 1
    assert (report.merge.warnings, report.merge.unmerged) == ((), 0)
