"""Runs a benchmark: one process per sample, in the order of the matrix. Each row is saved at once.

Guarantees:
- results.jsonl is the whole state. After an interruption (Ctrl-C, time limit, power failure) the same command
  resumes: it takes only rounds that are not whole, and warm runs start from the same caches. Rows of another
  set, device, driver or machine are an error.
- A sample that crashes or hangs, or is of a set, driver or machine that changed meanwhile, becomes a row with
  the reason. Its arm is skipped for the rest of the run (a baseline together with its control), and tried
  again in the next run, before other arms of its round.
- With a time limit, no round begins that is expected to end too late; a round that has begun is finished.
- Sample processes end when this process is interrupted.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
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
    RowsError,
    RowWriter,
    Sample,
    Start,
    counted_samples,
    current_samples,
    device_text,
    failed_arms,
    read_rows,
    turn_of,
)
from orchestrator.bench.statistics import LEAST_PAIRS
from orchestrator.bench.trace import events_of
from orchestrator.errors import NoDeviceError, OrchestratorError
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.files.writer_lock import writer_lock

RESULTS = "results.jsonl"
CACHES = "caches"
TIMELINES = "timelines"
WARM_PIPELINES_MOST = 1_600_000
WARM_SECONDS = 1.0
"""A warm run lasts this long with one worker, unless it would exceed WARM_PIPELINES_MOST."""
WARM_SECONDS_MOST = 3.0
"""Limit for all workers: on some drivers, many workers get hits a hundred times slower than one."""


_MACHINE = {
    "cores": "number of processors",
    "processor": "processor",
    "python": "version of Python",
    "orchestrator": "version of orchestrator",
}
"""What of an `Environment` may not change between the runs of a benchmark, in words."""


class BenchError(OrchestratorError):
    """A benchmark cannot begin or resume; the message says why and what to do.

    Attributes:
        next_step: What to do.
    """

    def __init__(self, message: str, next_step: str = "name another directory with --out") -> None:
        super().__init__(message)
        self.next_step = next_step


@frozen
class BenchProgress:
    """The progress of a benchmark.

    Attributes:
        done: Samples so far, including earlier runs and warm-ups.
        total: Samples of the matrix.
        round: The current round; -1 for the warm-up.
        now: The current arm, in words.
        eta: Estimated time to go.
        left_s: Time left until the limit, s; None without a limit.
    """

    done: int
    total: int
    round: int
    now: str
    eta: Eta
    left_s: float | None


@frozen
class BenchOutcome:
    """The result of a benchmark.

    Attributes:
        rows: All rows of the file.
        done: Samples of the matrix that exist.
        total: Samples of the matrix.
        resumed: Of these, samples from earlier runs.
        stopped: Why it ended early, or "".
        failed: The last attempt of each arm of the matrix that could not be measured.
        path: The file of rows.
        lost: The error that a sample could not be written with, or None.
    """

    rows: tuple[Row, ...]
    done: int
    total: int
    resumed: int
    stopped: str
    failed: tuple[FailedSample, ...]
    path: Path
    lost: RowsError | None = None


def run_bench(
    matrix: Matrix,
    directory: Path,
    *,
    time_limit_s: float | None = None,
    warm_passes: int | None = None,
    on_progress: Callable[[BenchProgress], None] = lambda _: None,
    on_stage: Callable[[str], None] = lambda _: None,
    run_job: Callable[[Job], Answer] = run_in_process,
    clock: Callable[[], float] = time.monotonic,
) -> BenchOutcome:
    """Take all missing samples of a matrix. Blocking.

    Args:
        matrix: The samples to take.
        directory: Directory for results and caches.
        time_limit_s: Stop within this time.
        warm_passes: How many times a warm run repeats the set; None to choose.
        on_progress: Called before each sample.
        on_stage: Called with the name of each other stage.
        run_job: Does one job; by default in its own process.
        clock: The clock for the time limit, s.

    Returns:
        The results so far, also after an interruption: KeyboardInterrupt ends the benchmark and is not
        raised.

    Raises:
        BenchError: The directory holds results of something else, or a device cannot be measured.
        NoDeviceError: There is no such device.
        RowsError: The file of rows is damaged.
    """
    deadline = None if time_limit_s is None else clock() + time_limit_s
    caches, path = directory / CACHES, directory / RESULTS
    try:
        directory.mkdir(parents=True, exist_ok=True)
        caches.mkdir(mode=0o700, exist_ok=True)
        (directory / TIMELINES).mkdir(exist_ok=True)
    except OSError as error:
        raise BenchError(f"{error.filename}: cannot be a directory for results: {error.strerror}") from error
    with writer_lock(path, wait_s=0) as is_alone:
        if not is_alone:
            raise BenchError(
                f"{directory}: another process measures into it", "wait for it, or name another --out"
            )
        run = _BenchRun(
            matrix=evolve(matrix, cache_directory=str(caches)),
            directory=directory,
            left_s=lambda: None if deadline is None else deadline - clock(),
            do=run_job,
            on_progress=on_progress,
            rows=read_rows(path) if path.exists() else [],
        )
        lost = None
        try:
            run.prepare(warm_passes, on_stage)
            with RowWriter(path) as writer:
                try:
                    stopped = run.take(writer)
                except RowsError as error:
                    stopped, lost = "a sample could not be written", error
        except KeyboardInterrupt:
            stopped = "interrupted"
    jobs = list(matrix.jobs())
    wanted, arms = {job.key for job in jobs}, {job.arm for job in jobs}
    done = {each.key: each.run for each in current_samples(run.rows) if each.key in wanted}
    resumed = sum(each != run.name for each in done.values())
    failed = tuple(each for each in failed_arms(run.rows) if each.arm in arms)
    return BenchOutcome(tuple(run.rows), len(done), len(wanted), resumed, stopped, failed, path, lost)


@define(eq=False)
class _BenchRun:
    matrix: Matrix
    directory: Path
    left_s: Callable[[], float | None]
    do: Callable[[Job], Answer]
    on_progress: Callable[[BenchProgress], None]
    rows: list[Row] = field(factory=list)
    name: str = field(factory=lambda: os.urandom(8).hex())
    found: dict[str, Filled] = field(factory=dict)

    def prepare(self, warm_passes: int | None, on_stage: Callable[[str], None]) -> None:
        passes: dict[str, int] = {}
        warm = any(job.start == Start.WARM for job in self.matrix.jobs())
        for device in self.matrix.devices:
            earlier = [each for each in self.rows if isinstance(each, Sample) and each.device == device]
            known = {each.passes for each in earlier if each.start == Start.WARM}
            compiles = warm and not known
            name = device_text(device)
            on_stage(f"{name}: compiling once, for warm runs" if compiles else f"{name}: opening")
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
                cannot(f"{name} cannot be measured", answer)
            if answer.not_kept:
                unkept = f"nothing warm can be measured on {name}: {answer.not_kept}"
                raise BenchError(unkept, "measure it with --start cold")
            if compiles and (left := self.left_s()) is not None and left <= 0:
                raise BenchError(
                    f"{name}: the time limit passed while the set was compiled once for warm runs, before "
                    "any sample; the same command would begin with that again",
                    "allow more with --time-limit, or measure with --start cold",
                )
            self._check_same(device, answer, earlier, warm_passes)
            self.found[device] = answer
            # The same as in earlier rows, so that they can be compared.
            passes[device] = known.pop() if known else warm_passes or passes_for(answer)
        self.matrix = evolve(self.matrix, warm_passes=passes)

    def _check_same(
        self, device: str, found: Filled, earlier: Sequence[Sample], warm_passes: int | None
    ) -> None:
        for each in earlier:
            what, batch = other_than(each, found), self.matrix.batch_of(each.start)
            if not what and each.batch != batch:
                what = f"another batch ({each.batch}; now {batch})"
            if not what and each.start == Start.WARM and each.passes != (warm_passes or each.passes):
                what = f"another number of warm passes ({each.passes}; now {warm_passes})"
            if what:
                raise BenchError(f"the results there for {device_text(device)} are of {what}")

    def take(self, writer: RowWriter) -> str:
        total = sum(1 for _ in self.matrix.jobs())
        given_up: set[Arm] = set()
        while waiting := remaining(self.matrix, self.rows, given_up):
            jobs = next_round(waiting, self.rows, self.left_s())
            if not jobs:
                return self._out_of_time(waiting)
            taken = {each.key for each in jobs}
            waiting = [each for each in waiting if each.key not in taken]
            # What failed comes first: if it fails again, nothing else is taken again.
            failed = {each.arm for each in failed_arms(self.rows)}
            jobs = tuple(sorted(jobs, key=lambda each: each.arm not in failed))
            for number, job in enumerate(jobs):
                if job.arm in given_up:
                    continue
                to_go, left = [*jobs[number:], *waiting], self.left_s()
                if job.round < 0 and left is not None and left < 0:
                    return self._out_of_time(to_go)  # stopping within a warm-up splits no pair
                eta = eta_of(to_go, self.rows)
                self.on_progress(
                    BenchProgress(total - len(to_go), total, job.round, job.arm.words, eta, left)
                )
                row = self._row(job)
                if isinstance(row, FailedSample):
                    given_up |= {job.arm, Arm(job.cell, True)}
                writer.write(row)
                self.rows.append(row)
                if isinstance(row, FailedSample) and number == 0:
                    break
        return ""

    def _out_of_time(self, to_go: Sequence[SampleJob]) -> str:
        jobs = list(self.matrix.jobs())
        conditions = {each.conditions for each in jobs}
        lacking = {each.conditions for each in to_go if each.round < LEAST_PAIRS}
        enough = self.matrix.samples >= LEAST_PAIRS
        return (
            f"the time limit: {len(to_go)} of {len(jobs)} samples are missing; {len(conditions - lacking)} "
            f"of {len(conditions)} groups have the {min(LEAST_PAIRS, self.matrix.samples)} pairs that "
            f"{'a verdict needs' if enough else 'were asked for'}"
        )

    def _is_measured(self, cell: Cell) -> bool:
        return any(each.cell == cell and not each.control for each in counted_samples(self.rows))

    def _row(self, job: SampleJob) -> Row:
        job = msgspec.structs.replace(job, run=self.name)
        timeline = timeline_path(self.directory, job.cell)
        if job.round >= 0 and not job.control and not (timeline.exists() and self._is_measured(job.cell)):
            job = msgspec.structs.replace(job, trace=str(timeline))
        answer = self.do(job)
        if not isinstance(answer, Sample):
            return FailedSample(**turn_of(job), reason=reason_of(answer))
        if what := other_than(answer, self.found[job.device]):
            return FailedSample(**turn_of(job), reason=f"what is measured changed: this sample is of {what}")
        return answer


def other_than(sample: Sample, found: Filled) -> str:
    """What a sample is of, in words, if not of the set, driver and machine that were found; else ""."""
    environment, now = sample.environment, found.identity
    if sample.set_hash != found.set_hash:
        return f"another set ({sample.set_name}, hash {sample.set_hash}, not {found.set_hash})"
    if environment.pipeline_cache_uuid != now.pipeline_cache_uuid.hex():
        return (
            f"another driver ({environment.driver_name} {environment.driver_info}, cache "
            f"{environment.pipeline_cache_uuid}, not {now.driver_name} {now.driver_info}, cache "
            f"{now.pipeline_cache_uuid.hex()})"
        )
    for name, words in _MACHINE.items():
        if getattr(environment, name) != getattr(found, name):
            return f"another {words} ({getattr(environment, name)}, not {getattr(found, name)})"
    return ""


def passes_for(filled: Filled, seconds: float = WARM_SECONDS, seconds_most: float = WARM_SECONDS_MOST) -> int:
    """How many times a warm run must repeat a set to last long enough.

    Args:
        filled: The rates of cache hits.
        seconds: Intended time of the run with one worker, s.
        seconds_most: Limit of its time with all workers, s.
    """
    if not filled.pipelines or not filled.warm_rate:
        return 1
    slowest = filled.warm_rate_most * seconds_most
    wanted = min(filled.warm_rate * seconds, slowest, WARM_PIPELINES_MOST)
    return max(1, round(wanted / filled.pipelines))


def timeline_path(directory: Path, cell: Cell) -> Path:
    """The file for the timeline of a cell's first sample."""
    name = f"{cell.device or 'first'}-{cell.start}-{cell.duplicates:g}-{cell.workers}-{cell.mode}"
    return directory / TIMELINES / (re.sub(r"[^A-Za-z0-9.-]+", "-", name) + ".json")


def timelines_of(directory: Path, cells: Iterable[Cell]) -> dict[Cell, bytes]:
    """The existing timelines by cell, without those that are damaged."""
    found = {}
    for cell in cells:
        with suppress(OSError, ValueError):
            timeline = timeline_path(directory, cell).read_bytes()
            events_of(timeline)
            found[cell] = timeline
    return found


def reason_of(answer: Answer) -> str:
    """The reason of an answer other than the expected one."""
    return answer.reason if isinstance(answer, Refused) else "an unexpected answer"


def cannot(what: str, answer: Answer) -> NoReturn:
    """Raise the error for an answer other than the expected one.

    Raises:
        NoDeviceError: There is no such device.
        BenchError: Anything else.
    """
    if isinstance(answer, Refused) and answer.kind == NoDeviceError.__name__:
        raise NoDeviceError(answer.reason)
    step = "`orchestrator list SET` shows what the set needs, `orchestrator devices` what each device offers"
    if isinstance(answer, Refused) and answer.kind in ("crash", "timeout"):
        step = "`orchestrator compile SET` finds what ends the driver's process; then it is left out here too"
    elif isinstance(answer, Refused) and answer.kind == SaveError.__name__:
        step = "make room there, or name another place: --out of `bench`, TMPDIR for `calibrate`"
    raise BenchError(f"{what}: {reason_of(answer)}", step)
