"""Vetting keeps pipelines of doubtful shader modules out of this process's driver.

Guarantees: each pipeline that is left out has one outcome, whose reason names the module or the signal;
pipelines that link it are left out too. With `ISOLATE`, this process's driver gets only pipelines that
another process tried before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import numpy as np
import trio
from attrs import define, field, frozen

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
from orchestrator.sets.spirv.validation import Judgement, Verdict

_SHOWN = 3
_T = TypeVar("_T")


@frozen
class Trials:
    """What came of pipelines that were tried in other processes.

    Attributes:
        survived: Pipelines from which the driver returned.
        died: The others that were tried, each with what happened.
        processes: Processes that were started.
    """

    survived: frozenset[PipelineJob]
    died: dict[PipelineJob, str]
    processes: int


TryPipelines = Callable[
    [Sequence[str], Sequence[PipelineJob], CompileOptions, DeviceRequest, "trio.Event | None"],
    Awaitable[Trials],
]
"""Tries pipelines of archives in other processes, until the event is set."""


@define(eq=False)
class Vetter:
    """Vets the pipelines of an image.

    Attributes:
        processes: Processes that validate modules at a time.
        request: How the image's device was opened.
        try_pipelines: Tries pipelines with `ISOLATE`; None where nothing does.
        stop: Ends trials early when set.
        left_out: Outcomes of pipelines that this process's driver must not get, in the order of the image.
        untried: Pipelines that were not tried before the run was stopped.
        notes: Caveats for the report.
    """

    source: PipelineSet
    image: CreateInfoImage
    options: CompileOptions
    processes: int
    request: DeviceRequest
    try_pipelines: TryPipelines | None = None
    stop: trio.Event | None = None
    left_out: OutcomeTable = field(factory=lambda: OutcomeTable.of(()), init=False)
    untried: frozenset[PipelineJob] = field(default=frozenset(), init=False)
    notes: list[str] = field(factory=list, init=False)

    async def vet(self) -> None:
        """Vet as the options say.

        Raises:
            DeviceError: A trial process could not open the device.
            ValueError: Nothing tries pipelines.
            ArchiveError: The set could not be written where trial processes read it.
        """
        image, policy = self.image, self.options.spirv_val
        if policy is ModulePolicy.OFF or not len(image):
            return
        judged = await self._judge()
        refused = {index: each for index, each in judged.items() if each.verdict is Verdict.INVALID}
        self._note_modules(judged)
        if policy is ModulePolicy.SKIP:
            reasons = {
                index: f"module {image.modules[module].key:016x}: {refused[module].reason}"
                for index in range(len(image))
                for module in image.modules_of(index)
                if module in refused
            }
            self._leave_out(OutcomeStatus.SKIPPED, reasons)
        elif policy is ModulePolicy.ISOLATE:
            await self._isolate(refused)

    async def _judge(self) -> dict[int, Judgement]:
        program = validation.find_spirv_val()
        if program is None:
            self.notes.append("spirv-val was not found, so no module was validated (Debian: spirv-tools)")
            return {}

        def judge(children: ChildGroup) -> dict[int, Judgement]:
            modules = []
            for index, each in enumerate(self.image.modules):
                try:
                    modules.append((index, each.load()))
                except RecordError:
                    continue  # it was read before, so this is damage of the set
            return dict(
                validation.validate_modules(modules, program, processes=self.processes, children=children)
            )

        return await run_with_children(judge)

    def _note_modules(self, judged: dict[int, Judgement]) -> None:
        warns = self.options.spirv_val is ModulePolicy.WARN
        compiled = "; their pipelines are compiled all the same" if warns else ""
        for verdict, said, then in (
            (Verdict.INVALID, "refuses", compiled),
            (Verdict.UNKNOWN, "has no answer for", ""),
        ):
            found = [(index, each) for index, each in sorted(judged.items()) if each.verdict is verdict]
            if found:
                shown = [f"{self.image.modules[index].key:016x}: {each.reason}" for index, each in found]
                shown[_SHOWN:] = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
                self.notes.append(
                    f"spirv-val {said} {len(found)} of {len(judged)} modules{then}: {'; '.join(shown)}"
                )

    async def _isolate(self, refused: dict[int, Judgement]) -> None:
        if (try_pipelines := self.try_pipelines) is None:
            raise ValueError("compile_set isolates pipelines only with Steering.try_pipelines")
        image = self.image
        jobs = [job_of(image, index) for index in range(len(image))]
        started = time.perf_counter()
        reasons: dict[int, str] = {}
        survived: set[PipelineJob] = set()
        died: dict[PipelineJob, str] = {}
        processes = 0
        # An unnamed file, so that a killed process leaves nothing behind.
        descriptor = os.memfd_create("orchestrator-trial", os.MFD_CLOEXEC)
        try:
            await trio.to_thread.run_sync(self._write, descriptor)
            # Libraries first: what links one that the driver died of would be blamed for its crash.
            for level in image.levels(np.arange(len(image), dtype=np.int32)):
                blame_links(image, reasons, level.tolist())
                some = [index for index in level.tolist() if index not in reasons]
                if not some or (self.stop is not None and self.stop.is_set()):
                    continue
                trials = await try_pipelines(
                    [f"/proc/{os.getpid()}/fd/{descriptor}"],
                    [jobs[index] for index in some],
                    self.options,
                    self.request,
                    self.stop,
                )
                survived |= trials.survived
                died |= trials.died
                processes += trials.processes
                for index in some:
                    if jobs[index] in died:
                        said = [refused[each].reason for each in image.modules_of(index) if each in refused]
                        reasons[index] = "; ".join([died[jobs[index]], *said[:1]])
        finally:
            os.close(descriptor)
        tried = len(survived) + len(died)
        self.notes.append(
            f"{tried} {'pipeline was' if tried == 1 else 'pipelines were'} compiled in child processes "
            f"first: the driver survived {len(survived)}, and not {len(died)} "
            f"({processes} {'process' if processes == 1 else 'processes'}, "
            f"{time.perf_counter() - started:.1f} s)"
        )
        self._leave_out(OutcomeStatus.FAILED, reasons)
        self.untried = frozenset(jobs) - survived - {jobs[index] for index in reasons}

    def _write(self, descriptor: int) -> None:
        with ArchiveWriter(descriptor) as writer:
            self.source.copy_to(writer)

    def _leave_out(self, status: OutcomeStatus, reasons: dict[int, str]) -> None:
        """Leave out pipelines with a reason, and those that link them."""
        image = self.image
        blame_links(image, reasons, range(len(image)))
        indices = sorted(reasons)
        jobs = [job_of(image, index) for index in indices]
        self.left_out = OutcomeTable.of(jobs, [status] * len(jobs), [reasons[index] for index in indices])


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
