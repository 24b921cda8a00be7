"""F7: `compile_set`, cancelled at every step and in every blocking call, while it loads, compiles and saves.

Afterwards no cache is in use or left, no thread, and the file holds what was compiled.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated.cache import parse_data
from orchestrator.run import keeping
from orchestrator.run.options import SavePolicy
from orchestrator.sets.image import builder
from orchestrator.stores.cache_file import LoadStatus, cache_path, read_cache_file, save_cache_file
from tests.campaigns import STRIDE
from tests.run.cancel_storm import Moment
from tests.run.small_sets import Opener, compiled, write_small_set
from tests.stores.faults.conftest import COUNT as COUNT_PROPERTY

MOST_STEPS = 300
AT_ONCE = SavePolicy(quiet_ns=1, growth_pipelines=1, pause_ns=1)
MODES = (CacheMode.SHARED, CacheMode.PER_WORKER, CacheMode.TWO_LEVEL)


class Case:
    """A directory with what another run of a part of the set saved, and the set."""

    def __init__(self, folder: Path) -> None:
        self.archive = folder / "set.foz"
        self.half = folder / "half.foz"
        self.saved = folder / "saved"
        self.cache = folder / "cache"
        self.full = write_small_set(self.archive, 0, 6)
        self.part = write_small_set(self.half, 0, 2)

    async def begin(self) -> None:
        if not self.saved.exists():
            self.saved.mkdir(mode=0o700)
            await compiled(self.half, self.saved, Opener())
        shutil.rmtree(self.cache, ignore_errors=True)
        shutil.copytree(self.saved, self.cache)

    def check(self, opener: Opener, where: str) -> None:
        compiled_here: set[int] = set()
        for device in opener.opened:
            assert device.live_caches == 0, where
            assert device.live_pipelines == 0, where
            compiled_here |= set(device.compile_counts)
        if not opener.opened:
            return
        device = opener.device
        found = read_cache_file(cache_path(self.cache, device.identity), device.identity)
        assert found.status is LoadStatus.LOADED, where
        parsed = parse_data(found.data, device.identity)
        assert not parsed.bad, where
        there = {entry.key for entry in parsed.entries}
        expected = {device.driver.binary_key(key) for key in {*self.part, *compiled_here}}
        assert expected <= there, where
        # The lock is free and nothing temporary is left.
        assert save_cache_file(found.path, device.identity, found.data, lock_wait_s=0).saved_bytes, where
        assert not [*self.cache.rglob("*.tmp"), *self.cache.rglob("*.loading")], where


async def cancelled_at(case: Case, mode: CacheMode, steps: int) -> bool:
    """One run, cancelled after some steps of its tasks; whether it was."""
    await case.begin()
    opener = Opener()
    moment = Moment(in_step=steps)
    with moment:
        await compiled(case.archive, case.cache, opener, mode=mode, save_policy=AT_ONCE)
    case.check(opener, f"{mode}, step {steps}")
    return moment.scope.cancelled_caught


async def every_step(case: Case, mode: CacheMode) -> int:
    """Cancel at every step, or one in `STRIDE`, until a run gets through; how many were cancelled."""
    cancelled = completed = 0
    for steps in range(1, MOST_STEPS, STRIDE):
        if await cancelled_at(case, mode, steps):
            cancelled += 1
            completed = 0
        else:
            completed += 1
            # The number of steps differs by a few from run to run.
            if completed == 3:
                return cancelled
    pytest.fail("the run never got through")


@pytest.mark.parametrize("mode", MODES)
async def test_cancelled_at_every_step(
    tmp_path: Path, mode: CacheMode, record_property: Callable[[str, object], None]
) -> None:
    cancelled = await every_step(Case(tmp_path), mode)
    assert cancelled >= 10 // STRIDE
    record_property(
        COUNT_PROPERTY + "F7 cancellation",
        f"{cancelled} steps of compile_set, mode {mode}, with its load and save",
    )


# Each runs in a thread while the trio thread may be cancelled.
BLOCKING = ((builder, "build_image"), (keeping, "load_into_cache"), (keeping, "save_merged"))


async def test_cancelled_inside_every_blocking_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    case = Case(tmp_path)
    for module, name in BLOCKING:
        for mode in MODES:
            await case.begin()
            opener = Opener()
            scope = trio.CancelScope()
            original = getattr(module, name)

            def interrupted(
                *arguments: Any, _scope: trio.CancelScope = scope, _original: Any = original, **options: Any
            ) -> Any:
                trio.from_thread.run_sync(_scope.cancel)
                return _original(*arguments, **options)

            with monkeypatch.context() as patch, scope:
                patch.setattr(module, name, interrupted)
                await compiled(case.archive, case.cache, opener, mode=mode, save_policy=AT_ONCE)
            assert scope.cancel_called
            case.check(opener, f"{mode}, in {name}")
    record_property(
        COUNT_PROPERTY + "F7 cancellation",
        f"{len(BLOCKING) * len(MODES)} blocking calls of compile_set, cancelled inside",
    )
