"""The rows of a benchmark and their file, which holds one JSON object per line.

A `Sample` is one run in its own process. Its row records everything that affects the figures: driver, device,
processor, mode, workers, set, versions, and how the driver's own caches were disabled.

Guarantees: writers only append. Readers skip a last line that no line break ends, as writers cut it off; any
other damaged line is an error that names it. New fields have defaults and no field changes its meaning, so
old files stay readable.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from orchestrator.devices.device import CacheMode
from orchestrator.errors import OrchestratorError
from orchestrator.sets.inputs import InputError, read_input

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
"""The quantiles of a `Latencies`; the last one is the maximum."""
SLOWEST = 10
"""Number of slowest pipelines that a sample lists."""


_LARGEST = (1 << 63) - 1  # a row from elsewhere may hold numbers that no float can
_LONGEST_S = 1e9
Whole = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
"""A number of things, bytes or nanoseconds."""
Positive = Annotated[int, msgspec.Meta(ge=1, le=_LARGEST)]
"""The same, at least one."""


class RowsError(OrchestratorError):
    """A file of rows cannot be used; the message names the file and the line.

    Attributes:
        next_step: What to do.
    """

    def __init__(
        self,
        message: str,
        next_step: str = "name a directory that `orchestrator bench --out` wrote, or the results.jsonl in it",
    ) -> None:
        super().__init__(message)
        self.next_step = next_step


class Start(enum.StrEnum):
    """Contents of the caches when a run starts: empty (COLD), or the whole set (WARM)."""

    COLD = "cold"
    WARM = "warm"


def counted(count: int, noun: str) -> str:
    """A number with its noun, such as "1 worker" or "4 workers"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def device_text(selector: str) -> str:
    """A selector in words; an empty one selects the first device."""
    return selector or "the first device"


class Conditions(NamedTuple):
    """What two modes must have in common to be compared.

    Attributes:
        device: The selector.
        start: Contents of the caches.
        duplicates: Share of the pipelines that the run creates a second time, 0 to 1.
        workers: Number of workers.
    """

    device: str
    start: Start
    duplicates: float
    workers: int

    @property
    def copies(self) -> str:
        """The share of duplicates as the end of a list, such as ", 50% duplicates"; "" without duplicates."""
        return f", {self.duplicates:.0%} duplicates" if self.duplicates else ""


class Cell(NamedTuple):
    """A point of the matrix: `Conditions` and a mode."""

    device: str
    start: Start
    duplicates: float
    workers: int
    mode: CacheMode

    @property
    def conditions(self) -> Conditions:
        """The cell without its mode."""
        return Conditions(*self[:4])


class Arm(NamedTuple):
    """One measurement of a round: a cell, or the second measurement of the baseline (the A/A control)."""

    cell: Cell
    control: bool

    @property
    def words(self) -> str:
        """The arm in words, such as: radv:navi21, cold, 4 workers, shared (control)."""
        cell = self.cell
        words = f"{device_text(cell.device)}, {cell.start}, {counted(cell.workers, 'worker')}, {cell.mode}"
        return words + cell.conditions.copies + (" (control)" if self.control else "")


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """An arm in a round: the identity of a sample within a benchmark.

    Attributes:
        device: The selector.
        start: Contents of the caches.
        duplicates: Share of the pipelines that the run creates a second time, 0 to 1.
        workers: Number of workers.
        mode: The cache topology.
        control: Whether this is the second arm of the A/A control.
        round: Number of the round, from 0; -1 for the warm-up, which no figure includes.
        run: Identifies the call of `bench` that takes it; "" in rows of earlier versions, which count as one.
    """

    device: str
    start: Start
    duplicates: Annotated[float, msgspec.Meta(ge=0, le=1)]
    workers: Positive
    mode: CacheMode
    control: bool = False
    round: Annotated[int, msgspec.Meta(ge=-1, le=_LARGEST)] = 0
    run: str = ""

    @property
    def cell(self) -> Cell:
        """The point of the matrix."""
        return Cell(self.device, self.start, self.duplicates, self.workers, self.mode)

    @property
    def arm(self) -> Arm:
        """The cell, and whether this is the control."""
        return Arm(self.cell, self.control)

    @property
    def conditions(self) -> Conditions:
        """The conditions of its cell."""
        return self.cell.conditions

    @property
    def key(self) -> tuple[Arm, int]:
        """Arm and round."""
        return self.arm, self.round

    @property
    def pair(self) -> tuple[str, int]:
        """Run and round: what was taken side by side has both in common."""
        return self.run, self.round


def turn_of(turn: Turn) -> dict[str, Any]:
    """The fields of `Turn` alone, to construct another subclass of it."""
    return {name: getattr(turn, name) for name in Turn.__struct_fields__}


class Latencies(msgspec.Struct, frozen=True):
    """Distribution of the driver time per pipeline.

    Attributes:
        count: Number of pipelines.
        quantiles_ns: The values at `QUANTILES`; empty without pipelines.
    """

    count: Whole = 0
    quantiles_ns: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        expected = len(QUANTILES) if self.count else 0
        if len(self.quantiles_ns) != expected:
            raise ValueError(f"{len(self.quantiles_ns)} quantiles of {self.count} pipelines, not {expected}")

    @classmethod
    def of(cls, durations_ns: npt.NDArray[np.uint64]) -> Latencies:
        """Sum up durations, shape (n,), ns."""
        if not len(durations_ns):
            return cls()
        return cls(len(durations_ns), tuple(float(each) for each in np.quantile(durations_ns, QUANTILES)))


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Device, driver and machine of a sample. Fields without a description have Vulkan's names and values.

    Attributes:
        pipeline_cache_uuid: VkPhysicalDeviceProperties::pipelineCacheUUID, hex.
        driver_caches: How the driver's own caches were disabled.
        opened_as: The request that opened the device of each feature group, in words.
        cores: Processors that the process may use.
        processor: Model name of the processor.
        load_average: Load average of the machine over the minute before the sample.
        python: Version of Python.
        orchestrator: Version of this project.
    """

    driver_name: str
    driver_info: str
    driver_version: int
    driver_id: int
    device_name: str
    vendor_id: int
    device_id: int
    pipeline_cache_uuid: str
    driver_caches: str
    cores: Whole
    processor: str
    load_average: float
    python: str
    orchestrator: str
    opened_as: tuple[str, ...] = ()


class SlowPipeline(msgspec.Struct, frozen=True):
    """One of the slowest pipelines of a sample.

    Attributes:
        key: Its hash in the set, 16 hex digits.
        kind: Its `PipelineKind`.
        driver_ns: Driver time.
    """

    key: str
    kind: str
    driver_ns: Whole


class Sample(Turn, frozen=True, kw_only=True, tag_field="row", tag="sample"):
    """One run in its own process. Times are sums over all workers, unless described as elapsed time.

    Attributes:
        batch: Largest number of pipelines in a call.
        order: Order in which workers took pipelines, a value of `Order`; `compile_set` uses "cost".
        passes: How many times the run creates the whole set; more than once so that a warm run lasts.
        set_name: File names of the set.
        set_hash: Hash over the names of its records, 16 hex digits.
        set_pipelines: Pipelines of the set.
        environment: Device, driver and machine.
        started_at: Seconds since 1970.
        process_s: Elapsed time of the whole process.
        pipelines: Pipelines that the run handed to the driver.
        created: Of these, created.
        hits: Of these, found in the application's cache according to creation feedback.
        failed: Of these, refused.
        skipped: Pipelines left out because the device lacks something.
        calls: Number of creation calls.
        prepare_ns: Creating layouts, render passes and modules, without modules that are created on demand.
        keys_ns: Elapsed time of querying pipeline keys.
        open_ns: Creating the primary and the worker caches, initial data included.
        wall_ns: Elapsed time from the first job to the barrier.
        merge_ns: Elapsed time of the merge.
        read_back_ns: Elapsed time of reading the primary's data.
        call_ns: Elapsed time of the calls.
        driver_ns: The driver's own time in the calls.
        cpu_ns: CPU time of the threads in the calls.
        run_delay_ns: Time in which threads were runnable but not scheduled, in the calls.
        blocked_ns: Time asleep in the driver: driver - CPU - run delay, summed where positive.
        barrier_wait_ns: Time that workers waited at the barrier.
        duplicate_keys: Keys that were compiled more than once.
        duplicate_ns: Driver time of those compilations, without the first one of each key.
        source_bytes: Size of the worker caches before the merge.
        primary_bytes: Size of the primary after it.
        memory_before_bytes: Peak resident size of the process before the caches were created.
        peak_memory_bytes: Peak resident size of the process (ru_maxrss).
        compiled_latency: Driver time of compiled pipelines.
        hit_latency: Driver time of cache hits.
        blocked_without_faults_ns: Part of `blocked_ns` in calls in which the thread had no page fault.
        minor_faults: Page faults of the worker threads without disk access.
        major_faults: Page faults of the worker threads with disk access.
        sleeps: Voluntary context switches of the worker threads.
        preemptions: Involuntary context switches of the worker threads.
        kinds_ns: Driver time of compiled pipelines, by kind.
        slowest: The compiled pipelines with the longest driver time, slowest first.
        notes: Remarks that affect the figures, such as a fallback.
    """

    batch: Whole
    passes: Positive
    set_name: str
    set_hash: str
    set_pipelines: Whole
    environment: Environment
    started_at: float
    process_s: Annotated[float, msgspec.Meta(ge=0, le=_LONGEST_S)]
    pipelines: Whole
    created: Whole
    hits: Whole
    failed: Whole
    skipped: Whole
    calls: Whole
    open_ns: Whole
    wall_ns: Whole
    merge_ns: Whole
    read_back_ns: Whole
    call_ns: Whole
    driver_ns: Whole
    cpu_ns: Whole
    run_delay_ns: Whole
    blocked_ns: Whole
    barrier_wait_ns: Whole
    duplicate_keys: Whole
    duplicate_ns: Whole
    source_bytes: Whole
    primary_bytes: Whole
    memory_before_bytes: Whole
    peak_memory_bytes: Whole
    compiled_latency: Latencies
    hit_latency: Latencies
    order: str = "given"
    prepare_ns: Whole = 0
    keys_ns: Whole = 0
    blocked_without_faults_ns: Whole = 0
    minor_faults: Whole = 0
    major_faults: Whole = 0
    sleeps: Whole = 0
    preemptions: Whole = 0
    kinds_ns: dict[str, Whole] = {}
    slowest: tuple[SlowPipeline, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether figures include it: true unless it is a warm-up."""
        return self.round >= 0

    @property
    def place(self) -> str:
        """Device, driver, processor and set in one line."""
        where = self.environment
        return (
            f"{where.device_name}, {where.driver_name} {where.driver_info}; {where.cores} × "
            f"{where.processor}; {self.set_name}, {self.set_pipelines:,} pipelines"
        )

    @property
    def refused(self) -> int:
        """Pipelines that the driver refused in one pass."""
        return round(self.failed / self.passes)

    @property
    def once_s(self) -> float:
        """Time of using the set once, which merges once: querying keys, one pass, the merge, s."""
        return (self.keys_ns + self.wall_ns / self.passes + self.merge_ns) / 1e9

    @property
    def throughput(self) -> float:
        """Pipelines per second over the time that a user waits, `once_s`. 0 without pipelines."""
        return _rate(self.created / self.passes, self.once_s)

    @property
    def creation_rate(self) -> float:
        """Pipelines per second up to the barrier, over all passes and without the merge."""
        return _rate(self.created, self.wall_ns / 1e9)

    @property
    def seconds(self) -> float:
        """Elapsed time from the first job to the end of the merge, s."""
        return (self.wall_ns + self.merge_ns) / 1e9

    @property
    def blocked_share(self) -> float:
        """Share of the driver's time in which threads were asleep inside it."""
        return self.blocked_ns / self.driver_ns if self.driver_ns else 0.0

    @property
    def run_delay_share(self) -> float:
        """Share of the calls' time in which threads waited for a processor."""
        return self.run_delay_ns / self.call_ns if self.call_ns else 0.0

    @property
    def cpu_per_pipeline_ns(self) -> float:
        """CPU time per created pipeline, ns; 0 without pipelines."""
        return self.cpu_ns / self.created if self.created else 0.0

    @property
    def binding_overhead_ns(self) -> int:
        """Elapsed time of the calls outside the driver, ns."""
        return self.call_ns - self.driver_ns


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


class FailedSample(Turn, frozen=True, kw_only=True, tag_field="row", tag="failed"):
    """A sample that failed, for example because the driver crashed. A resumed benchmark tries it again.

    Attributes:
        reason: The last output of the process, or how it ended.
    """

    reason: str

    @property
    def words(self) -> str:
        """The arm and the reason."""
        return f"{self.arm.words}: {self.reason}"


Row = Sample | FailedSample
_decoder = msgspec.json.Decoder(Row)


MAX_ROWS_BYTES = 1 << 30
"""Largest size of a file of rows."""


def read_rows(path: Path) -> list[Row]:
    """Read a file of rows, without a last line that no line break ends.

    Raises:
        RowsError: It cannot be read, or a line is not a row.
    """
    try:
        lines = read_input(path, MAX_ROWS_BYTES).split(b"\n")
    except InputError as error:
        raise RowsError(f"{path}: {error}") from error
    rows: list[Row] = []
    for number, line in enumerate(lines[:-1], 1):  # no line break behind the last: a writer was interrupted
        if not line.strip():
            continue
        try:
            # Rows of earlier versions call the start a temperature. Inside a string the quotes would be
            # escaped.
            rows.append(_decoder.decode(line.replace(b'"temperature":', b'"start":', 1)))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise RowsError(f"{path}: line {number} is not a sample: {error}") from error
    return rows


def current_samples(rows: Iterable[Row]) -> list[Sample]:
    """The samples, without those that a later run took again."""
    return list({row.key: row for row in rows if isinstance(row, Sample)}.values())


def counted_samples(rows: Iterable[Row]) -> list[Sample]:
    """The current samples without warm-ups."""
    return [each for each in current_samples(rows) if each.counts]


class RowWriter:
    """Appends rows to a file and flushes each to disk as a whole line. At most one writer per file."""

    def __init__(self, path: Path) -> None:
        """Open the file, and truncate an unfinished last line.

        Raises:
            RowsError: It cannot be written.
        """
        try:
            self._file = path.open("ab", buffering=0)
            self._file.truncate(path.read_bytes().rfind(b"\n") + 1)
        except OSError as error:
            raise RowsError(f"{path}: cannot be written: {error.strerror}") from error
        self._path = path

    def write(self, row: Row) -> None:
        """Append a row.

        Raises:
            RowsError: It cannot be written; what was written of it is no row.
        """
        line = memoryview(msgspec.json.encode(row) + b"\n")
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            said = f"{self._path}: a sample cannot be written: {error.strerror}"
            raise RowsError(said, "make room; the same command takes the sample again and resumes") from error

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def cells_of(samples: Iterable[Sample]) -> dict[Cell, list[Sample]]:
    """Samples by cell, without controls, in the order of their rounds."""
    found: dict[Cell, list[Sample]] = {}
    for each in sorted(samples, key=lambda sample: sample.round):
        if not each.control:
            found.setdefault(each.cell, []).append(each)
    return found


def control_of(
    samples: Iterable[Sample], conditions: Conditions
) -> tuple[dict[tuple[str, int], Sample], dict[tuple[str, int], Sample]]:
    """Both arms of the A/A control under the conditions, by pair: the baseline's and the control's.

    A control whose baseline was taken again by a later run has no partner, and does not count. Empty if runs
    had different baselines: each mode has a noise of its own.
    """
    same = [each for each in samples if each.conditions == conditions]
    partners = {(each.mode, each.pair) for each in same if not each.control}
    control = {each.pair: each for each in same if each.control and (each.mode, each.pair) in partners}
    modes = {each.mode for each in control.values()}
    if len(modes) > 1:
        return {}, {}
    return {each.pair: each for each in same if not each.control and each.mode in modes}, control


def failed_arms(rows: Iterable[Row]) -> tuple[FailedSample, ...]:
    """The last attempt of each arm whose last attempt failed, in the order of the cells."""
    failed: dict[Arm, FailedSample] = {}
    for row in rows:
        if isinstance(row, FailedSample):
            failed[row.arm] = row
        else:
            failed.pop(row.arm, None)
    return tuple(failed[each] for each in sorted(failed))
