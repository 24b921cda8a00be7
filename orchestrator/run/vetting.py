"""Vetting keeps pipelines of doubtful shader modules out of this process's driver.

Guarantees: each pipeline that is left out has one outcome, whose reason names the module or the signal;
pipelines that link it are left out too. With `ISOLATE`, this process's driver gets only pipelines that
another process tried before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import numpy as np
import trio
from attrs import field, frozen

from orchestrator.children.parent import ChildGroup, ChildrenEndedError
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.request import DeviceRequest
from orchestrator.errors import RecordError
from orchestrator.run.first_error import first_error
from orchestrator.run.options import CompileOptions, ModulePolicy
from orchestrator.run.records import OutcomeStatus, OutcomeTable
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.image.rearranged import blame_links, job_of
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import PipelineJob
from orchestrator.sets.spirv import validation
from orchestrator.sets.spirv.validation import SpirvJudgement, SpirvVerdict

_SHOWN = 3
_T = TypeVar("_T")


@frozen
class Trials:
    """What came of pipelines that were tried in other processes."""

    survived: frozenset[PipelineJob] = frozenset()  # pipelines from which the driver returned
    # the others that were tried, each with what happened
    died: Mapping[PipelineJob, str] = field(factory=dict)
    processes: int = 0  # processes that were started


TryPipelines = Callable[
    [Sequence[str], Sequence[PipelineJob], CompileOptions, DeviceRequest, "trio.Event | None"],
    Awaitable[Trials],
]
"""Tries pipelines of archives in other processes, until the event is set."""


@frozen
class Vetted:
    """What vetting found."""

    # outcomes of pipelines that this process's driver must not get, in the order of the image
    left_out: OutcomeTable
    untried: frozenset[PipelineJob]  # pipelines that were not tried before the run was stopped
    notes: list[str]  # caveats for the report


async def vet(
    source: PipelineSet,
    image: CreateInfoImage,
    options: CompileOptions,
    *,
    processes: int,
    request: DeviceRequest,
    try_pipelines: TryPipelines | None,
    stop: trio.Event | None,
) -> Vetted:
    """Vet the pipelines of an image of a set, whose device is opened by `request`, as the options say.

    Raises:
        DeviceError: A trial process could not open the device.
        ValueError: Nothing tries pipelines.
        ArchiveError: The set could not be written where trial processes read it.
    """
    program = validation.find_spirv_val()
    notes = ["spirv-val was not found, so no module was validated (Debian: spirv-tools)"]
    judged: Mapping[int, SpirvJudgement] = {}
    if program is not None:
        judged = await run_with_children(
            lambda children: dict(
                validation.validate_modules(_modules(image), program, processes=processes, children=children)
            )
        )
        notes = _module_notes(image, judged, options.spirv_val)
    refused = {index: each.reason for index, each in judged.items() if each.verdict is SpirvVerdict.INVALID}
    status, untried, reasons = OutcomeStatus.SKIPPED, frozenset[PipelineJob](), dict[int, str]()
    if options.spirv_val is ModulePolicy.SKIP:
        for index in range(len(image)):
            for module in refused.keys() & image.modules_of(index):
                reasons[index] = f"module {image.modules[module].key:016x}: {refused[module]}"
    elif options.spirv_val is ModulePolicy.ISOLATE:
        if try_pipelines is None:
            raise ValueError("compile_set isolates pipelines only with Steering.try_pipelines")
        status, began = OutcomeStatus.FAILED, time.perf_counter()
        # An unnamed file, so that a killed process leaves nothing behind.
        descriptor = os.memfd_create("orchestrator-trial", os.MFD_CLOEXEC)
        try:
            await trio.to_thread.run_sync(_write, source, descriptor)
            path = f"/proc/{os.getpid()}/fd/{descriptor}"

            async def tried(jobs: Sequence[PipelineJob]) -> Trials:
                is_over = stop is not None and stop.is_set()
                return Trials() if is_over else await try_pipelines([path], jobs, options, request, stop)

            trials, reasons = await _isolate(image, tried, refused)
        finally:
            os.close(descriptor)
        untried = frozenset(job_of(image, index) for index in range(len(image)) if index not in reasons)
        untried -= trials.survived
        count = len(trials.survived) + len(trials.died)
        notes.append(
            f"{count} {'pipeline was' if count == 1 else 'pipelines were'} compiled in child processes "
            f"first: the driver survived {len(trials.survived)}, and not {len(trials.died)} "
            f"({trials.processes} {'process' if trials.processes == 1 else 'processes'}, "
            f"{time.perf_counter() - began:.1f} s)"
        )
    blame_links(image, reasons, range(len(image)))
    rows = sorted(reasons)
    jobs = [job_of(image, index) for index in rows]
    table = OutcomeTable.of(jobs, [status] * len(jobs), [reasons[index] for index in rows])
    return Vetted(table, untried, notes)


def _modules(image: CreateInfoImage) -> list[tuple[int, bytes]]:
    modules = []
    for index, each in enumerate(image.modules):
        with suppress(RecordError):  # it was read before, so this is damage of the set
            modules.append((index, each.load()))
    return modules


def _module_notes(
    image: CreateInfoImage, judged: Mapping[int, SpirvJudgement], policy: ModulePolicy
) -> list[str]:
    notes = []
    compiled = "; their pipelines are compiled all the same" if policy is ModulePolicy.WARN else ""
    for verdict, said in ((SpirvVerdict.INVALID, "refuses"), (SpirvVerdict.UNKNOWN, "has no answer for")):
        found = [(index, each) for index, each in sorted(judged.items()) if each.verdict is verdict]
        if found:
            shown = [f"{image.modules[index].key:016x}: {each.reason}" for index, each in found[:_SHOWN]]
            more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
            then = compiled if verdict is SpirvVerdict.INVALID else ""
            listed = "; ".join([*shown, *more])
            notes.append(f"spirv-val {said} {len(found)} of {len(judged)} modules{then}: {listed}")
    return notes or [f"spirv-val refuses none of {len(judged)} modules"]


async def _isolate(
    image: CreateInfoImage,
    tried: Callable[[Sequence[PipelineJob]], Awaitable[Trials]],
    refused: Mapping[int, str],
) -> tuple[Trials, dict[int, str]]:
    """What came of all trials, and why pipelines must be left out, by index."""
    total, reasons = Trials(), dict[int, str]()
    # Libraries first: what links one that the driver died of would be blamed for its crash.
    for level in image.levels(np.arange(len(image), dtype=np.int32)):
        blame_links(image, reasons, level.tolist())
        jobs = {job_of(image, index): index for index in level.tolist() if index not in reasons}
        if not jobs:
            continue
        found = await tried(list(jobs))
        total = Trials(
            total.survived | found.survived,
            {**total.died, **found.died},
            total.processes + found.processes,
        )
        for job, what in found.died.items():
            said = [refused[each] for each in image.modules_of(jobs[job]) if each in refused]
            reasons[jobs[job]] = "; ".join([what, *said[:1]])
    return total, reasons


def _write(source: PipelineSet, descriptor: int) -> None:
    with ArchiveWriter(descriptor) as writer:
        source.copy_to(writer)


async def run_with_children(function: Callable[[ChildGroup], _T]) -> _T:
    """Run a blocking function in a thread; if cancelled, end its children in the group, and wait for it."""
    group = ChildGroup()

    async def end_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            group.end()

    results = []
    with first_error():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_when_cancelled)
            with suppress(ChildrenEndedError):  # it was cancelled, which the nursery raises
                results.append(await trio.to_thread.run_sync(function, group))
            nursery.cancel_scope.cancel()
    return results[0]
