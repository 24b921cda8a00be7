"""The rows of a benchmark, and their file: one JSON object a line.

A `Sample` is one run in a process of its own. Its row names everything that its figures depend on: driver,
device, processor, mode, workers, set, versions, and how the driver's own caches were off.

Guarantees: the file only grows. A last line that was cut off is no row and no error; a damaged line before it
is an error that names the line. Fields may be added, with a default, and none changes its meaning, so that
old files stay readable.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from orchestrator.devices.device import CacheMode
from orchestrator.errors import OrchestratorError
from orchestrator.sets.inputs import InputError, read_input

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
"""What a `Latencies` holds of a distribution; the last is the largest."""
SLOWEST = 10
"""How many of the pipelines that took longest a sample names."""


class RowsError(OrchestratorError):
    """A file of rows cannot be used; the message names the file and the line.

    Attributes:
        next_step: What to do.
    """

    next_step = "name a directory that `orchestrator bench --out` wrote, or the results.jsonl in it"


class Start(enum.StrEnum):
    """What the caches of a run hold when it starts: nothing (COLD), or everything (WARM)."""

    COLD = "cold"
    WARM = "warm"


class Conditions(NamedTuple):
    """What is the same for modes that are compared, pair by pair.

    Attributes:
        device: The selector.
        start: What the caches hold.
        duplicates: Share of the pipelines that are in the run a second time, 0 to 1.
        workers: Number of workers.
    """

    device: str
    start: Start
    duplicates: float
    workers: int


class Cell(NamedTuple):
    """A point of the matrix: `Conditions`, and a mode."""

    device: str
    start: Start
    duplicates: float
    workers: int
    mode: CacheMode

    @property
    def conditions(self) -> Conditions:
        """It without its mode."""
        return Conditions(*self[:4])


class Arm(NamedTuple):
    """What takes its turn in a round: a cell, or the baseline once more as the A/A control."""

    cell: Cell
    control: bool

    @property
    def words(self) -> str:
        """It in words, such as: radv:navi21, cold, 4 workers, shared (control)."""
        device, start, duplicates, workers, mode = self.cell
        count = f"{workers} worker" if workers == 1 else f"{workers} workers"
        copies = f", {duplicates:.0%} duplicates" if duplicates else ""
        return f"{device}, {start}, {count}, {mode}{copies}" + (" (control)" if self.control else "")


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """An arm in a round: what tells a sample from the others of a benchmark.

    Attributes:
        device: The selector.
        start: What the caches hold.
        duplicates: Share of the pipelines that are in the run a second time, 0 to 1.
        workers: Number of workers.
        mode: The cache topology.
        control: Whether it is the second arm of the A/A control.
        round: The pair that it belongs to, from 0; -1 for a warm-up, which counts for nothing.
    """

    device: str
    start: Start
    duplicates: float
    workers: int
    mode: CacheMode
    control: bool = False
    round: int = 0

    @property
    def cell(self) -> Cell:
        """The point of the matrix."""
        return Cell(self.device, self.start, self.duplicates, self.workers, self.mode)

    @property
    def arm(self) -> Arm:
        """What takes the turn."""
        return Arm(self.cell, self.control)

    @property
    def conditions(self) -> Conditions:
        """What is the same for the cells that it is compared with."""
        return self.cell.conditions

    @property
    def key(self) -> tuple[Arm, int]:
        """Arm and round."""
        return self.arm, self.round


def turn_of(turn: Turn) -> dict[str, Any]:
    """The fields of `Turn` alone, to make another one of the same turn."""
    return {name: getattr(turn, name) for name in Turn.__struct_fields__}


class Latencies(msgspec.Struct, frozen=True):
    """Driver time of single pipelines, ns.

    Attributes:
        count: How many.
        quantiles_ns: The values at `QUANTILES`; empty where there is none.
    """

    count: int = 0
    quantiles_ns: tuple[float, ...] = ()

    @classmethod
    def of(cls, durations_ns: npt.NDArray[np.uint64]) -> Latencies:
        """Sum up durations, shape (n,), ns."""
        if not len(durations_ns):
            return cls()
        return cls(len(durations_ns), tuple(float(each) for each in np.quantile(durations_ns, QUANTILES)))


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Where a sample was taken. The names of driver and device, their IDs and versions are Vulkan's own.

    Attributes:
        pipeline_cache_uuid: VkPhysicalDeviceProperties::pipelineCacheUUID, hex.
        driver_caches: How the driver's own caches were turned off.
        opened_as: What the device of each feature group was opened as, in words.
        cores: Processors that the process may use.
        processor: What the processor calls itself.
        load_average: Load of the machine over the minute before the sample.
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
    cores: int
    processor: str
    load_average: float
    python: str
    orchestrator: str
    opened_as: tuple[str, ...] = ()


class SlowPipeline(msgspec.Struct, frozen=True):
    """A pipeline that took long.

    Attributes:
        key: Its hash in the set, 16 hex digits.
        kind: What it is.
        driver_ns: Driver time.
    """

    key: str
    kind: str
    driver_ns: int


class CacheSize(msgspec.Struct, frozen=True, array_like=True):
    """What the caches of a run had together at a time since its first job.

    Attributes:
        at_ns: The time.
        size_bytes: The sum of their sizes.
    """

    at_ns: int
    size_bytes: int


class Sample(Turn, frozen=True, kw_only=True, tag_field="row", tag="sample"):
    """One run in a process of its own. Times are sums over all workers, except where they say otherwise.

    Attributes:
        batch: Largest number of pipelines in a call.
        order: In which order pipelines were handed out, as `Order` has it: "cost" is what `compile_set` does.
        passes: How often the whole set is in the run, so that a warm run is long enough to be measured.
        set_name: Where the set came from.
        set_hash: Hash over the names of its records, 16 hex digits.
        set_pipelines: Pipelines of the set.
        environment: Where it was taken.
        started_at: Seconds since 1970.
        process_s: What the whole process took, start to end.
        pipelines: Pipelines of the run: those that were handed to the driver.
        created: Of these, created.
        hits: Of these, found in the application's cache by creation feedback.
        failed: Of these, refused.
        skipped: Pipelines left out because the device lacks something.
        calls: Number of creation calls.
        prepare_ns: Making layouts, render passes and modules; modules that are made when they
            are needed are not in it.
        keys_ns: Asking the driver for pipeline keys, by the clock on the wall.
        open_ns: Making the primary and the worker caches; their initial data is in it.
        wall_ns: From the first job to the barrier, by the clock on the wall.
        merge_ns: Merging, by the clock on the wall.
        read_back_ns: Reading the primary's data back, by the clock on the wall.
        call_ns: Wall time of the calls.
        driver_ns: The driver's own time in the calls.
        cpu_ns: CPU time of the threads in the calls.
        run_delay_ns: Runnable but not scheduled, in the calls.
        blocked_ns: Asleep in the driver: driver - cpu - run delay, summed up where it is positive.
        barrier_wait_ns: Waits of the workers at the barrier.
        duplicate_keys: Keys compiled by more than one worker, or more than once.
        duplicate_ns: Driver time of all but one compilation of each of these.
        source_bytes: Worker caches before the merge.
        primary_bytes: The primary after it.
        memory_before_bytes: Largest resident size of the process before the caches were made.
        peak_memory_bytes: Largest resident size of the process (ru_maxrss).
        compiled_latency: Driver time of pipelines that were compiled.
        hit_latency: Driver time of pipelines that were found.
        blocked_without_faults_ns: Of it, in calls in which the thread met no page fault.
        minor_faults: Page faults of the workers' threads that needed no disk.
        major_faults: Page faults that did.
        sleeps: How often a worker's thread left the processor to wait (voluntary context switches).
        preemptions: How often it was made to leave (involuntary context switches).
        kinds_ns: Driver time by kind of pipeline, of those that were compiled.
        slowest: The compiled pipelines that took the driver longest, slowest first.
        cache_sizes: Of a warm-up: what all caches had while it lasted, and after the merge; empty in modes
            of which that is not known.
        notes: What a reader must know, such as a fallback.
    """

    batch: int
    passes: int
    set_name: str
    set_hash: str
    set_pipelines: int
    environment: Environment
    started_at: float
    process_s: float
    pipelines: int
    created: int
    hits: int
    failed: int
    skipped: int
    calls: int
    open_ns: int
    wall_ns: int
    merge_ns: int
    read_back_ns: int
    call_ns: int
    driver_ns: int
    cpu_ns: int
    run_delay_ns: int
    blocked_ns: int
    barrier_wait_ns: int
    duplicate_keys: int
    duplicate_ns: int
    source_bytes: int
    primary_bytes: int
    memory_before_bytes: int
    peak_memory_bytes: int
    compiled_latency: Latencies
    hit_latency: Latencies
    order: str = "given"
    prepare_ns: int = 0
    keys_ns: int = 0
    blocked_without_faults_ns: int = 0
    minor_faults: int = 0
    major_faults: int = 0
    sleeps: int = 0
    preemptions: int = 0
    kinds_ns: dict[str, int] = {}
    slowest: tuple[SlowPipeline, ...] = ()
    cache_sizes: tuple[CacheSize, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether it is more than a warm-up."""
        return self.round >= 0

    @property
    def throughput(self) -> float:
        """Pipelines a second, keys and the merge included: what a user waits for. 0 for no pipeline."""
        return _rate(self.created, self.keys_ns + self.wall_ns + self.merge_ns)

    @property
    def creation_rate(self) -> float:
        """Pipelines a second up to the barrier, without the merge."""
        return _rate(self.created, self.wall_ns)

    @property
    def seconds(self) -> float:
        """From the first job to the end of the merge."""
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
        """CPU time of a pipeline."""
        return self.cpu_ns / self.created if self.created else 0.0

    @property
    def binding_overhead_ns(self) -> int:
        """Wall time of the calls that was not the driver's."""
        return self.call_ns - self.driver_ns


def _rate(count: int, nanoseconds: int) -> float:
    return count / (nanoseconds / 1e9) if nanoseconds > 0 else 0.0


class FailedSample(Turn, frozen=True, kw_only=True, tag_field="row", tag="failed"):
    """A sample whose process did not give one, such as a driver that crashed; a resumed run tries it again.

    Attributes:
        reason: What the process said last, or how it ended.
    """

    reason: str


Row = Sample | FailedSample
_decoder = msgspec.json.Decoder(Row)


MAX_ROWS_BYTES = 1 << 30
"""Bytes that a file of rows may have."""


def read_rows(path: Path) -> list[Row]:
    """Read a file of rows; a last line that was cut off is left out.

    Raises:
        RowsError: It cannot be read, or a line is not a row.
    """
    try:
        lines = read_input(path, MAX_ROWS_BYTES).split(b"\n")
    except InputError as error:
        raise RowsError(f"{path}: {error}") from error
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            # Rows of earlier versions call the start a temperature. Inside a string the quotes would be
            # escaped.
            rows.append(_decoder.decode(line.replace(b'"temperature":', b'"start":', 1)))
        except msgspec.MsgspecError as error:
            if number == len(lines):  # no line break behind it: a writer was interrupted
                break
            raise RowsError(f"{path}: line {number} is not a sample: {error}") from error
    return rows


def read_samples(path: Path) -> list[Sample]:
    """The samples of a file that count: no warm-ups, no failures.

    Raises:
        RowsError: It cannot be read, or holds none.
    """
    found = [row for row in read_rows(path) if isinstance(row, Sample) and row.counts]
    if not found:
        raise RowsError(f"{path}: holds no samples (warm-ups and failures count for nothing)")
    return found


class RowWriter:
    """Appends rows to a file, each written and flushed to the disk as a whole line. One writer a file."""

    def __init__(self, path: Path) -> None:
        """Open the file, and cut off a last line that was not finished.

        Raises:
            RowsError: It cannot be written.
        """
        try:
            self._file = path.open("ab")
            self._file.truncate(path.read_bytes().rfind(b"\n") + 1)
        except OSError as error:
            raise RowsError(f"{path}: cannot be written: {error.strerror}") from error

    def write(self, row: Row) -> None:
        """Append a row."""
        self._file.write(msgspec.json.encode(row) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def cells_of(samples: Iterable[Sample]) -> dict[Cell, list[Sample]]:
    """Samples by cell, controls left out, in the order of their rounds."""
    found: dict[Cell, list[Sample]] = {}
    for each in sorted(samples, key=lambda sample: sample.round):
        if not each.control:
            found.setdefault(each.cell, []).append(each)
    return found


def control_of(
    samples: Iterable[Sample], conditions: Conditions
) -> tuple[dict[int, Sample], dict[int, Sample]]:
    """Both arms of the A/A control under some conditions, by round."""
    same = [each for each in samples if each.conditions == conditions]
    control = {each.round: each for each in same if each.control}
    modes = {each.mode for each in control.values()}
    return {each.round: each for each in same if not each.control and each.mode in modes}, control


def failed_arms(rows: Iterable[Row]) -> tuple[FailedSample, ...]:
    """Arms whose last attempt failed: that attempt of each, in the order of the cells."""
    failed: dict[Arm, FailedSample] = {}
    for row in rows:
        if isinstance(row, FailedSample):
            failed[row.arm] = row
        else:
            failed.pop(row.arm, None)
    return tuple(failed[each] for each in sorted(failed))
