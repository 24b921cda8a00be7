"""The rows of a benchmark and their file, which holds one JSON object per line.

A `Sample` is one run in its own process; its row records everything that affects the figures. Writers only
append. Readers skip a last line that no line break ends, as writers cut it off; any other damaged line is an
error that names it. New fields have defaults and no field changes its meaning, so old files stay readable.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt

from orchestrator.devices.modes import CacheMode
from orchestrator.errors import OrchestratorError
from orchestrator.sets.inputs import InputError, read_input

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
"""The quantiles of a `Latencies`; the last one is the maximum."""
SLOWEST = 10
"""Number of slowest pipelines that a sample lists."""
MAX_ROWS_BYTES = 1 << 30
"""Largest size of a file of rows."""

_LARGEST = (1 << 63) - 1  # a row from elsewhere may hold numbers that no float can
Whole = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=_LARGEST)]


class RowsError(OrchestratorError):
    """A file of rows cannot be used; the message names the file and the line, `next_step` what to do."""

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
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def device_text(selector: str) -> str:
    """A selector in words; an empty one selects the first device."""
    return selector or "the first device"


class Conditions(msgspec.Struct, frozen=True, order=True, kw_only=True):
    """What two modes must have in common to be compared."""

    device: str  # The selector.
    start: Start  # Contents of the caches.
    # Share of the pipelines that the run creates a second time.
    duplicates: Annotated[float, msgspec.Meta(ge=0, le=1)]
    workers: Positive  # Number of workers.

    @property
    def conditions(self) -> Conditions:
        """The conditions alone."""
        return Conditions(**fields_of(Conditions, self))

    @property
    def section(self) -> tuple[str, Start, float]:
        """All but the number of workers."""
        return self.device, self.start, self.duplicates

    @property
    def copies(self) -> str:
        """The share of duplicates as the end of a list, such as ", 50% duplicates"; "" without duplicates."""
        return f", {self.duplicates:.0%} duplicates" if self.duplicates else ""


class Cell(Conditions, frozen=True, order=True, kw_only=True):
    """A point of the matrix: `Conditions` and a mode."""

    mode: CacheMode

    @property
    def cell(self) -> Cell:
        """The cell alone."""
        return Cell(**fields_of(Cell, self))


class Arm(Cell, frozen=True, order=True, kw_only=True):
    """One measurement of a round: a cell, or the second measurement of the baseline (the A/A control)."""

    control: bool = False

    @property
    def arm(self) -> Arm:
        """The arm alone."""
        return Arm(**fields_of(Arm, self))


def arm_text(cell: Cell) -> str:
    """A cell or an arm in words, such as: radv:navi21, cold, 4 workers, shared (control)."""
    words = f"{device_text(cell.device)}, {cell.start}, {counted(cell.workers, 'worker')}, {cell.mode}"
    control = isinstance(cell, Arm) and cell.control
    return words + cell.copies + (" (control)" if control else "")


class Turn(Arm, frozen=True, kw_only=True):
    """An arm in a round: the identity of a sample within a benchmark."""

    # From 0; -1 for the warm-up, which no figure includes.
    round: Annotated[int, msgspec.Meta(ge=-1, le=_LARGEST)] = 0
    # Identifies the call of `bench` that takes it; "" in rows of earlier versions, which count as one.
    run: str = ""

    @property
    def key(self) -> tuple[Arm, int]:
        """Arm and round."""
        return self.arm, self.round

    @property
    def pair(self) -> tuple[str, int]:
        """Run and round: what was taken side by side has both in common."""
        return self.run, self.round


def fields_of(base: type[msgspec.Struct], value: msgspec.Struct) -> dict[str, Any]:
    """The fields that a struct has from a base, to construct the base or another subclass of it."""
    return {name: getattr(value, name) for name in base.__struct_fields__}


class Latencies(msgspec.Struct, frozen=True):
    """Distribution of the driver time per pipeline: number of pipelines, and the values at `QUANTILES`."""

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

    def is_constant(self) -> bool:
        """Whether many pipelines all took the same time, which no real driver needs."""
        return self.count >= 10 and self.quantiles_ns[0] == self.quantiles_ns[-1] > 0


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Device, driver and machine of a sample. Fields without a description have Vulkan's names and values."""

    driver_name: str
    driver_info: str
    driver_version: int
    driver_id: int
    device_name: str
    vendor_id: int
    device_id: int
    pipeline_cache_uuid: str  # VkPhysicalDeviceProperties::pipelineCacheUUID, hex.
    driver_caches: str  # How the driver's own caches were disabled.
    cores: Whole  # Processors that the process may use.
    processor: str  # Model name of the processor.
    load_average: float  # Load average of the machine over the minute before the sample.
    python: str  # Version of Python.
    orchestrator: str  # Version of this project.
    opened_as: tuple[str, ...] = ()  # The request that opened the device of each feature group, in words.
    variables: tuple[str, ...] = ()  # Variables that drivers or layers read, such as "RADV_DEBUG=nofmask".
    layers: tuple[str, ...] = ()  # Names of the active layers.


ENVIRONMENT_WORDS: Final = {
    "driver_name": "driver",
    "driver_info": "version of the driver",
    "device_name": "device",
    "pipeline_cache_uuid": "pipeline cache UUID",
    "driver_caches": "driver's caches",
    "opened_as": "device opened as",
    "variables": "environment",
    "layers": "list of active layers",
    "processor": "processor",
    "cores": "number of processors",
    "python": "version of Python",
    "orchestrator": "version of orchestrator",
}
"""Fields of an `Environment` in words, of what changes the figures."""


class SlowPipeline(msgspec.Struct, frozen=True):
    """One of the slowest pipelines of a sample: hash in the set (16 hex digits), kind, driver time."""

    key: str
    kind: str
    driver_ns: Whole


class Sample(Turn, frozen=True, kw_only=True, tag_field="row", tag="sample"):
    """One run in its own process. Times are sums over all workers, unless described as elapsed time."""

    batch: Whole  # Largest number of pipelines in a call.
    passes: Positive  # How many times the run creates the whole set; more than once so that a warm run lasts.
    set_name: str  # File names of the set.
    set_hash: str  # Hash over the names of its records, 16 hex digits.
    set_pipelines: Whole  # Pipelines of the set.
    environment: Environment
    started_at: float  # Seconds since 1970.
    process_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)]  # Elapsed time of the whole process.
    pipelines: Whole  # Pipelines that the run handed to the driver.
    created: Whole
    hits: Whole  # Created ones that were found in the application's cache according to creation feedback.
    failed: Whole  # Refused ones.
    skipped: Whole  # Pipelines left out because the device lacks something.
    calls: Whole  # Number of creation calls.
    open_ns: Whole  # Creating the primary and the worker caches, initial data included.
    wall_ns: Whole  # Elapsed time from the first job to the barrier.
    merge_ns: Whole  # Elapsed time of the merge, our own part included.
    read_back_ns: Whole  # Elapsed time of reading the primary's data.
    call_ns: Whole  # Elapsed time of the calls.
    driver_ns: Whole  # The driver's own time in the calls, by creation feedback.
    cpu_ns: Whole  # CPU time of the threads in the calls.
    run_delay_ns: Whole  # Time in which threads were runnable but not scheduled, in the calls.
    blocked_ns: Whole  # Driver - CPU - run delay, summed where positive.
    barrier_wait_ns: Whole  # Time that workers waited at the barrier.
    duplicate_keys: Whole  # Keys that were compiled more than once.
    duplicate_ns: Whole  # Driver time of those compilations, without the first one of each key.
    primary_bytes: Whole  # Size of the primary after the merge.
    peak_memory_bytes: Whole  # Peak resident size of the process (ru_maxrss).
    compiled_latency: Latencies  # Driver time of compiled pipelines.
    hit_latency: Latencies  # Driver time of cache hits.
    # Order in which workers took pipelines, a value of `Order`; `compile_set` uses "cost".
    order: str = "given"
    merge_driver_ns: Whole | None = None  # Of the merge, the driver's part; None if unknown.
    # Creating layouts, render passes and modules, without modules that are created on demand.
    prepare_ns: Whole = 0
    keys_ns: Whole = 0  # Elapsed time of querying pipeline keys.
    kinds_ns: dict[str, Whole] = {}  # Driver time of compiled pipelines, by kind.
    # The compiled pipelines with the longest driver time, slowest first.
    slowest: tuple[SlowPipeline, ...] = ()
    notes: tuple[str, ...] = ()  # Remarks that affect the figures, such as a fallback.

    @property
    def place(self) -> str:
        """Device, driver, processor and set in one line."""
        where = self.environment
        return (
            f"{where.device_name}, {where.driver_name} {where.driver_info}; {where.cores} × "
            f"{where.processor}; {self.set_name}, {counted(self.set_pipelines, 'pipeline')}"
        )

    @property
    def refused(self) -> int:
        """Pipelines that the driver refused in one pass."""
        return round(self.failed / self.passes)

    @property
    def merge_cost_ns(self) -> int:
        """Time of the merge that counts in verdicts: the driver's part, or all of it if that is unknown."""
        return self.merge_ns if self.merge_driver_ns is None else self.merge_driver_ns

    @property
    def feedback_fits(self) -> bool:
        """Whether the driver's own time by its feedback is within the time of the calls."""
        return self.driver_ns <= self.call_ns

    @property
    def once_s(self) -> float:
        """Time of using the set once, which merges once: querying keys, one pass, the driver's merge, s."""
        return (self.keys_ns + self.wall_ns / self.passes + self.merge_cost_ns) / 1e9

    @property
    def throughput(self) -> float:
        """Pipelines per second over the time that a user waits, `once_s`. 0 without pipelines."""
        return _share(self.created / self.passes, self.once_s)

    @property
    def creation_rate(self) -> float:
        """Pipelines per second up to the barrier, over all passes and without the merge."""
        return _share(self.created, self.wall_ns / 1e9)

    @property
    def seconds(self) -> float:
        """Elapsed time from the first job to the end of the merge, s."""
        return (self.wall_ns + self.merge_ns) / 1e9

    @property
    def blocked_share(self) -> float:
        """Time asleep as a share of the calls' time, at least: within the driver's own time."""
        return _share(self.blocked_ns * self.feedback_fits, self.call_ns)

    @property
    def asleep_share(self) -> float:
        """The same, at most: within the whole call, waits for the interpreter included."""
        return _share(self._asleep_ns, self.call_ns)

    @property
    def _asleep_ns(self) -> float:
        within_driver_ns = self.blocked_share * self.call_ns
        return max(self.call_ns - self.cpu_ns - self.run_delay_ns, within_driver_ns)

    @property
    def asleep_per_pipeline_ns(self) -> float:
        """Time asleep in calls per created pipeline, at most, ns; 0 without pipelines."""
        return _share(self._asleep_ns, self.created)

    @property
    def run_delay_share(self) -> float:
        """Share of the calls' time in which threads waited for a processor."""
        return _share(self.run_delay_ns, self.call_ns)

    @property
    def overhead_share(self) -> float:
        """Share of the calls' time outside the driver."""
        return _share(self.call_ns - self.driver_ns, self.call_ns)

    @property
    def cpu_per_pipeline_ns(self) -> float:
        """CPU time per created pipeline, ns; 0 without pipelines."""
        return _share(self.cpu_ns, self.created)


def _share(amount: float, whole: float) -> float:
    return amount / whole if whole > 0 else 0.0


class FailedSample(Turn, frozen=True, kw_only=True, tag_field="row", tag="failed"):
    """A sample that failed, for example because the driver crashed. A resumed benchmark tries it again."""

    reason: str

    @property
    def words(self) -> str:
        """The arm and the reason."""
        return f"{arm_text(self)}: {self.reason}"


Row = Sample | FailedSample
_decoder = msgspec.json.Decoder(Row)


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
            hint = "statistics of pipelines are compared by `orchestrator regress`"
            raise RowsError(f"{path}: line {number} is not a sample: {error}; {hint}") from error
    return rows


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
            message = f"{self._path}: a sample cannot be written: {error.strerror}"
            step = "make room; the same command takes the sample again and resumes"
            raise RowsError(message, step) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def current_samples(rows: Iterable[Row]) -> list[Sample]:
    """The samples, without those that a later run took again."""
    return list({row.key: row for row in rows if isinstance(row, Sample)}.values())


def counted_samples(rows: Iterable[Row]) -> list[Sample]:
    """The current samples without warm-ups."""
    return [each for each in current_samples(rows) if each.round >= 0]


def busy_share(samples: Iterable[Sample]) -> float:
    """Median share of the calls' time in which threads waited for a processor."""
    return median(each.run_delay_share for each in samples)


def cells_of(samples: Iterable[Sample]) -> dict[Cell, list[Sample]]:
    """Samples by cell, without controls, in the order of their rounds."""
    found: dict[Cell, list[Sample]] = {}
    for each in sorted(samples, key=lambda sample: sample.round):
        if not each.control:
            found.setdefault(each.cell, []).append(each)
    return found


Pairs = dict[tuple[str, int], Sample]
"""Samples of one arm by run and round."""


def control_of(samples: Iterable[Sample], conditions: Conditions) -> tuple[Pairs, Pairs]:
    """Both arms of the A/A control under the conditions: the baseline's and the control's.

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
