"""The process of one side: it proves which driver it loads, and has sets compiled in children of its own.

A request that opens the device here comes to a process that does nothing else: the driver may end it.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import evolve

from orchestrator.children.protocol import SentError
from orchestrator.children.serving import Channel
from orchestrator.devices.opening import open_for_child
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.vulkan.manifests import driver_manifests
from orchestrator.errors import OrchestratorError
from orchestrator.regress.results import Lost, ResultBuilder, Side, add_inspected
from orchestrator.regress.sides import Proof, proof_of
from orchestrator.run.options import CompileOptions, TrialLimits
from orchestrator.run.records import CompileReport, OutcomeStatus
from orchestrator.run.statistics import inspected
from orchestrator.sets.subset import Subset
from orchestrator.supervise.compiling import compile as compile_set


class Prove(msgspec.Struct, frozen=True, tag=True):
    """A request: open the device, and say what its driver is."""

    selector: str


class Means(msgspec.Struct, frozen=True):
    """How a side compiles."""

    selector: str
    workers: int | None
    pipeline_s: float | None  # as in TrialLimits

    @property
    def options(self) -> CompileOptions:
        """Those of its compiles, which keep nothing."""
        limits = TrialLimits(pipeline_s=self.pipeline_s)
        return CompileOptions(
            selector=self.selector, workers=self.workers, mode="none", plan=False, trial_limits=limits
        )


class Measure(msgspec.Struct, frozen=True, tag=True):
    """A request: ask for the statistics of all pipelines of some sets, or for those and code of a few."""

    journals: dict[str, str]  # of each set, by its path
    means: Means
    side: Side
    result: str
    keys: dict[str, list[int]] | None = None  # of each set, by its path; None for all, without code


class TakeTime(msgspec.Struct, frozen=True, tag=True):
    """A request: compile sets without a cache, one pipeline a call.

    Its file has four rows: the set's place among the paths, the key, the driver's and the CPU time, ns.
    """

    paths: tuple[str, ...]
    means: Means
    result: str


class Measured(msgspec.Struct, frozen=True, tag=True):
    """The answer to the two: the file is there."""

    busy: float = 0.0  # share of the calls' time in which threads waited for a processor


SideAnswer = Proof | Measured | SentError
Request = Prove | Measure | TakeTime


def serve(channel: Channel[Request, SideAnswer]) -> None:
    """Answer one request after the other."""
    for request in channel:
        try:
            match request:
                case Prove():
                    channel.send(_proof(request))
                case Measure():
                    channel.send(_measured(request))
                case TakeTime():
                    channel.send(_timed(request))
        except OrchestratorError as error:
            channel.send(SentError.of(error))


def _proof(request: Prove) -> Proof:
    with closing(open_for_child("", request.selector, DeviceRequest())) as device:
        identity = device.identity
        info = f"{identity.driver_name} {identity.driver_info}".strip()
        return proof_of(identity.device_name, identity.driver_id, info, driver_manifests(os.environ))


def _measured(request: Measure) -> Measured:
    builder, lost = ResultBuilder(), list[Lost]()
    for path, journal in request.journals.items():
        options = evolve(request.means.options, statistics_journal=journal)
        if request.keys is not None:
            options = evolve(options, statistics_code=True, subset=Subset(keys=frozenset(request.keys[path])))
        gone = _lost(path, compile_set(path, options.selector, options=options))
        lost += gone
        keys = {each.key for each in gone}
        found = [each for each in inspected(Path(journal)) if each.key not in keys]
        add_inspected(builder, path, found)
        lost += [
            Lost(path, each.key, "untold", "created, but the driver tells nothing of its code")
            for each in found
            if not each.found.executables
        ]
    builder.done(request.side, lost).save(Path(request.result))
    return Measured()


def _lost(path: str, report: CompileReport) -> list[Lost]:
    culprits = () if report.supervision is None else report.supervision.culprits
    crashed = {int(each.key, 16) for each in culprits}
    return [
        Lost(
            application=path,
            key=int(each.key),
            status="crashed" if each.key in crashed else each.status.value.replace("_", " "),
            reason=each.reason,
        )
        for status in (OutcomeStatus.SKIPPED, OutcomeStatus.FAILED, OutcomeStatus.NOT_RUN)
        for each in report.pipelines.of_status(status)
    ]


def _timed(request: TakeTime) -> Measured:
    options = evolve(request.means.options, batch_limit=1)
    parts: list[npt.NDArray[np.int64]] = [np.zeros((4, 0), np.int64)]
    delay_ns = wall_ns = 0
    for place, path in enumerate(request.paths):
        for run in compile_set(path, options.selector, options=options).runs:
            calls = run.calls
            # One pipeline a call, except where a driver's failure was tried again.
            alone = np.repeat(calls.sizes == 1, calls.sizes)
            rows = np.repeat(np.arange(len(calls)), calls.sizes)[alone]
            keys = run.pipelines.keys[calls.indices[alone]].view(np.int64)
            places = np.full(len(rows), place, np.int64)
            parts.append(np.stack([places, keys, calls.driver_ns[rows], calls.cpu_ns[rows]]))
            delay_ns += int(calls.run_delay_ns.sum())
            wall_ns += int(calls.wall_ns.sum())
    np.save(request.result, np.concatenate(parts, axis=1))
    return Measured(delay_ns / max(1, wall_ns))
