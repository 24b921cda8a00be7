"""Runs a benchmark: one process a sample, in the order of its matrix, every row kept as soon as it is there.

Guarantees:
- results.jsonl is the whole state. Interrupted (Ctrl-C, a time limit, power), the same command goes on: rows
  that are there are not taken again, and warm runs start from the same caches. Rows of another set, device or
  driver are refused.
- A sample that crashes or hangs is a row that says so. Its arm is left alone from then on (and the control
  with its baseline), and tried again when the benchmark is run again.
- Under a time limit no round begins that would end after it, by all that is known. One that has begun is
  finished.
- No process of a sample outlives this one's interruption.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec
from attrs import define, evolve, field, frozen

from orchestrator.bench.jobs import Answer, Filled, FillJob, Job, Refused, SampleJob, run_in_process
from orchestrator.bench.matrix import Eta, Matrix, eta_of, next_round, remaining
from orchestrator.bench.rows import (
    Arm,
    Cell,
    FailedSample,
    Row,
    RowWriter,
    Sample,
    Start,
    failed_arms,
    read_rows,
    turn_of,
)
from orchestrator.bench.statistics import LEAST_PAIRS
from orchestrator.errors import NoDeviceError, OrchestratorError

RESULTS = "results.jsonl"
CACHES = "caches"
TIMELINES = "timelines"
WARM_PIPELINES_MOST = 1_600_000
WARM_SECONDS = 1.0
"""A warm run hands over as many pipelines as one worker takes in this time, up to the number above."""
WARM_SECONDS_MOST = 3.0
"""The same for all workers: on some drivers many take hits a hundred times slower than one."""


class BenchError(OrchestratorError):
    """A benchmark cannot begin or go on; the message says why and what to do.

    Attributes:
        next_step: What to do.
    """

    next_step = "name another directory with --out"


@frozen
class BenchProgress:
    """How far a benchmark is.

    Attributes:
        done: Samples that are there, those of earlier runs and warm-ups included.
        total: Samples of the matrix.
        round: The round at hand; -1 for the warm-up.
        now: What is measured now, in words.
        eta: How long the rest takes.
        left_s: Time left until the limit, s; None without one.
    """

    done: int
    total: int
    round: int
    now: str
    eta: Eta
    left_s: float | None


@frozen
class BenchOutcome:
    """How a benchmark ended.

    Attributes:
        rows: Every row of the file.
        done: Samples that are there.
        total: Samples of the matrix.
        resumed: Samples that were there before.
        stopped: Why it ended early, or "".
        failed: The last attempt of each arm that could not be measured.
        path: The file of rows.
    """

    rows: tuple[Row, ...]
    done: int
    total: int
    resumed: int
    stopped: str
    failed: tuple[FailedSample, ...]
    path: Path


def run_bench(
    matrix: Matrix,
    directory: Path,
    *,
    time_limit_s: float | None = None,
    warm_passes: int | None = None,
    on_progress: Callable[[BenchProgress], None] = lambda _: None,
    on_stage: Callable[[str], None] = lambda _: None,
    run_job: Callable[[Job], Answer] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> BenchOutcome:
    """Take all samples of a matrix that are not there yet.

    Args:
        matrix: What to measure.
        directory: Where results and caches are kept.
        time_limit_s: End early so that no more time than this is used.
        warm_passes: How often the set is in a warm run; None to choose so that it lasts long enough.
        on_progress: Called before each sample.
        on_stage: Called with what else is done.
        run_job: Does one job; a process of its own by default.
        clock: Tells the time that the limit is about, s.

    Returns:
        What is there now, also when it was interrupted (KeyboardInterrupt is taken as an end, not raised).

    Raises:
        BenchError: The directory holds results of something else, or a device cannot be measured.
        NoDeviceError: A device is not there.
        RowsError: The file of rows is damaged.
    """
    deadline = None if time_limit_s is None else clock() + time_limit_s
    caches, path = directory / CACHES, directory / RESULTS
    try:
        directory.mkdir(parents=True, exist_ok=True)
        caches.mkdir(mode=0o700, exist_ok=True)
        (directory / TIMELINES).mkdir(exist_ok=True)
    except OSError as error:
        raise BenchError(f"{directory}: cannot hold results: {error.strerror}: {error.filename}") from error
    run = _BenchRun(
        matrix=evolve(matrix, cache_directory=str(caches)),
        directory=directory,
        left_s=lambda: None if deadline is None else deadline - clock(),
        do=run_job or run_in_process,
        on_progress=on_progress,
        rows=read_rows(path) if path.exists() else [],
    )
    resumed = sum(isinstance(each, Sample) for each in run.rows)
    try:
        run.prepare(warm_passes, on_stage)
        with RowWriter(path) as writer:
            stopped = run.take(writer)
    except KeyboardInterrupt:
        stopped = "interrupted"
    wanted = {job.key for job in matrix.jobs()}
    done = sum(isinstance(each, Sample) and each.key in wanted for each in run.rows)
    return BenchOutcome(tuple(run.rows), done, len(wanted), resumed, stopped, failed_arms(run.rows), path)


@define(eq=False)
class _BenchRun:
    matrix: Matrix
    directory: Path
    left_s: Callable[[], float | None]
    do: Callable[[Job], Answer]
    on_progress: Callable[[BenchProgress], None]
    rows: list[Row] = field(factory=list)

    def prepare(self, warm_passes: int | None, on_stage: Callable[[str], None]) -> None:
        """Fill the caches for warm runs, and check that earlier rows are of the same set and driver."""
        passes: dict[str, int] = {}
        warm = Start.WARM in self.matrix.starts
        for device in self.matrix.devices:
            earlier = [each for each in self.rows if isinstance(each, Sample) and each.device == device]
            known = {each.passes for each in earlier if each.start == Start.WARM}
            compiles = warm and not known
            on_stage(f"{device}: compiling once, for warm runs" if compiles else f"{device}: opening")
            answer = self.do(
                FillJob(
                    set_paths=self.matrix.set_paths,
                    device=device,
                    workers=max(self.matrix.workers),
                    cache_directory=self.matrix.cache_directory,
                    compiles=warm,
                    reuse=bool(known),
                    profiles=self.matrix.profiles,
                )
            )
            if not isinstance(answer, Filled):
                cannot(f"{device} cannot be measured", answer)
            if answer.not_kept:
                raise BenchError(f"nothing warm can be measured on {device}: {answer.not_kept}")
            self._check_same(device, answer, earlier)
            # As before, so that rows can be compared.
            passes[device] = known.pop() if known else warm_passes or passes_for(answer)
        self.matrix = evolve(self.matrix, warm_passes=passes)

    def _check_same(self, device: str, found: Filled, earlier: Sequence[Sample]) -> None:
        for each in earlier:
            environment = each.environment
            if each.set_hash != found.set_hash:
                what = f"another set ({each.set_name}, hash {each.set_hash}; this one has {found.set_hash})"
            elif environment.pipeline_cache_uuid != found.identity.pipeline_cache_uuid.hex():
                now = found.identity
                what = (
                    f"another driver ({environment.driver_name} {environment.driver_info}, cache "
                    f"{environment.pipeline_cache_uuid}; now {now.driver_name} {now.driver_info}, cache "
                    f"{now.pipeline_cache_uuid.hex()})"
                )
            elif each.batch != (batch := self.matrix.batch_of(each.start)):
                what = f"another batch ({each.batch}; now {batch})"
            else:
                continue
            raise BenchError(
                f"the results there for {device} are of {what}: name another directory with --out"
            )

    def take(self, writer: RowWriter) -> str:
        """Take samples until none is left or time is up; why it ended early, or ""."""
        total = sum(1 for _ in self.matrix.jobs())
        waiting = remaining(self.matrix, self.rows)
        given_up: set[Arm] = set()
        while waiting := [each for each in waiting if each.arm not in given_up]:
            jobs = next_round(waiting, self.rows, self.left_s())
            if not jobs:
                return self._out_of_time(waiting)
            taken = {each.key for each in jobs}
            waiting = [each for each in waiting if each.key not in taken]
            for number, job in enumerate(jobs):
                if job.arm in given_up:
                    continue
                to_go, left = [*jobs[number:], *waiting], self.left_s()
                if job.round < 0 and left is not None and left < 0:
                    return self._out_of_time(to_go)  # a warm-up is no pair that could be torn
                eta = eta_of(to_go, self.rows)
                self.on_progress(
                    BenchProgress(total - len(to_go), total, job.round, job.arm.words, eta, left)
                )
                row = self._row(job)
                if isinstance(row, FailedSample):
                    given_up |= {job.arm, Arm(job.cell, True)}
                writer.write(row)
                self.rows.append(row)
        return ""

    def _out_of_time(self, to_go: Sequence[SampleJob]) -> str:
        jobs = list(self.matrix.jobs())
        conditions = {each.conditions for each in jobs}
        lacking = {each.conditions for each in to_go if each.round < LEAST_PAIRS}
        enough = self.matrix.samples >= LEAST_PAIRS
        return (
            f"the time limit: {len(to_go)} of {len(jobs)} samples are to go; {len(conditions - lacking)} of "
            f"{len(conditions)} groups have the {min(LEAST_PAIRS, self.matrix.samples)} pairs that "
            f"{'a verdict needs' if enough else 'were asked for'}"
        )

    def _row(self, job: SampleJob) -> Row:
        """Take a sample; what is there instead of one says which arm failed, and why."""
        timeline = timeline_path(self.directory, job.cell)
        if job.round >= 0 and not job.control and not timeline.exists():
            job = msgspec.structs.replace(job, trace=str(timeline))
        answer = self.do(job)
        if isinstance(answer, Sample):
            return answer
        return FailedSample(**turn_of(job), reason=reason_of(answer))


def passes_for(filled: Filled, seconds: float = WARM_SECONDS, seconds_most: float = WARM_SECONDS_MOST) -> int:
    """How often a set is in a warm run, so that the run is long enough to be measured.

    Args:
        filled: How fast the set is found in a cache.
        seconds: What the run should take one worker.
        seconds_most: What it may take all workers.
    """
    if not filled.pipelines or not filled.warm_rate:
        return 1
    slowest = filled.warm_rate_most * seconds_most
    wanted = min(filled.warm_rate * seconds, slowest, WARM_PIPELINES_MOST)
    return max(1, round(wanted / filled.pipelines))


def timeline_path(directory: Path, cell: Cell) -> Path:
    """Where the timeline of a cell's first sample is kept."""
    name = f"{cell.device or 'first'}-{cell.start}-{cell.duplicates:g}-{cell.workers}-{cell.mode}"
    return directory / TIMELINES / (re.sub(r"[^A-Za-z0-9.-]+", "-", name) + ".json")


def timelines_of(directory: Path, cells: Iterable[Cell]) -> dict[Cell, bytes]:
    """The timelines that are there, by cell."""
    return {cell: path.read_bytes() for cell in cells if (path := timeline_path(directory, cell)).exists()}


def reason_of(answer: Answer) -> str:
    """Why an answer is not the one that was asked for."""
    return answer.reason if isinstance(answer, Refused | FailedSample) else "an unexpected answer"


def cannot(what: str, answer: Answer) -> NoReturn:
    """Raise the error that an answer is.

    Raises:
        NoDeviceError: The device is not there.
        BenchError: Anything else.
    """
    if isinstance(answer, Refused) and answer.kind == NoDeviceError.__name__:
        raise NoDeviceError(answer.reason)
    raise BenchError(f"{what}: {reason_of(answer)}")
