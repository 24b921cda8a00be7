"""What a player would still compile of a set, with the caches of a pack.

By what the pack notes of its caches, where no driver is asked; or as the player does it: `installed` puts a
target into an empty directory, where the set is looked up while compiling is forbidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from attrs import evolve, frozen

from orchestrator.devices.modes import CacheMode
from orchestrator.devices.request import DeviceRequest, OtherFeatures
from orchestrator.errors import DeviceError, NoDeviceError, shown
from orchestrator.packs import driver
from orchestrator.packs.driver_cache import offered
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import NOT_FOUND, CompileReport
from orchestrator.stores.pack import Pack, PackNotes, PackTarget
from orchestrator.stores.run_notes import Keys


@frozen
class Coverage:
    """What a target of a pack has of a set's pipelines."""

    target: PackTarget
    pipelines: int  # of the set
    held: int = 0
    left_out: int = 0  # that the device does not support, or its driver refuses or dies of
    missing: tuple[int, ...] = ()  # keys of those that a player would compile, ascending
    missing_s: float = 0.0  # what that takes in the driver
    timed: int = 0  # of the missing, how many have a recorded time; others count as the target's mean
    proven: bool = False  # by a run in which compiling was forbidden
    problem: str = ""  # why the pack has nothing, nothing is known, or a run proved nothing


@frozen
class PackCoverage:
    """The coverage of a set by a pack. Its methods block; one thread at a time."""

    pack: Pack
    groups: Sequence[tuple[DeviceRequest, Keys]]  # of the set: what each is opened as, and its pipelines
    keys: Keys  # of the set's pipelines, each once
    notes: dict[PackTarget, PackNotes]  # two drivers of one device have one selector

    @classmethod
    def of(cls, pack: Pack, groups: Sequence[tuple[DeviceRequest, Keys]]) -> PackCoverage:
        """Read the notes of a pack, for a set; raises PackError where they are damaged."""
        notes = {each: pack.read_notes(each) for each in pack.manifest.targets}
        keys = [np.empty(0, np.uint64), *(each for _, each in groups)]
        return cls(pack, groups, np.unique(np.concatenate(keys)), notes)

    def noted(self, target: PackTarget) -> Coverage:
        """What a target has by its notes."""
        notes = self.notes[target]
        held, foreign = np.isin(self.keys, notes.held), dict[str, None]()
        made_for = [each.request for each in notes.groups]
        for request, keys in self.groups if made_for else ():
            theirs = np.isin(self.keys, keys)
            if (held & theirs).any() and not any(_fits(request, each) for each in made_for):
                held &= ~theirs
                foreign[shown(request.application.application_name or "one without a name")] = None
        if target.has_data and not len(notes.held):
            why = "the pack does not note which pipelines its cache holds: --run finds out"
            return Coverage(target, len(self.keys), problem=why)
        lists = (each for part in target.parts for each in part.left_out if each.status != "not_run")
        out = {int(key, 16) for each in lists for key in each.keys}
        left_out = np.isin(self.keys, [*out]) & ~held
        found = self._coverage(target, held=int(held.sum()), missing=self.keys[~(held | left_out)])
        if foreign:
            why = "compiled for another version of the application, or for other features of its device"
            return evolve(found, problem=f"{', '.join(foreign)}: {why}")
        return evolve(found, problem=target.problem)

    def run(self, target: PackTarget, report: CompileReport) -> Coverage:
        """What a target has by the report of a compile where it is `installed`."""
        names = [each.key for each in report.failed if any(why in each.reason for why in NOT_FOUND)]
        missing, counts = np.unique(np.array(names, np.uint64)), report.outcomes
        found = self._coverage(target, held=counts.cache_hits, missing=missing)
        if report.stopped or counts.not_run:
            return evolve(found, problem=f"{counts.not_run} pipelines were not looked up")
        return evolve(found, proven=True)

    def _coverage(self, target: PackTarget, *, held: int, missing: Keys) -> Coverage:
        own, every = self.notes[target].times, [each.times for each in self.notes.values()]
        times_ns = own.of(missing)
        for each in every:
            times_ns = np.where(times_ns > 0, times_ns, each.of(missing))
        times = own.duration_ns if len(own) else np.concatenate([each.duration_ns for each in every])
        timed = int(np.count_nonzero(times_ns))
        mean_ns = float(times.mean()) if len(times) else 0.0
        total_ns = float(times_ns.sum()) + mean_ns * (len(missing) - timed)
        return Coverage(
            target,
            len(self.keys),
            held,
            len(self.keys) - held - len(missing),
            tuple(missing.tolist()),
            total_ns / 1e9,
            timed,
        )


def _fits(request: DeviceRequest, made_for: DeviceRequest) -> bool:
    """Whether what was compiled for a device is for another one, as far as that is known without one."""
    if request == made_for:
        return True
    # What nobody captured is opened with what its pipelines need, too, which is decided on the device.
    are_exact = OtherFeatures.NONE is request.others is made_for.others
    has_all = request.features <= made_for.features and request.extensions <= made_for.extensions
    return are_exact and has_all and request.application == made_for.application


@contextmanager
def installed(pack: Pack, target: PackTarget) -> Iterator[tuple[Path, CompileOptions]]:
    """Install a target into a directory of its own, which goes at the end. Blocking.

    Args:
        pack: The pack.
        target: One of its targets, of a device of this machine.

    Yields:
        The directory, and the options that look a set up there.

    Raises:
        NoDeviceError: There is no such device, or the driver here is another build than the target's.
        PackError: It is damaged.
        DeviceError: The driver refused it.
    """
    with TemporaryDirectory(prefix="orchestrator-coverage-") as name:
        device, done = driver.install(pack, target.selector, Path(name))
        if done.target < 0 or pack.manifest.targets[done.target] != target:
            raise NoDeviceError(f"{target.name}: the driver here is another build")
        options = CompileOptions(selector=target.selector, mode=CacheMode.SHARED, expect_hits=True)
        if target.cache is None and target.binaries is not None:
            options = evolve(options, mode=CacheMode.BINARIES)
        elif target.cache is None:
            variables = offered([pack], device, Path(name) / "own")
            options = evolve(options, mode=CacheMode.NONE, driver_caches=True, environment=variables)
        yield Path(name), options


def require_misses(report: CompileReport) -> None:
    """Raise DeviceError where a look-up found pipelines though no cache was offered, and none was missing."""
    if report.outcomes.cache_hits and not report.outcomes.failed:
        raise DeviceError(
            f"{report.device.device_name} creates what no cache holds though compiling is forbidden: the "
            "driver ignores FAIL_ON_PIPELINE_COMPILE_REQUIRED, or has a cache elsewhere"
        )
