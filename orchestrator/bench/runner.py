"""Runs a benchmark: the samples of a matrix in their order, one process each. Each row is saved at once.

    warm-up   A B C A'      for each group of cells with the same conditions; A' is the A/A control
    round 0   A B C A'
    round 1   B C A' A      rotated by one, so that no mode always comes first

Guarantees: results.jsonl is the whole state; after an interruption the same command takes only rounds that
are not whole. Rows of another set, device, driver, environment or machine are an error. A sample that fails
becomes a row with the reason, and its arm is skipped until the next run (a baseline with its control). With a
time limit, no round begins that is expected to end too late.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TypeVar

import msgspec
from attrs import define, evolve, field, frozen

from orchestrator.bench.contention import comparisons_of
from orchestrator.bench.jobs import (
    Answer,
    BenchError,
    Filled,
    FillJob,
    Job,
    MeasurementProgress,
    SampleJob,
    cannot,
    other_than,
    reason_of,
    run_in_process,
)
from orchestrator.bench.rows import (
    Arm,
    Cell,
    Conditions,
    FailedSample,
    Row,
    RowsError,
    RowWriter,
    Sample,
    Start,
    Turn,
    arm_text,
    counted_samples,
    current_samples,
    device_text,
    failed_arms,
    fields_of,
    read_rows,
)
from orchestrator.bench.statistics import LEAST_PAIRS, MORE_ROUNDS
from orchestrator.bench.trace import TraceEvent, events_of
from orchestrator.devices.modes import CacheMode
from orchestrator.run.options import BATCH_LIMIT, available_workers
from orchestrator.stores.files.writer_lock import writer_lock

RESULTS = "results.jsonl"
CACHES = "caches"
TIMELINES = "timelines"
WARM_SECONDS = 1.0, 3.0
"""A warm run lasts this long with one worker, and at most so long with all."""

_T = TypeVar("_T")


# --- the samples of a benchmark and their order; pure


def in_turn(arms: Sequence[_T], number: int) -> tuple[_T, ...]:
    """The arms of a round, rotated by the number of the round; a warm-up (-1) is not rotated."""
    turn = max(number, 0) % len(arms)
    return (*arms[turn:], *arms[:turn])


@frozen
class Matrix:
    """The options of a benchmark."""

    set_paths: tuple[str, ...]  # The archives, or one manifest.
    devices: tuple[str, ...]  # Selectors.
    # Cache topologies. The baseline is shared if it is one of them, else the first one.
    modes: tuple[CacheMode, ...]
    workers: tuple[int, ...]
    starts: tuple[Start, ...]
    duplicates: tuple[float, ...]  # Shares of the pipelines that a run creates a second time, 0 to 1.
    samples: int  # Number of rounds after the warm-up; see `most_rounds`.
    batch: int = BATCH_LIMIT  # Largest number of pipelines in a call of a cold run.
    # The same for a warm run. With small calls, a warm run would measure the interpreter.
    warm_batch: int = BATCH_LIMIT
    cache_directory: str = ""  # Directory of the caches for warm runs.
    # How many times a warm run repeats the set, by device and mode.
    warm_passes: Mapping[tuple[str, CacheMode], int] = field(factory=dict)
    cores: int = field(factory=available_workers)  # More workers than these are not judged by default.
    profiles: str = ""  # The directory of key profiles and quarantines, as for `compile`; "" for none.

    def batch_of(self, start: Start) -> int:
        """Largest number of pipelines in a call of a run with this start."""
        return self.warm_batch if start == Start.WARM else self.batch

    def most_rounds(self, conditions: Conditions) -> int:
        """Rounds while a mode is undecided: more than `samples`, if these and the cores may decide."""
        more = (
            self.samples >= LEAST_PAIRS
            and conditions.workers <= self.cores
            and len(self.modes_of(conditions)) > 1
        )
        return self.samples * (MORE_ROUNDS if more else 1)

    def modes_of(self, conditions: Conditions) -> list[CacheMode]:
        """The modes that are measured; a run without a cache cannot be warm."""
        return [each for each in self.modes if conditions.start == Start.COLD or each != CacheMode.NONE]

    def jobs(self, settled: Collection[Conditions] = ()) -> Iterator[SampleJob]:
        """Every sample, in order; warm-ups first. Where all modes are decided, `samples` rounds do."""
        groups = [
            Conditions(device=device, start=start, duplicates=duplicates, workers=workers)
            for device in self.devices
            for start in self.starts
            for duplicates in self.duplicates
            for workers in self.workers
        ]
        rounds = {each: self.samples if each in settled else self.most_rounds(each) for each in groups}
        for number in range(-1, max(rounds.values(), default=0)):
            for conditions in groups:
                if number < rounds[conditions]:
                    yield from self._round(conditions, number)

    def _round(self, conditions: Conditions, number: int) -> Iterator[SampleJob]:
        warm, modes = conditions.start == Start.WARM, self.modes_of(conditions)
        if not modes:
            return
        baseline = CacheMode.SHARED if CacheMode.SHARED in modes else modes[0]
        for mode, control in in_turn([*((mode, False) for mode in modes), (baseline, True)], number):
            yield SampleJob(
                device=conditions.device,
                start=conditions.start,
                duplicates=conditions.duplicates,
                workers=conditions.workers,
                mode=mode,
                control=control,
                round=number,
                set_paths=self.set_paths,
                batch=self.batch_of(conditions.start),
                passes=self.warm_passes.get((conditions.device, mode), 1) if warm else 1,
                cache_directory=self.cache_directory if warm else "",
                profiles=self.profiles,
            )


def settled(matrix: Matrix, rows: Sequence[Row], without: Collection[Arm] = ()) -> set[Conditions]:
    """The conditions under which the samples so far decide about every mode, but those in `without`."""
    found = set[Conditions]()
    for each in comparisons_of(counted_samples(rows)):
        lost = {arm.mode for arm in without if arm.conditions == each.conditions}
        wanted = {*matrix.modes_of(each.conditions)} - lost - {each.baseline}
        if all(mode in each.throughput and each.throughput[mode].decided for mode in wanted):
            found.add(each.conditions)
    return found


def remaining(matrix: Matrix, rows: Sequence[Row], without: Collection[Arm] = ()) -> list[SampleJob]:
    """The warm-ups without a sample, and all jobs of each round that no single run took whole.

    So the samples of a pair are neighbours, also after an interruption or where a mode was added. The arms in
    `without` are left out.
    """
    there = {each.key: each.run for each in current_samples(rows)}
    found: list[SampleJob] = []
    for jobs in _by_round(
        job for job in matrix.jobs(settled(matrix, rows, without)) if job.arm not in without
    ):
        missing = [job for job in jobs if job.key not in there]
        one_run = jobs[0].round < 0 or len({there.get(job.key) for job in jobs}) == 1
        found += missing if one_run else jobs
    return found


def _by_round(jobs: Iterable[SampleJob]) -> list[tuple[SampleJob, ...]]:
    found: dict[tuple[int, Conditions], list[SampleJob]] = {}
    for job in jobs:
        found.setdefault((job.round, job.conditions), []).append(job)
    return [tuple(each) for each in found.values()]


def eta_of(jobs: Sequence[SampleJob], rows: Sequence[Row]) -> float | None:
    """The estimated time of jobs by the samples so far, s; None if that of one is unknown.

    A cell without samples is taken for as slow as the slowest cell of its device and start, and slower by as
    many times as it has fewer workers.
    """
    took: dict[Cell, list[float]] = {}
    for row in rows:
        if isinstance(row, Sample):
            took.setdefault(row.cell, []).append(row.process_s)
    known = {cell: median(values) for cell, values in took.items()}
    total = 0.0
    for job in jobs:
        near = (
            value * max(1, other.workers / job.workers)
            for other, value in known.items()
            if (other.device, other.start) == (job.device, job.start)
        )
        estimated = known[job.cell] if job.cell in known else max(near, default=None)
        if estimated is None:
            return None
        total += estimated
    return total


def next_round(
    waiting: Sequence[SampleJob], rows: Sequence[Row], left_s: float | None
) -> tuple[SampleJob, ...]:
    """The samples to take next: one round of one group; none if no round would end in the time left.

    With a limit, one group after the other gets the pairs that a verdict needs, those with the most workers
    first; further rounds come last.
    """
    rounds = _by_round(waiting)
    if left_s is None:
        return rounds[0] if rounds else ()
    rounds.sort(key=lambda each: (_rank(each[0]), each[0].section))
    return next((each for each in rounds if left_s > 0 and (eta_of(each, rows) or 0.0) <= left_s), ())


def _rank(job: SampleJob) -> tuple[bool, bool, int]:
    """Warm-ups, which show how long a sample takes; most workers; last what no verdict needs."""
    return job.round >= LEAST_PAIRS, job.round >= 0, -job.workers


# --- taking them


@frozen
class BenchOutcome:
    """The result of a benchmark."""

    rows: tuple[Row, ...]  # All rows of the file.
    done: int  # Samples of the matrix that exist.
    total: int  # Samples of the matrix; of an undecided group the most that are taken of it.
    resumed: int  # Of `done`, samples from earlier runs.
    stopped: str  # Why it ended early, or "".
    failed: tuple[FailedSample, ...]  # The last attempt of each arm of the matrix that could not be measured.
    path: Path  # The file of rows.
    lost: RowsError | None = None  # The error that a sample could not be written with, or None.


def run_bench(
    matrix: Matrix,
    directory: Path,
    *,
    time_limit_s: float | None = None,
    warm_passes: int | None = None,
    on_progress: Callable[[MeasurementProgress], None] = lambda _: None,
    on_stage: Callable[[str], None] = lambda _: None,
    run_job: Callable[[Job], Answer] = run_in_process,
    clock: Callable[[], float] = time.monotonic,
) -> BenchOutcome:
    """Take all missing samples of a matrix into a directory for results and caches. Blocking.

    The directory may hold results of an earlier call. It stops within `time_limit_s`, s, by `clock`. A warm
    run repeats the set `warm_passes` times; None to choose. `on_progress` is called before each sample,
    `on_stage` with the name of each other stage. `run_job` does one job.

    Returns:
        The results so far, also after a KeyboardInterrupt, which is not raised.

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
        stopped, lost = "", None
        try:
            run.prepare(warm_passes, on_stage)
            with RowWriter(path) as writer:
                try:
                    stopped = run.take(writer)
                except RowsError as error:
                    stopped, lost = "a sample could not be written", error
        except KeyboardInterrupt:
            stopped = "interrupted"
    jobs = list(matrix.jobs(settled(matrix, run.rows)))
    wanted, arms = {job.key for job in jobs}, {job.arm for job in jobs}
    done = [each.run for each in current_samples(run.rows) if each.key in wanted]
    resumed = sum(each != run.name for each in done)
    failed = tuple(each for each in failed_arms(run.rows) if each.arm in arms)
    return BenchOutcome(tuple(run.rows), len(done), len(wanted), resumed, stopped, failed, path, lost)


@define(eq=False)
class _BenchRun:
    matrix: Matrix
    directory: Path
    left_s: Callable[[], float | None]
    do: Callable[[Job], Answer]
    on_progress: Callable[[MeasurementProgress], None]
    rows: list[Row]
    name: str = field(factory=lambda: os.urandom(8).hex())
    found: dict[str, Filled] = field(factory=dict)

    def prepare(self, warm_passes: int | None, on_stage: Callable[[str], None]) -> None:
        passes: dict[tuple[str, CacheMode], int] = {}
        warm = any(job.start == Start.WARM for job in self.matrix.jobs())
        for device in self.matrix.devices:
            earlier = [each for each in self.rows if isinstance(each, Sample) and each.device == device]
            known = {each.mode: each.passes for each in earlier if each.start == Start.WARM}
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
            usual = answer.passes(*WARM_SECONDS)
            for mode in self.matrix.modes:
                fallback = min(known.values()) if known else warm_passes or usual[mode]
                passes[device, mode] = known.get(mode, fallback)
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
        """Take what is missing; returns why it ended early, or ""."""
        given_up: set[Arm] = set()
        while waiting := remaining(self.matrix, self.rows, given_up):
            total = sum(1 for _ in self.matrix.jobs(settled(self.matrix, self.rows, given_up)))
            jobs = next_round(waiting, self.rows, self.left_s())
            if not jobs:
                return f"the time limit: {len(waiting)} of {total} samples are missing"
            # What failed comes first: if it fails again, nothing else is taken again.
            failed = {each.arm for each in failed_arms(self.rows)}
            to_go = [*sorted(jobs, key=lambda each: each.arm not in failed)]
            to_go += [each for each in waiting if each not in jobs]
            for number in range(len(jobs)):
                job, left = to_go[0], self.left_s()
                if job.round < 0 and left is not None and left < 0:
                    # Stopping within a warm-up splits no pair.
                    return f"the time limit: {len(to_go)} of {total} samples are missing"
                if job.arm not in given_up:
                    which = "warm-up" if job.round < 0 else f"round {job.round + 1}"
                    progress = total - len(to_go), total, f"{which}: {arm_text(job)}"
                    self.on_progress(MeasurementProgress(*progress, eta_of(to_go, self.rows), left))
                    row = self._row(job)
                    writer.write(row)
                    self.rows.append(row)
                    if isinstance(row, FailedSample):
                        given_up |= {job.arm, msgspec.structs.replace(job.arm, control=True)}
                        if number == 0:
                            break
                to_go.pop(0)
        return ""

    def _row(self, job: SampleJob) -> Row:
        timeline = timeline_path(self.directory, job)
        measured = any(each.arm == job.arm for each in counted_samples(self.rows))
        traced = job.round >= 0 and not job.control and not (measured and timeline.exists())
        job = msgspec.structs.replace(job, run=self.name, trace=str(timeline) if traced else "")
        answer = self.do(job)
        what = other_than(answer, self.found[job.device]) if isinstance(answer, Sample) else ""
        if isinstance(answer, Sample) and not what:
            return answer
        changed = f"what is measured changed: this sample is of {what}"
        return FailedSample(**fields_of(Turn, job), reason=changed if what else reason_of(answer))


def timeline_path(directory: Path, cell: Cell) -> Path:
    """The file for the timeline of a cell's first sample."""
    name = f"{cell.device or 'first'}-{cell.start}-{cell.duplicates:g}-{cell.workers}-{cell.mode}"
    return directory / TIMELINES / (re.sub(r"[^A-Za-z0-9.-]+", "-", name) + ".json")


def timelines_of(directory: Path, cells: Iterable[Cell]) -> dict[Cell, list[TraceEvent]]:
    """The existing timelines by cell, without those that are damaged."""
    found = {}
    for cell in cells:
        with suppress(OSError, ValueError):
            found[cell] = events_of(timeline_path(directory, cell).read_bytes())
    return found
