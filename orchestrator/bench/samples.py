"""Rows of a benchmark: `Sample`, and their file.

One sample of a benchmark as a typed row: what was measured, where, with what, and every figure of it; and
the file of such rows, one JSON object a line.

Guarantees: - A row names everything that a figure needs to count: driver and version, identity, cores,
workers, mode, temperature, batch, duplicates, set and its hash, versions of Python and of the project, and
how the driver's caches were off. - A file is append-only and each line stands for itself. A last line that
was cut off (the process was killed while it wrote) is no row and no error; a damaged line before it is an
error that names the line. - Fields may be added, with a default; none changes its meaning, so that old
files stay readable.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from orchestrator.errors import OrchestratorError

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
"""What a `Latencies` holds of a distribution; the last is the largest."""


class SamplesError(OrchestratorError):
    """A file of samples cannot be used; the message names the file and the line."""


class Cell(NamedTuple):
    """What a sample is a sample of: the point in the matrix.

    Attributes:
        device: The selector.
        temperature: "cold" or "warm".
        duplicates: Share of the pipelines that are in the run a second time.
        workers: Number of workers.
        mode: The cache topology.
    """

    device: str
    temperature: str
    duplicates: float
    workers: int
    mode: str


class Group(NamedTuple):
    """Cells that differ in their mode alone, so that their samples can be compared pair by pair."""

    device: str
    temperature: str
    duplicates: float
    workers: int


class Leg(NamedTuple):
    """What takes its turn in a round: a cell, or the baseline once more as the A/A control of its group.

    Attributes:
        cell: Which.
        control: Whether it is the control.
    """

    cell: Cell
    control: bool

    @property
    def words(self) -> str:
        """It in words, such as: radv:navi21, cold, 4 workers, shared (control)."""
        device, temperature, duplicates, workers, mode = self.cell
        count = f"{workers} worker" if workers == 1 else f"{workers} workers"
        copies = f", {duplicates:.0%} duplicates" if duplicates else ""
        return f"{device}, {temperature}, {count}, {mode}{copies}" + (" (control)" if self.control else "")


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
    """Where a sample was taken.

    Attributes:
        driver_name: VkPhysicalDeviceDriverProperties::driverName.
        driver_info: VkPhysicalDeviceDriverProperties::driverInfo.
        driver_version: VkPhysicalDeviceProperties::driverVersion.
        driver_id: VkDriverId.
        device_name: Name of the device.
        vendor_id: VkPhysicalDeviceProperties::vendorID.
        device_id: VkPhysicalDeviceProperties::deviceID.
        pipeline_cache_uuid: VkPhysicalDeviceProperties::pipelineCacheUUID, hex.
        driver_caches: How the driver's own caches were turned off.
        opened_as: What the device of each group was opened as, in words.
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


class Sample(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="sample"):
    """One run in a process of its own. Times are sums over all workers, except where they say otherwise.

    Attributes:
        device: The selector.
        temperature: "cold": empty caches; "warm": every cache holds everything from the start.
        duplicates: Share of the pipelines that are in the run a second time.
        workers: Number of workers.
        mode: The cache topology.
        control: Whether this is the second leg of the A/A control of its group's baseline.
        round: The pair that it belongs to, from 0; -1 for a warm-up, which counts for nothing.
        batch: Largest number of pipelines in a call.
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
        notes: What a reader must know, such as a fallback.
    """

    device: str
    temperature: str
    duplicates: float
    workers: int
    mode: str
    control: bool
    round: int
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
    notes: tuple[str, ...] = ()

    @property
    def cell(self) -> Cell:
        """What it is a sample of."""
        return Cell(self.device, self.temperature, self.duplicates, self.workers, self.mode)

    @property
    def leg(self) -> Leg:
        """Which leg of a round it is."""
        return Leg(self.cell, self.control)

    @property
    def group(self) -> Group:
        """The cells that it is compared with."""
        return Group(self.device, self.temperature, self.duplicates, self.workers)

    @property
    def counts(self) -> bool:
        """Whether it is more than a warm-up."""
        return self.round >= 0

    @property
    def throughput(self) -> float:
        """Pipelines a second, the merge included: what a user waits for. 0 where nothing was created."""
        return _rate(self.created, self.wall_ns + self.merge_ns)

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
        """Share of the calls' time in which threads waited for a processor: the machine is too small or too busy."""
        return self.run_delay_ns / self.call_ns if self.call_ns else 0.0

    @property
    def cpu_per_pipeline_ns(self) -> float:
        """CPU time of a pipeline."""
        return self.cpu_ns / self.created if self.created else 0.0

    @property
    def binding_overhead_ns(self) -> int:
        """Wall time of the calls that was not the driver's: building create infos, waiting for the interpreter."""
        return self.call_ns - self.driver_ns


def _rate(count: int, nanoseconds: int) -> float:
    return count / (nanoseconds / 1e9) if nanoseconds > 0 else 0.0


class FailedSample(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="failed"):
    """A sample whose process did not give one, such as a driver that crashed. Tried again when a run is resumed.

    Its other fields are those of `Sample`.

    Attributes:
        reason: What the process said last, or how it ended.
    """

    device: str
    temperature: str
    duplicates: float
    workers: int
    mode: str
    round: int
    reason: str
    control: bool = False

    @property
    def cell(self) -> Cell:
        """What it should have been a sample of."""
        return Cell(self.device, self.temperature, self.duplicates, self.workers, self.mode)

    @property
    def leg(self) -> Leg:
        """Which leg of a round it should have been."""
        return Leg(self.cell, self.control)


Row = Sample | FailedSample
_decoder = msgspec.json.Decoder(Row)


def read_rows(path: Path) -> list[Row]:
    """Read a file of rows; a last line that was cut off is left out.

    Raises:
        SamplesError: It cannot be read, or a line is not a row.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise SamplesError(f"{path}: cannot be read: {error.strerror}") from error
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(_decoder.decode(line))
        except msgspec.MsgspecError as error:
            if number == len(lines):  # no line break behind it: a writer was interrupted
                break
            raise SamplesError(f"{path}: line {number} is not a sample: {error}") from error
    return rows


def read_samples(path: Path) -> list[Sample]:
    """The samples of a file that count: no warm-ups, no failures.

    Raises:
        SamplesError: It cannot be read, or holds none.
    """
    found = [row for row in read_rows(path) if isinstance(row, Sample) and row.counts]
    if not found:
        raise SamplesError(f"{path}: holds no samples (warm-ups and failures count for nothing)")
    return found


class RowWriter:
    """Appends rows to a file, each written and flushed to the disk as a whole line. One writer a file."""

    def __init__(self, path: Path) -> None:
        """Open the file, and cut off a last line that was not finished.

        Raises:
            SamplesError: It cannot be written.
        """
        try:
            self._file = path.open("ab")
            self._file.truncate(path.read_bytes().rfind(b"\n") + 1)
        except OSError as error:
            raise SamplesError(f"{path}: cannot be written: {error.strerror}") from error

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


def failed_legs(rows: Iterable[Row]) -> tuple[FailedSample, ...]:
    """Legs whose last attempt failed: that attempt of each, in the order of the cells."""
    failed: dict[Leg, FailedSample] = {}
    for row in rows:
        if isinstance(row, FailedSample):
            failed[row.leg] = row
        else:
            failed.pop(row.leg, None)
    return tuple(failed[each] for each in sorted(failed))
