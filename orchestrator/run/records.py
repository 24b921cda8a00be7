"""The records of a run: outcomes, progress, calls, timing, and the reports of a run and of a compile.

A record is a value that msgspec encodes and decodes (`encode_json`, `decode_json`; MessagePack likewise); its
data about many pipelines or calls is in columns. The JSON of `compile` is the encoding of a `CompileReport`.

Guarantees: text in a record is plain `str` that UTF-8 can carry. Durations are nanoseconds here and seconds
in the encoding; hashes are numbers here and 16 hex digits there. Decoding gives an equal record, for
durations up to 26 days and paths in UTF-8.
"""

from __future__ import annotations

import base64
import enum
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeAlias, TypeVar, get_args

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import asdict, define, field

from orchestrator.devices.device import (
    FEEDBACK_APPLICATION_CACHE_HIT,
    FEEDBACK_VALID,
    PIPELINE_COMPILE_REQUIRED,
    SUCCESS,
    CacheMode,
    CreationBatch,
    DeviceFeatures,
    DeviceIdentity,
    PipelineExecutables,
)
from orchestrator.devices.image import KINDS, CreateInfoImage, PipelineKind
from orchestrator.devices.request import ApplicationInfo, DeviceRequest, OtherFeatures
from orchestrator.process import StageClock
from orchestrator.registry import registry
from orchestrator.schedule import Assignment, Scheduler
from orchestrator.sets.image.built import BuiltImage
from orchestrator.sets.prepare import Subset
from orchestrator.sets.records import Damage, FeatureGroup, PipelineJob, PipelineJobs, RecordTag
from orchestrator.stores.cache_file import LoadResult, LoadStatus
from orchestrator.stores.culprits import Culprit

FORMAT: Final = 2
"""Version of the encoding; a new field does not change it. Version 1 was a JSON without a version."""


_HIT = FEEDBACK_VALID | FEEDBACK_APPLICATION_CACHE_HIT
_NO_REASONS: Mapping[int, str] = {}
_T = TypeVar("_T")


# --- how values are encoded


class Hash(int):
    """A 64-bit hash of a set; 16 hex digits in the encoding."""


class ApiVersion(int):
    """A Vulkan version number (VK_MAKE_API_VERSION); text such as ``1.4.335`` in the encoding."""

    def __str__(self) -> str:
        return f"{self >> 22 & 0x7F}.{self >> 12 & 0x3FF}.{self & 0xFFF}"


if TYPE_CHECKING:
    Nanoseconds: TypeAlias = int
else:

    class Nanoseconds(int):
        """A duration; seconds in the encoding. Records convert their fields `..._ns` to it."""


_PATH: Final = 1  # number of our extension type in MessagePack

_NO_TIME: Final = Nanoseconds(0)
"""The default of a duration, because `omit_defaults` compares by identity."""


def encode_hook(value: object) -> object:
    """`enc_hook` of msgspec for the values in records.

    Raises:
        NotImplementedError: Records do not hold values of this type.
    """
    if isinstance(value, Nanoseconds):
        return value / 1e9
    if isinstance(value, np.ndarray):
        return value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes()
    if isinstance(value, Hash):
        return f"{value:016x}"
    if isinstance(value, ApiVersion):
        return str(value)
    if isinstance(value, Path):
        return plain_text(str(value))
    raise NotImplementedError(f"a record cannot hold a {type(value).__name__}")


def decode_hook(kind: Any, value: Any) -> object:
    """`dec_hook` of msgspec for the values in records.

    Raises:
        ValueError: The value is invalid for its type.
    """
    if kind is Nanoseconds:
        return Nanoseconds(round(value * 1e9))
    if kind is Hash:
        if len(value) != 16:
            raise ValueError(f"a hash has 16 hex digits, not {value!r}")
        return Hash(value, 16)
    if kind is ApiVersion:
        major, minor, patch = map(int, value.split("."))
        return ApiVersion(major << 22 | minor << 12 | patch)
    if kind is Path:
        return Path(os.fsdecode(bytes(value.data)) if isinstance(value, msgspec.msgpack.Ext) else value)
    element = np.dtype(get_args(get_args(kind)[1])[0])
    data = base64.b64decode(value, validate=True) if isinstance(value, str) else value
    return np.frombuffer(data, element.newbyteorder("<")).astype(element, copy=False)


def encode_json(record: msgspec.Struct) -> bytes:
    """A record, or a structure that holds records, as JSON."""
    return msgspec.json.encode(record, enc_hook=encode_hook)


def encode_report(report: CompileReport, clock: StageClock) -> bytes:
    """A report as indented JSON, with the clock's times up to now."""
    timed = msgspec.structs.replace(report, clock=ProcessClock.of(clock))
    return msgspec.json.format(encode_json(timed), indent=2)


def decode_json(data: bytes | str, kind: type[_T]) -> _T:
    """A record from JSON.

    Raises:
        msgspec.ValidationError: It is not such a record; the message says where.
        msgspec.DecodeError: It is not JSON.
    """
    return msgspec.json.decode(data, type=kind, dec_hook=decode_hook)


def encode_msgpack(record: Record) -> bytes:
    """A record as MessagePack, with columns as bytes. Paths that are not UTF-8 are preserved."""

    def hook(value: object) -> object:
        if isinstance(value, Path) and plain_text(str(value)) != str(value):
            return msgspec.msgpack.Ext(_PATH, os.fsencode(value))
        return encode_hook(value)

    return msgspec.msgpack.encode(record, enc_hook=hook)


def decode_msgpack(data: bytes, kind: type[_T]) -> _T:
    """A record from MessagePack; raises as `decode_json`."""
    return msgspec.msgpack.decode(data, type=kind, dec_hook=decode_hook)


def plain_text(text: str) -> str:
    """Text as an exact `str` that UTF-8 can carry: bytes of a file name that are not UTF-8 are escaped."""
    text = str.__str__(text)
    if text.isascii():
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half a surrogate pair
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _in_seconds(name: str) -> str:
    return f"{name.removesuffix('_ns')}_s" if name.endswith("_ns") else name


def _plain(value: Any, duration: bool) -> Any:
    if isinstance(value, tuple):
        return tuple(_plain(each, duration) for each in value)
    if isinstance(value, str):
        return value if isinstance(value, enum.Enum) else plain_text(value)
    return (Nanoseconds(value) if value else _NO_TIME) if duration and type(value) is int else value


class Record(msgspec.Struct, frozen=True, rename=_in_seconds):
    """A value with an encoding. Fields `..._ns` are durations, unless they keep that name when encoded."""

    def __post_init__(self) -> None:
        """Make texts plain, and convert durations to `Nanoseconds`."""
        for name, encoded in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, name)
            if isinstance(value, int | str | tuple):
                plain = _plain(value, name != encoded)
                if plain is not value:
                    msgspec.structs.force_setattr(self, name, plain)


class Sums(Record, frozen=True):
    """A record whose fields add; the largest value of some counts instead."""

    _LARGEST: ClassVar[frozenset[str]] = frozenset()

    def __add__(self, other: Self) -> Self:
        """Both together."""

        def total(name: str) -> Any:
            one, two = getattr(self, name), getattr(other, name)
            return max(one, two) if name in self._LARGEST else one + two

        return type(self)(*map(total, self.__struct_fields__))


class Columns(Record, frozen=True, eq=False):
    """A record with arrays; two are equal if all elements are."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)
        return all(
            np.array_equal(one, two) if isinstance(one, np.ndarray) else bool(one == two)
            for one, two in pairs
        )

    __hash__ = None  # type: ignore[assignment]


# --- outcomes of pipelines


class OutcomeStatus(enum.StrEnum):
    """The outcome of a pipeline. Every pipeline has exactly one.

    COMPILED: created, and the application's cache did not hold it (or the driver does not tell).
    CACHE_HIT: created from the application's cache, as creation feedback tells; time is no evidence. Some
        drivers give no feedback for a pipeline that only links libraries; it is a hit if all its libraries
        were.
    SKIPPED: never given to the driver, because the device lacks something that it needs.
    FAILED: the driver refused it, or it could not be prepared, or a library of it failed.
    NOT_RUN: the run was stopped before its turn.
    """

    COMPILED = "compiled"
    CACHE_HIT = "cache_hit"
    SKIPPED = "skipped"
    FAILED = "failed"
    NOT_RUN = "not_run"


_STATUSES = tuple(OutcomeStatus)
_CODE = {status: code for code, status in enumerate(_STATUSES)}
_KIND_CODE = {kind: code for code, kind in enumerate(KINDS)}
_CACHE_HIT = _CODE[OutcomeStatus.CACHE_HIT]
_COMPILED = _CODE[OutcomeStatus.COMPILED]
# By status code: which outcome counts if a pipeline has several, the highest. For the groups of a compile it
# is the worst, because each application needs its own; for parts of a run, NOT_RUN is no outcome yet.
_WORST_OF_GROUPS: Final = np.array([2, 1, 0, 4, 3], np.int8)
_WORST_OF_PARTS: Final = np.array([2, 1, 0, 4, -1], np.int8)


def status_code(status: OutcomeStatus) -> int:
    """Number that stands for a status in columns: its position in `OutcomeStatus`."""
    return _CODE[status]


CREATED_CODES: Final = (status_code(OutcomeStatus.COMPILED), status_code(OutcomeStatus.CACHE_HIT))
"""What stands for a pipeline that was created, by `PipelineOutcome.created`."""


class PipelineOutcome(Record, frozen=True, omit_defaults=True):
    """The outcome of one pipeline: a row of an `OutcomeTable`, made on demand.

    Attributes:
        key: Its hash in the set.
        kind: Its kind.
        status: Its outcome; in a session NOT_RUN also if it was cancelled, or has not had its turn yet.
        reason: Why it was skipped or failed; if the driver refused it, the name of the VkResult.
        driver_ns: Driver time, over all groups.
        index: Its row in the table; in a run, its number in the image.
        handle: The pipeline, if the run keeps pipelines and it was not taken; else 0.
    """

    key: Hash
    kind: PipelineKind
    status: OutcomeStatus
    reason: str = ""
    driver_ns: Nanoseconds = _NO_TIME
    index: int = 0
    handle: int = 0

    @property
    def job(self) -> PipelineJob:
        """The pipeline of the set."""
        return PipelineJob(self.key, self.kind)

    @property
    def created(self) -> bool:
        """Whether there is a pipeline."""
        return self.status in (OutcomeStatus.COMPILED, OutcomeStatus.CACHE_HIT)


class Counts(Record, frozen=True):
    """Number of pipelines with each status; disjoint.

    Attributes:
        compiled: Created by compiling.
        cache_hits: Created from the cache, as creation feedback tells.
        skipped: Not given to the driver, because the device lacks something.
        failed: Not created.
        not_run: Not tried; present only if the job was stopped or pipelines were cancelled.
    """

    compiled: int
    cache_hits: int
    skipped: int
    failed: int
    not_run: int | msgspec.UnsetType = msgspec.UNSET


class OutcomeTable(Columns, frozen=True, eq=False, omit_defaults=True):
    """The outcomes of pipelines, one row each.

    Attributes:
        keys: Hash of each in the set, shape (n,), uint64.
        kinds: Kind of each, as a position in `PipelineKind`: 0 graphics, 1 compute, 2 ray tracing; shape
            (n,), uint8.
        status: `status_code` of each: 0 compiled, 1 cache hit, 2 skipped, 3 failed, 4 not run; shape (n,),
            uint8.
        driver_ns: Driver time of each, shape (n,), uint64.
        worker: The worker that created it, shape (n,), int32; -1 if none tried.
        reasons: Why a pipeline was skipped or failed, by row.
        handles: Kept pipelines, which the caller owns, shape (n,), uint64.
    """

    keys: npt.NDArray[np.uint64]
    kinds: npt.NDArray[np.uint8]
    status: npt.NDArray[np.uint8]
    driver_ns: npt.NDArray[np.uint64] = msgspec.field(name="driver_ns")
    worker: npt.NDArray[np.int32]
    reasons: dict[int, str]
    handles: npt.NDArray[np.uint64] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError unless the columns fit together."""
        columns = (self.kinds, self.status, self.driver_ns, self.worker)
        if any(len(each) != len(self.keys) for each in columns):
            raise ValueError("the columns of a table of outcomes differ in length")
        if len(self.keys) and (self.status.max() >= len(_STATUSES) or self.kinds.max() >= len(KINDS)):
            raise ValueError("a table of outcomes holds a status or a kind that there is not")
        if self.reasons and not 0 <= min(self.reasons) <= max(self.reasons) < len(self.keys):
            raise ValueError("a table of outcomes has a reason for a pipeline that is not in it")

    @classmethod
    def untried(
        cls, keys: npt.NDArray[np.uint64], kinds: npt.NDArray[np.uint8], *, keep: bool = False
    ) -> Self:
        """A table of pipelines that were not run."""
        count = len(keys)
        return cls(
            keys=keys,
            kinds=kinds,
            status=np.full(count, _CODE[OutcomeStatus.NOT_RUN], np.uint8),
            driver_ns=np.zeros(count, np.uint64),
            worker=np.full(count, -1, np.int32),
            reasons={},
            # Not np.zeros, whose pages would be allocated during the run.
            handles=np.full(count, 0, np.uint64) if keep else None,
        )

    @classmethod
    def of(
        cls, jobs: Sequence[PipelineJob], status: Sequence[OutcomeStatus] = (), reasons: Sequence[str] = ()
    ) -> Self:
        """A table of some pipelines, not run or with the outcomes given."""
        columns = PipelineJobs.of(jobs)
        table = cls.untried(columns.keys, columns.kinds)
        if status:
            table.status[:] = [_CODE[each] for each in status]
        table.reasons.update((row, plain_text(reason)) for row, reason in enumerate(reasons))
        return table

    def __len__(self) -> int:
        """Number of pipelines."""
        return len(self.status)

    def __iter__(self) -> Iterator[PipelineOutcome]:
        """All rows, in order."""
        return map(self.row, range(len(self)))

    def row(self, index: int) -> PipelineOutcome:
        """The outcome of one pipeline."""
        return PipelineOutcome(
            key=Hash(self.keys[index]),
            kind=KINDS[self.kinds[index]],
            status=_STATUSES[self.status[index]],
            reason=self.reasons.get(index, ""),
            driver_ns=int(self.driver_ns[index]),
            index=index,
            handle=0 if self.handles is None else int(self.handles[index]),
        )

    def rows(self, indices: npt.NDArray[np.int32]) -> Self:
        """Some rows, without handles."""
        reasons = {row: self.reasons[at] for row, at in enumerate(indices.tolist()) if at in self.reasons}
        return type(self)(
            self.keys[indices],
            self.kinds[indices],
            self.status[indices],
            self.driver_ns[indices],
            self.worker[indices],
            reasons,
        )

    def of_status(self, status: OutcomeStatus) -> tuple[PipelineOutcome, ...]:
        """The rows with a status, in order."""
        return tuple(map(self.row, np.flatnonzero(self.status == _CODE[status]).tolist()))

    def counts(self, kind: PipelineKind | None = None) -> dict[OutcomeStatus, int]:
        """Pipelines of each status, of one kind or of all; every status has an entry."""
        status = self.status if kind is None else self.status[self.kinds == _KIND_CODE[kind]]
        numbers = np.bincount(status, minlength=len(_STATUSES)).tolist()
        return dict(zip(_STATUSES, numbers, strict=True))

    def settle(self, status: OutcomeStatus, reasons: Mapping[int, str]) -> None:
        """Give pipelines an outcome without a driver call."""
        for index, reason in reasons.items():
            self.reasons[index] = plain_text(reason)
            self.status[index] = _CODE[status]

    @classmethod
    def joined(
        cls, tables: Sequence[OutcomeTable], rank: npt.NDArray[np.int8] = _WORST_OF_PARTS
    ) -> tuple[Self, list[npt.NDArray[np.int32]]]:
        """One table of several, with each pipeline once, by kind and key."""
        keys, kinds, status, driver_ns, worker = (
            np.concatenate([getattr(each, name) for each in tables])
            for name in ("keys", "kinds", "status", "driver_ns", "worker")
        )
        order = PipelineJobs(keys, kinds).in_order()
        first = PipelineJobs(keys[order], kinds[order]).firsts()
        differ = bool(first.all())
        if not differ:  # of equal ones the worst comes first
            order = np.lexsort((np.arange(len(keys)), -rank[status], keys, kinds))
        keys, kinds = keys[order], kinds[order]
        rows = np.empty(len(keys), np.int32)
        rows[order] = np.cumsum(first) - 1
        chosen = order[first]
        spent = driver_ns[chosen]
        if not differ:
            spent = np.zeros(len(chosen), np.uint64)
            np.add.at(spent, rows, driver_ns)
        places = np.split(rows, np.cumsum([len(each) for each in tables])[:-1])
        reasons = {}
        start = 0
        for table, place in zip(tables, places, strict=True):
            for index, reason in table.reasons.items():
                if chosen[place[index]] == start + index:
                    reasons[int(place[index])] = reason
            start += len(table)
        joined = cls(
            keys[first], kinds[first], status[chosen], spent, worker[chosen], dict(sorted(reasons.items()))
        )
        return joined, places


_COLUMNS_OF_OUTCOMES: Final = ("keys", "kinds", "status", "driver_ns", "worker", "handles")


class OutcomeRecorder:
    """Fills the table of a run.

    Several threads may write at once without a lock: each writes the rows of its own batch, and no pipeline
    is in two batches.

    Args:
        image: The pipelines.
        keep: Whether to keep the pipeline handles that batches return.
        later: Most pipelines of other images that may be added.
        libraries_of: Gives the libraries that a pipeline of any image links; None: there is one image.

    Attributes:
        table: The outcomes; driver time and worker are set by `attribute`.
    """

    def __init__(
        self,
        image: CreateInfoImage,
        *,
        keep: bool = False,
        later: int = 0,
        libraries_of: Callable[[int], Sequence[int]] | None = None,
    ) -> None:
        table = OutcomeTable.untried(image.keys, image.kinds, keep=keep)
        self._columns: dict[str, npt.NDArray[Any]] = {}
        if later:
            # Room after each column: untouched memory costs nothing, and threads that still write to a
            # shorter view write to the same memory.
            for name in _COLUMNS_OF_OUTCOMES:
                column = getattr(table, name)
                if column is not None:
                    self._columns[name] = np.empty(len(table) + later, column.dtype)
                    self._columns[name][: len(table)] = column
            table = msgspec.structs.replace(
                table, **{name: each[: len(table)] for name, each in self._columns.items()}
            )
        self._libraries_of = image.libraries_of if libraries_of is None else libraries_of
        self._links = _links_of(image)
        self._show(table)

    def _show(self, table: OutcomeTable) -> None:
        """Use a table from now on."""
        self.table = table
        self._status = table.status
        self._handles = table.handles
        self._status_bytes = table.status.data
        self._handle_bytes = (
            table.handles.data.cast("B") if table.handles is not None and len(table) else None
        )

    def extend(self, image: CreateInfoImage) -> None:
        """Add the pipelines of another image after the others, within `later`. One thread."""
        first = len(self.table)
        last = first + len(image)
        new = OutcomeTable.untried(image.keys, image.kinds, keep=self._handles is not None)
        for name, column in self._columns.items():
            column[first:last] = getattr(new, name)
        self._links = np.concatenate((self._links, _links_of(image) + first))
        shown = {name: column[:last] for name, column in self._columns.items()}
        self._show(msgspec.structs.replace(self.table, **shown))

    def record(self, indices: npt.NDArray[np.int32], batch: CreationBatch) -> tuple[Mapping[int, str], int]:
        """Record a batch's results; `attribute` adds their costs later."""
        span = batch.span
        if span is not None and batch.all_hits and batch.all_created:  # the hot path of a warm run
            # Bytes: numpy would release the GIL for more than 500 elements.
            self._status_bytes[span] = bytes((_CACHE_HIT,)) * len(indices)
            if self._handle_bytes is not None:
                self._handle_bytes[span.start * 8 : span.stop * 8] = batch.handles.data.cast("B")
            return _NO_REASONS, len(indices)
        if self._handles is not None:
            self._handles[indices if span is None else span] = batch.handles
        # One by one: numpy releases the GIL where it indexes by an array, and is slow just after a compile.
        status = bytearray(
            _CACHE_HIT if flags & _HIT == _HIT else _COMPILED for flags in batch.feedback_flags.tolist()
        )
        if self._links.size:
            for place in self._only_linked(indices, batch):
                status[place] = _CACHE_HIT
        reasons: dict[int, str] = {}
        if not batch.all_created:
            for place in np.flatnonzero(batch.results != SUCCESS).tolist():
                status[place] = _CODE[OutcomeStatus.FAILED]
                reasons[int(indices[place])] = _refusal(int(batch.results[place]))
            self.table.reasons.update(reasons)
        # Each once: another thread may count, and no number may fall.
        if span is None:
            for index, code in zip(indices.tolist(), status, strict=True):
                self._status_bytes[index] = code
        else:
            self._status_bytes[span] = status
        return reasons, status.count(_CACHE_HIT)

    def _only_linked(self, indices: npt.NDArray[np.int32], batch: CreationBatch) -> list[int]:
        """Places in a batch of what only links libraries, got no feedback, and whose libraries all hit."""
        silent = (batch.feedback_flags & np.uint32(FEEDBACK_VALID)) == 0
        return [
            place
            for place in np.flatnonzero(silent & np.isin(indices, self._links)).tolist()
            if (self._status[list(self._libraries_of(int(indices[place])))] == _CACHE_HIT).all()
        ]

    def record_failed_call(self, indices: npt.NDArray[np.int32], reason: str) -> dict[int, str]:
        """Record a call that failed as a whole; returns its pipelines with the reason."""
        reasons = {int(index): reason for index in indices}
        self.table.settle(OutcomeStatus.FAILED, reasons)
        return reasons

    def attribute(self, calls: Calls, durations_ns: npt.NDArray[np.uint64]) -> None:
        """Set worker and driver time of the pipelines of a worker's calls, after the barrier."""
        # A pipeline is listed twice where a failed call was repeated; the last cost counts.
        self.table.worker[calls.indices] = np.repeat(calls.worker, calls.sizes)
        self.table.driver_ns[calls.indices] = durations_ns


def _links_of(image: CreateInfoImage) -> npt.NDArray[np.intp]:
    """Pipelines that link libraries and have no stages of their own."""
    return np.flatnonzero(image.links & (np.diff(image.module_slot_start) == 0))


def _refusal(result: int) -> str:
    if result == PIPELINE_COMPILE_REQUIRED:
        return (
            "VK_PIPELINE_COMPILE_REQUIRED: its create info forbids compiling, and the cache does not hold it"
        )
    return registry().result_name(result)


# --- calls, the barrier, the merge


class CreationCall(msgspec.Struct, frozen=True, eq=False):
    """The cost of one call of `Device.create_pipelines`: a row of `Calls`, made on demand.

    It may be several calls into the driver, see `Calls`.

    Attributes:
        worker: The worker that made it.
        start_ns: When it began, on the clock of time.perf_counter_ns.
        wall_ns: Its duration.
        cpu_ns: CPU time of the thread during the call.
        driver_ns: Sum of the pipelines' creation feedback durations; `wall_ns` if the driver gives none.
        run_delay_ns: Time in which the thread was runnable but not scheduled; 0 if unknown.
        indices: The pipelines, shape (k,), int32.
    """

    worker: int
    start_ns: int
    wall_ns: int
    cpu_ns: int
    driver_ns: int
    run_delay_ns: int
    indices: npt.NDArray[np.int32]

    @property
    def blocked_ns(self) -> int:
        """Time asleep inside the driver: driver - cpu - run delay, at least 0."""
        return max(0, self.driver_ns - self.cpu_ns - self.run_delay_ns)


_CALL_COLUMNS: Final = ("worker", "start_ns", "wall_ns", "cpu_ns", "driver_ns", "run_delay_ns")


class Calls(Columns, frozen=True, eq=False, rename=None):
    """Every call of a run, worker by worker, in order.

    Several driver calls for one batch of expected hits count as one: the worker does nothing between them,
    and reads the clocks before the first and after the last.

    Attributes:
        worker: The worker that made each call, shape (c,), int32.
        start_ns: When it began, on the clock of time.perf_counter_ns, shape (c,), int64.
        wall_ns: Its duration, shape (c,), int64.
        cpu_ns: CPU time of the thread during the call, shape (c,), int64.
        driver_ns: Driver time of its pipelines, shape (c,), int64.
        run_delay_ns: Time in which the thread was runnable but not scheduled, shape (c,), int64.
        sizes: Number of its pipelines, shape (c,), int32.
        indices: The pipelines of all calls in sequence, as rows of the run's table, int32.
    """

    worker: npt.NDArray[np.int32]
    start_ns: npt.NDArray[np.int64]
    wall_ns: npt.NDArray[np.int64]
    cpu_ns: npt.NDArray[np.int64]
    driver_ns: npt.NDArray[np.int64]
    run_delay_ns: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]
    indices: npt.NDArray[np.int32]

    def __post_init__(self) -> None:
        """Raise ValueError unless the columns fit together."""
        if any(len(getattr(self, name)) != len(self.sizes) for name in _CALL_COLUMNS):
            raise ValueError("the columns of a table of calls differ in length")
        if int(self.sizes.sum()) != len(self.indices):
            raise ValueError("a table of calls has not as many pipelines as its calls")

    @classmethod
    def of(cls, calls: Iterable[CreationCall]) -> Self:
        """The columns of some calls."""
        rows = list(calls)
        columns = {name: np.array([getattr(each, name) for each in rows], np.int64) for name in _CALL_COLUMNS}
        sizes = np.array([len(each.indices) for each in rows], np.int32)
        indices = np.concatenate([np.zeros(0, np.int32), *(each.indices for each in rows)])
        worker = columns.pop("worker").astype(np.int32)
        return cls(worker, **columns, sizes=sizes, indices=indices)

    @classmethod
    def joined(cls, parts: Sequence[Calls]) -> Self:
        """The calls of several, one after the other."""
        some = parts or [cls.of(())]
        return cls(
            *(np.concatenate([getattr(each, name) for each in some]) for name in cls.__struct_fields__)
        )

    def __len__(self) -> int:
        """Number of calls."""
        return len(self.sizes)

    def __iter__(self) -> Iterator[CreationCall]:
        """The calls as rows."""
        columns = (getattr(self, name).tolist() for name in _CALL_COLUMNS)
        pipelines = np.split(self.indices, np.cumsum(self.sizes)[:-1]) if len(self) else []
        return map(CreationCall, *columns, pipelines)

    @property
    def blocked_ns(self) -> npt.NDArray[np.int64]:
        """Time asleep inside the driver, call by call; see `CreationCall`."""
        slept: npt.NDArray[np.int64] = np.maximum(0, self.driver_ns - self.cpu_ns - self.run_delay_ns)
        return slept


class Barrier(Record, frozen=True, rename=None):
    """The point where all workers have ended.

    Attributes:
        arrivals_ns: When each worker arrived, on the clock of time.perf_counter_ns.
        end_ns: When the last worker had arrived and the run went on.
    """

    arrivals_ns: tuple[int, ...]
    end_ns: int

    @property
    def waits_ns(self) -> tuple[int, ...]:
        """Time that each worker waited."""
        return tuple(self.end_ns - each for each in self.arrivals_ns)


class Duplicates(Record, frozen=True):
    """Pipelines that more than one worker compiled.

    Attributes:
        keys: Number of keys that more than one worker compiled.
        driver_ns: Driver time of all compiles of these keys except the first of each, in the order of the
            set.
    """

    keys: int
    driver_ns: Nanoseconds


class RollingReport(Record, frozen=True):
    """The merges during a run, without the merge at the barrier.

    Attributes:
        folds: Number of merges into the primary.
        caches: Number of merged worker caches.
        pipelines: Number of pipelines that were compiled into them.
        source_bytes: Sum of their sizes.
        merge_ns: Time of all these merges; other threads compile meanwhile.
        hook_ns: Time in `on_merged`; likewise.
        longest_pause_ns: Longest time that merging cost a worker between two batches: checking the
            thresholds, taking a new cache, and in mode TWO_LEVEL waiting for a merge before a look-up.
        deferred: Rotations that were due when no new cache was ready, and took place later or not at all.
        synchronized_by: What keeps look-ups and merges apart: "driver" (internally synchronized merge),
            "lock" (one of ours), or "nothing", where only the merging thread uses the primary.
    """

    folds: int
    caches: int
    pipelines: int
    source_bytes: int
    merge_ns: Nanoseconds
    hook_ns: Nanoseconds
    longest_pause_ns: Nanoseconds
    deferred: int
    synchronized_by: str


class MergeReport(Record, frozen=True):
    """The merge. In mode SHARED there are no sources, and the figures are those of the primary.

    Attributes:
        source_bytes: Size of each worker cache, worker by worker.
        header_bytes: Bytes of each size that do not hold pipelines.
        seed_bytes: Size of the initial data of each worker cache, or 0.
        primary_bytes_before: Size of the primary before the merge (in mode SHARED and with a rolling merge:
            before the run).
        primary_bytes_after: Its size after the merge.
        pruned_bytes: Payload that the sources and the primary held more than once: sum of the sources without
            their headers + before - after, at least 0.
        duplicate_job_keys: Keys of the set that more than one worker compiled.
        duplicate_pipeline_keys: The same by vkGetPipelineKeyKHR, which recognizes two jobs that are the same
            pipeline to the driver; None if keys were not requested or the device has none.
        barrier_wait_ns: Time that each worker waited at the barrier.
        merge_ns: Time of the merge alone.
        warnings: What a user should know, such as a merge that kept nothing; empty if all is well.
        rolling: The merges during the run, or None if all were at the barrier.
        unmerged: Worker caches that the driver did not merge, so that what only they held is lost.
        started_ns: When the merge began, on the clock of time.perf_counter_ns.
    """

    source_bytes: tuple[int, ...]
    header_bytes: int
    seed_bytes: int
    primary_bytes_before: int
    primary_bytes_after: int
    pruned_bytes: int
    duplicate_job_keys: Duplicates
    duplicate_pipeline_keys: Duplicates | None
    barrier_wait_ns: tuple[Nanoseconds, ...]
    merge_ns: Nanoseconds
    warnings: tuple[str, ...]
    rolling: RollingReport | None = None
    unmerged: int = 0
    started_ns: int = msgspec.field(default=0, name="started_ns")


class BinariesRecord(Sums, frozen=True, omit_defaults=True):
    """The use of pipeline binaries, in mode `binaries`.

    Attributes:
        looked_up: Pipelines that were looked up before the first was created.
        pulled_in: Pipelines that were found, and whose binaries were created in advance.
        pulled_late: Pipelines that were found and exceeded the bound on memory, so that their binaries were
            created when they were needed.
        pulled_binaries: Binaries of the pipelines found that were created; one that is created again, because
            it was needed after its release, counts again.
        pulled_bytes: Size of these binaries.
        from_internal_cache: Pipelines whose binaries the driver's own cache had.
        created: Pipelines that were created from binaries.
        refused: Pipelines that the driver did not create from their binaries, or may have died of; they were
            compiled.
        damaged: Pipelines whose stored entry or binaries were damaged; they were compiled.
        ambiguous: Pipelines with only module identifiers, for which several stored pipelines with different
            binaries match; they were compiled.
        captured: Pipelines that were compiled and captured.
        stored: Captured pipelines that were stored.
        lost: Captured pipelines that could not be stored.
        too_large: Captured pipelines that would take too much of the store.
        collisions: Stored pipelines whose driver's key another state with other binaries has.
        shared_keys: Stored pipelines whose driver's key another state with the same binaries has.
        captured_bytes: Size of all captured binaries.
        stored_bytes: Size of the binaries that were new to the store.
        evicted: Pipelines that were removed from the store to make room.
        commits: Number of batches that were stored.
        look_up_ns: Time of the look-ups and of creating binaries, before the first pipeline.
        store_ns: Time of writing to the store, in parallel to the workers.
    """

    looked_up: int = 0
    pulled_in: int = 0
    pulled_late: int = 0
    pulled_binaries: int = 0
    pulled_bytes: int = 0
    from_internal_cache: int = 0
    created: int = 0
    refused: int = 0
    damaged: int = 0
    ambiguous: int = 0
    captured: int = 0
    stored: int = 0
    lost: int = 0
    too_large: int = 0
    collisions: int = 0
    shared_keys: int = 0
    captured_bytes: int = 0
    stored_bytes: int = 0
    evicted: int = 0
    commits: int = 0
    look_up_ns: Nanoseconds = 0
    store_ns: Nanoseconds = 0


class IdentifiersRecord(Sums, frozen=True, omit_defaults=True):
    """The use of shader-module identifiers, with which pipelines may be created without their SPIR-V.

    Attributes:
        modules: Number of shader modules; one that two groups of a set use counts twice.
        known: Modules whose identifier was known at the start.
        created: Pipelines that were created without their SPIR-V.
        missed: Pipelines that were not, and needed their SPIR-V.
        unknown: Missed pipelines that the driver was not asked for, because an identifier was not known.
        asked: Shaders whose SPIR-V was requested.
        refused: Requested shaders that were not supplied, or whose code cannot be used.
        changed: Requested shaders whose identifier differs from the known one.
        supplied_bytes: Size of the supplied SPIR-V.
        provider_ns: Sum of the provider's response times.
        slowest_ns: The longest response time.
        code_bytes: SPIR-V of all modules, as far as its size is known.
        store_bytes: Size of the identifiers on disk.
    """

    _LARGEST = frozenset({"slowest_ns", "store_bytes"})  # several parts share one store

    modules: int = 0
    known: int = 0
    created: int = 0
    missed: int = 0
    unknown: int = 0
    asked: int = 0
    refused: int = 0
    changed: int = 0
    supplied_bytes: int = 0
    provider_ns: Nanoseconds = 0
    slowest_ns: Nanoseconds = 0
    code_bytes: int = 0
    store_bytes: int = 0


_Summed = TypeVar("_Summed", BinariesRecord, IdentifiersRecord)


def _of_those_there(one: _Summed | None, two: _Summed | None) -> _Summed | None:
    return two if one is None else one if two is None else one + two


def _each_once(*lists: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(each for some in lists for each in some))


# --- timing


class Timing(Sums, frozen=True):
    """Times of a run. Every figure adds up, over the groups of a compile and over parts.

    Attributes:
        open_ns: Opening the device.
        prepare_ns: Decoding the set into create infos, and creating layouts, render passes and modules.
        wall_ns: From the first job submitted to the end of the barrier.
        driver_ns: Sum over all calls of the driver's own time.
        cpu_ns: Sum over all calls of the threads' CPU time.
        blocked_ns: Sum over all calls of the time asleep inside the driver.
        run_delay_ns: Sum over all calls of the time runnable but not scheduled.
        merge_ns: Merging the worker caches.
        cache_load_ns: Reading the cache file and creating the primary.
        cache_save_ns: Reading the primary back and writing the file.
        overhead_ns: wall x workers - driver: all time outside the driver, idle workers included.
        make_caches_ns: Creating the primary (if the run creates it) and the worker caches, before the first
            job.
        read_back_ns: Reading the primary's data, if the run does.
        waiting_ns: Sum over all workers of the time in which all remaining pipelines waited for a library or
            for a pipeline of the same key.
        ending_ns: Sum over all workers of the time in which none was left, and other workers ended.
        blocked_without_faults_ns: Part of `blocked_ns` in calls without a page fault of the thread, so hardly
            at the kernel's lock on the process's memory.
        minor_faults: Page faults of the workers' threads without disk access.
        major_faults: Page faults with disk access.
        sleeps: Voluntary context switches of the workers' threads.
        preemptions: Involuntary context switches of the workers' threads.
    """

    open_ns: Nanoseconds = 0
    prepare_ns: Nanoseconds = 0
    wall_ns: Nanoseconds = 0
    driver_ns: Nanoseconds = 0
    cpu_ns: Nanoseconds = 0
    blocked_ns: Nanoseconds = 0
    run_delay_ns: Nanoseconds = 0
    merge_ns: Nanoseconds = 0
    cache_load_ns: Nanoseconds = 0
    cache_save_ns: Nanoseconds = 0
    overhead_ns: Nanoseconds = 0
    make_caches_ns: Nanoseconds = 0
    read_back_ns: Nanoseconds = 0
    waiting_ns: Nanoseconds = 0
    ending_ns: Nanoseconds = 0
    blocked_without_faults_ns: Nanoseconds = 0
    minor_faults: int = 0
    major_faults: int = 0
    sleeps: int = 0
    preemptions: int = 0

    @property
    def idle_share(self) -> float:
        """Share of the workers' time in which they had nothing to do."""
        workers_ns = self.overhead_ns + self.driver_ns  # wall x workers, over all runs
        return (self.waiting_ns + self.ending_ns) / workers_ns if workers_ns > 0 else 0.0


def timing_of(calls: Calls, *, workers: int, wall_ns: int, **spent_ns: int) -> Timing:
    """Sum up the calls of a run."""
    driver_ns = int(calls.driver_ns.sum())
    return Timing(
        wall_ns=wall_ns,
        driver_ns=driver_ns,
        cpu_ns=int(calls.cpu_ns.sum()),
        blocked_ns=int(calls.blocked_ns.sum()),
        run_delay_ns=int(calls.run_delay_ns.sum()),
        overhead_ns=wall_ns * workers - driver_ns,
        **spent_ns,
    )


# --- the report of a run


class RunReport(Record, frozen=True, omit_defaults=True):
    """The outcomes and costs of a run. A value: it refers to no cache and no device.

    Attributes:
        mode: The cache topology.
        workers: Number of workers.
        pipelines: The outcome of each pipeline, in the order of the image.
        calls: Every call, worker by worker, in order.
        barrier: The barrier.
        merge: The merge; None in mode NONE.
        timing: The times.
        stopped: Whether the run was stopped before its end, so that pipelines may be NOT_RUN.
        device_lost: Whether VK_ERROR_DEVICE_LOST stopped it.
        notes: Caveats for readers, such as a fallback; each once.
        cache_data: The primary's data if the run created the primary; None if it did not, if the driver gave
            none (see `notes`).
        binaries: The use of binaries; null in other modes.
        identifiers: The use of shader-module identifiers; null if they are not used.
    """

    mode: CacheMode
    workers: int
    pipelines: OutcomeTable
    calls: Calls
    barrier: Barrier
    merge: MergeReport | None
    timing: Timing
    stopped: bool
    notes: tuple[str, ...]
    device_lost: bool = False
    cache_data: bytes | None = None
    binaries: BinariesRecord | None = None
    identifiers: IdentifiersRecord | None = None

    def __len__(self) -> int:
        """Number of pipelines."""
        return len(self.pipelines)

    def counts(self, kind: PipelineKind | None = None) -> dict[OutcomeStatus, int]:
        """Pipelines of each status, of one kind or of all; every status has an entry."""
        return self.pipelines.counts(kind)

    @property
    def skipped(self) -> tuple[PipelineOutcome, ...]:
        """The skipped pipelines, ascending."""
        return self.pipelines.of_status(OutcomeStatus.SKIPPED)

    @property
    def failed(self) -> tuple[PipelineOutcome, ...]:
        """The failed pipelines, ascending."""
        return self.pipelines.of_status(OutcomeStatus.FAILED)

    @property
    def compiled(self) -> int:
        """Pipelines created by compiling."""
        return self.counts()[OutcomeStatus.COMPILED]

    @property
    def cache_hits(self) -> int:
        """Pipelines created from the application's cache."""
        return self.counts()[OutcomeStatus.CACHE_HIT]


# --- the report of a compile


class IdentityRecord(Record, frozen=True, kw_only=True):
    """A device and its driver.

    Attributes:
        vendor_id: VkPhysicalDeviceProperties::vendorID.
        device_id: VkPhysicalDeviceProperties::deviceID.
        driver_version: VkPhysicalDeviceProperties::driverVersion, in the vendor's own encoding.
        driver_id: VkDriverId, or 0 if the driver does not tell.
        driver_abi: Bits of a pointer in the process that uses the driver.
        pipeline_cache_uuid: VkPhysicalDeviceProperties::pipelineCacheUUID, 32 hex digits.
        api_version: VkPhysicalDeviceProperties::apiVersion.
        device_name: Name of the device.
        driver_name: VkPhysicalDeviceDriverProperties::driverName.
        driver_info: VkPhysicalDeviceDriverProperties::driverInfo.
    """

    vendor_id: int
    device_id: int
    driver_version: int
    driver_id: int
    driver_abi: int
    pipeline_cache_uuid: str
    api_version: ApiVersion
    device_name: str
    driver_name: str
    driver_info: str

    @classmethod
    def of(cls, identity: DeviceIdentity, **more: Any) -> Self:
        """The record of an identity, with more fields."""
        fields = asdict(identity) | {
            "pipeline_cache_uuid": identity.pipeline_cache_uuid.hex(),
            "api_version": ApiVersion(identity.api_version),
        }
        return cls(**fields, **more)


class DeviceRecord(IdentityRecord, frozen=True, kw_only=True):
    """A device.

    Attributes:
        features: Its features that matter to this program.
    """

    features: DeviceFeatures

    @property
    def identity(self) -> DeviceIdentity:
        """Its identity."""
        uuid = bytes.fromhex(self.pipeline_cache_uuid)
        fields = msgspec.structs.asdict(self) | {"pipeline_cache_uuid": uuid}
        del fields["features"]
        return DeviceIdentity(**fields)


class RequestRecord(Record, frozen=True):
    """How a device was opened.

    Attributes:
        application: VkApplicationInfo::pApplicationName, null for a null pointer.
        application_version: VkApplicationInfo::applicationVersion.
        engine: VkApplicationInfo::pEngineName, null for a null pointer.
        engine_version: VkApplicationInfo::engineVersion.
        api_version: VkApplicationInfo::apiVersion; null if unknown, which opens the newest.
        features: Features to enable, as structure::member, if the device has them.
        extensions: Device extensions to enable in addition to those of the features.
        others: All other features: off ("none"), on if captures cannot record them ("unrecorded"), or on
            ("all").
        orchestrator_features: Whether the features that this program itself uses were added; null: if they
            are known not to change the driver's keys.
    """

    application: str | None
    application_version: int
    engine: str | None
    engine_version: int
    api_version: ApiVersion | None
    features: tuple[str, ...]
    extensions: tuple[str, ...]
    others: OtherFeatures
    orchestrator_features: bool | None = None

    @classmethod
    def of(cls, request: DeviceRequest) -> Self:
        """The record of a request."""
        told = request.application
        return cls(
            told.application_name,
            told.application_version,
            told.engine_name,
            told.engine_version,
            ApiVersion(told.api_version) if told.api_version else None,
            tuple(sorted(f"{struct}::{member}" for struct, member in request.features)),
            tuple(sorted(request.extensions)),
            request.others,
            request.orchestrator_features,
        )

    @property
    def request(self) -> DeviceRequest:
        """The request."""
        pairs = (each.partition("::") for each in self.features)
        return DeviceRequest(
            ApplicationInfo(
                self.application,
                self.application_version,
                self.engine,
                self.engine_version,
                self.api_version or 0,
            ),
            frozenset((struct, member) for struct, _, member in pairs),
            frozenset(self.extensions),
            self.others,
            self.orchestrator_features,
        )


class GroupRecord(Record, frozen=True):
    """A group of pipelines and the device that it was compiled on.

    Attributes:
        opened_as: How the device was opened.
        added: Features and extensions that the pipelines need and no recorded application enabled.
        applications: Hashes of the applications.
        pipelines: Number of its pipelines that were given to the driver.
        cache_file: Its cache file, or null.
    """

    opened_as: RequestRecord
    added: tuple[str, ...]
    applications: tuple[Hash, ...]
    pipelines: int
    cache_file: Path | None = None

    @classmethod
    def of(cls, group: FeatureGroup, pipelines: int, cache_file: Path | None) -> Self:
        """The record of a group; see the attributes."""
        applications = tuple(map(Hash, group.applications))
        return cls(RequestRecord.of(group.request), group.added, applications, pipelines, cache_file)


class DamageRecord(Record, frozen=True):
    """Damage in a set, which was left out.

    Attributes:
        offset: Byte offset in the file, or null.
        tag: Kind of the record, such as ``shader_module``, or its number if unknown; null without a record.
        key: Hash of the record, or null.
        reason: What is wrong and the likely cause.
    """

    offset: int | None
    tag: str | None
    key: Hash | None
    reason: str

    @classmethod
    def of(cls, damage: Damage) -> Self:
        """The record of a damage."""
        tag = damage.tag
        known = tag in RecordTag.__members__.values()
        name = None if tag is None else RecordTag(tag).name.lower() if known else str(tag)
        return cls(damage.offset, name, None if damage.key is None else Hash(damage.key), damage.reason)


class SubsetRecord(Record, frozen=True):
    """Which part of a set was compiled.

    Attributes:
        shard: Which shard, 1 to `shards`.
        shards: How many shards the set is divided into.
        keys: Keys that were chosen, or null for all.
        of: Number of pipelines of the set.
    """

    shard: int
    shards: int
    keys: tuple[Hash, ...] | None
    of: int

    @classmethod
    def of_set(cls, subset: Subset, pipelines: int) -> Self:
        """The record of a subset of a set with so many pipelines."""
        keys = None if subset.keys is None else tuple(map(Hash, sorted(subset.keys)))
        return cls(subset.shard, subset.shards, keys, pipelines)


class SetRecord(Record, frozen=True):
    """The set that was compiled.

    Attributes:
        path: Its path.
        content_hash: Hash over the names of all records.
        pipelines: Number of requested pipelines of each kind.
        unique: Number of all requested pipelines.
        applications: Names of the recorded applications, "" for one without a name.
        groups: The groups that were compiled, each on a device opened for it.
        damage: Records that cannot be read.
        subset: The requested part of the set; null for all of it.
    """

    path: str
    content_hash: Hash | None
    pipelines: dict[PipelineKind, int]
    unique: int
    applications: tuple[str, ...]
    groups: tuple[GroupRecord, ...]
    damage: tuple[DamageRecord, ...]
    subset: SubsetRecord | None = None


class SaveReason(enum.StrEnum):
    """Why a save is due.

    QUIET: nothing was created for a while.
    GROWTH: much is new.
    OVERDUE: new pipelines have waited for long, because creation was never quiet.
    CANCELLED: the run was cancelled.
    SIGNAL: the process was asked to end, as by SIGTERM.
    EXIT: the run or the process ends.
    """

    QUIET = "quiet"
    GROWTH = "growth"
    OVERDUE = "overdue"
    CANCELLED = "cancelled"
    SIGNAL = "signal"
    EXIT = "exit"


class CacheSave(Record, frozen=True):
    """One save of the cache file.

    Attributes:
        reason: What caused the save.
        saved_bytes: Bytes of the file that was written, or 0.
        bytes_before: Size of the old driver data that was merged with ours, or 0.
        bytes_after: Size of the driver data in the file now, if known.
        merged_with_others: Whether the old data came from another process, and not from this run.
        skipped: Why nothing was written, or null.
        error: Why it failed, or null.
        locked_out: Whether it was skipped because another process did not finish saving in time.
        note: A caveat, such as a driver that does not merge, or null.
    """

    reason: SaveReason
    saved_bytes: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    merged_with_others: bool = False
    skipped: str | None = None
    error: str | None = None
    locked_out: bool = False
    note: str | None = None


class Refused(Record, frozen=True):
    """A cache file that was not loaded.

    Attributes:
        status: The result of loading it.
        field: Vulkan name of the first field that differs or is wrong, or null.
        detail: A sentence: expected and found for every field that differs, or the cause.
    """

    status: LoadStatus
    field: str | None
    detail: str


class CacheFileRecord(Record, frozen=True):
    """How the cache file was loaded and saved.

    Attributes:
        path: Its path, or null if the mode has no cache file.
        load_status: The result of loading it; null if that was not tried.
        load_field: Vulkan name of the first field that differs or is wrong, or null.
        load_detail: A sentence: expected and found for every field that differs, or the cause.
        loaded_from: The loaded file: the previous generation, if the current one is damaged.
        instead_of: What is wrong with the current generation, if the previous one was loaded; else null.
        quarantined: Where a damaged file was moved to, or null.
        loaded_bytes: Bytes of driver data that were loaded.
        saved_bytes: Bytes of the file in the last save, or 0.
        not_saved: Why the last save wrote nothing, or null.
        error: Why the last save failed, or null.
        saves: All saves, also those during the run.
    """

    path: Path | None = None
    load_status: LoadStatus | None = None
    load_field: str | None = None
    load_detail: str | None = None
    loaded_from: Path | None = None
    instead_of: Refused | None = None
    quarantined: Path | None = None
    loaded_bytes: int = 0
    saved_bytes: int = 0
    not_saved: str | None = None
    error: str | None = None
    saves: tuple[CacheSave, ...] = ()

    @classmethod
    def of(cls, path: Path, loaded: LoadResult) -> Self:
        """The record of a file after loading it."""
        current = loaded.instead_of
        return cls(
            path=path,
            load_status=loaded.status,
            load_field=loaded.field,
            load_detail=loaded.detail,
            loaded_from=loaded.path,
            instead_of=None if current is None else Refused(current.status, current.field, current.detail),
            quarantined=loaded.quarantined,
            loaded_bytes=len(loaded.data),
        )


class Savings(Sums, frozen=True):
    """Compiles that were saved, because the run had compiled the same code before.

    Attributes:
        by_state_key: Pipelines with the state key of another one.
        by_pipeline_key: Pipelines with the driver's key of another one, each state key once.
        driver_ns: Compile time of the other pipelines, minus the time of the hits: about what was saved.
        keys_asked: Number of pipelines whose key the driver was asked for.
        keys_ns: Time of asking.
    """

    by_state_key: int = 0
    by_pipeline_key: int = 0
    driver_ns: Nanoseconds = 0
    keys_asked: int = 0
    keys_ns: Nanoseconds = 0


class MergeTotals(Record, frozen=True):
    """The merges of all groups together.

    Attributes:
        caches: Number of worker caches, with those that were merged during the runs.
        source_bytes: Size of all these.
        primary_bytes_before: Size of the primary before the first.
        primary_bytes_after: That and what each merge added.
        pruned_bytes: Payload that was there more than once.
        duplicate_keys: Number of keys of the set that more than one worker compiled.
        duplicate_driver_ns: Driver time of all compiles of these keys except the first of each.
        merge_ns: Time of the merges.
        barrier_wait_ns: Time that all workers waited at the barriers.
        groups: The merge of each group, with each worker's figures.
    """

    caches: int
    source_bytes: int
    primary_bytes_before: int
    primary_bytes_after: int
    pruned_bytes: int
    duplicate_keys: int
    duplicate_driver_ns: Nanoseconds
    merge_ns: Nanoseconds
    barrier_wait_ns: Nanoseconds
    groups: tuple[MergeReport, ...]

    @classmethod
    def of(cls, merges: tuple[MergeReport, ...]) -> Self | None:
        """The totals; None where nothing was merged."""
        if not merges:
            return None
        rolling = [each.rolling for each in merges if each.rolling is not None]
        before = merges[0].primary_bytes_before
        added = sum(each.primary_bytes_after - each.primary_bytes_before for each in merges)
        return cls(
            caches=sum(len(each.source_bytes) for each in merges) + sum(each.caches for each in rolling),
            source_bytes=sum(sum(each.source_bytes) for each in merges)
            + sum(each.source_bytes for each in rolling),
            primary_bytes_before=before,
            primary_bytes_after=before + added,
            pruned_bytes=sum(each.pruned_bytes for each in merges),
            duplicate_keys=sum(each.duplicate_job_keys.keys for each in merges),
            duplicate_driver_ns=sum(each.duplicate_job_keys.driver_ns for each in merges),
            merge_ns=sum(each.merge_ns for each in merges),
            barrier_wait_ns=sum(sum(each.barrier_wait_ns) for each in merges),
            groups=merges,
        )


class Stage(Record, frozen=True):
    """A part of the job other than creating pipelines, for timelines.

    Attributes:
        name: "plan" (looking for one), "open", "read", "prepare", "identifiers", "vet", "pipeline_keys",
            "cache_load" or "cache_save".
        start_ns: When it began, on the clock of time.perf_counter_ns.
        duration_ns: Its duration.
        overlapped: Whether another group ran meanwhile: this was for the next one, or the end of the one
            before.
    """

    name: str
    start_ns: int = msgspec.field(name="start_ns")
    duration_ns: Nanoseconds
    overlapped: bool = False


class ProcessClock(Sums, frozen=True):
    """The time of the process up to the end of the report, in stages; every moment belongs to one stage.

    If a program embeds `compile_set`, it begins with the call.

    Attributes:
        start_ns: Start of the interpreter.
        imports_ns: Loading the program and parsing its command line, with imports in the process that
            compiles.
        read_ns: Opening the set and reading its index.
        open_ns: Opening devices, as far as nothing else was done meanwhile.
        prepare_ns: Creating create infos, layouts, render passes and modules.
        vet_ns: Validating or trying modules that may be invalid.
        cache_load_ns: Reading cache files and creating primaries.
        keys_ns: Reading recorded times, asking the driver for pipeline keys, and making the schedule.
        run_ns: Creating worker caches and pipelines.
        supervise_ns: Waiting for the process that compiles, apart from the stages that it reports: its start,
            and processes that died; 0 without one.
        merge_ns: Merging after the barrier, and reading back.
        save_ns: Writing cache files, recorded times and notes.
        inspect_ns: Asking the driver about the code of pipelines.
        close_ns: Closing devices.
        report_ns: Making and writing the report, without the time of its reader and the exit of the process.
    """

    start_ns: Nanoseconds = 0
    imports_ns: Nanoseconds = 0
    read_ns: Nanoseconds = 0
    open_ns: Nanoseconds = 0
    prepare_ns: Nanoseconds = 0
    vet_ns: Nanoseconds = 0
    cache_load_ns: Nanoseconds = 0
    keys_ns: Nanoseconds = 0
    run_ns: Nanoseconds = 0
    merge_ns: Nanoseconds = 0
    save_ns: Nanoseconds = 0
    inspect_ns: Nanoseconds = 0
    supervise_ns: Nanoseconds = 0
    close_ns: Nanoseconds = 0
    report_ns: Nanoseconds = 0

    @classmethod
    def of(cls, clock: StageClock) -> Self:
        """The times of the stages of a clock so far."""
        return cls(**{f"{stage}_ns": spent_ns for stage, spent_ns in clock.spent_ns().items()})

    @property
    def total_ns(self) -> int:
        """Sum of all stages."""
        return sum(msgspec.structs.astuple(self))


class InspectedPipeline(Record, frozen=True):
    """The driver's statistics of a pipeline's code.

    Attributes:
        key: Its hash in the set.
        kind: Its kind.
        found: The statistics.
    """

    key: Hash
    kind: PipelineKind
    found: PipelineExecutables


class Versions(Record, frozen=True):
    """The programs that made a report.

    Attributes:
        python: Version of Python.
        orchestrator: Version of this package.
        registry: Version of its Vulkan registry.
    """

    python: str
    orchestrator: str
    registry: str


class Death(Record, frozen=True):
    """The end of a process that compiled.

    Attributes:
        how: The signal or the exit code; or that it was killed, because a driver call did not return.
        where: What it was doing.
        suspects: Number of pipelines that were in the driver.
        blamed: Number of pipelines that trials blamed; others may have been tried with the suspects.
        by_driver: Whether the driver ended it: no person, no other program and no limit on memory.
        explained: Whether all suspects were tried; not if the compile was stopped before, or out of time.
    """

    how: str
    where: str
    suspects: int
    blamed: int
    by_driver: bool = True
    explained: bool = True


class DriverMessages(Record, frozen=True):
    """Messages of the driver, with the pipelines that caused them as far as known.

    Attributes:
        lines: Number of lines.
        size: Number of bytes.
        first: The first line, with the next if it is a heading; a long one is cut off.
        keys: Pipelines that were in the driver while it printed; one if the cause is known.
    """

    lines: int
    size: int
    first: str
    keys: tuple[Hash, ...]


class Supervision(Record, frozen=True):
    """The supervision of a compile.

    Attributes:
        processes: Number of processes that compiled, one after another.
        deaths: The ends of all of them except the last.
        trials: Number of processes that tried suspects alone.
        explaining_ns: Time between the deaths and their explanations.
        culprits: Pipelines of the set that were not compiled because they ended a process, in this run or in
            an earlier one.
        messages: Messages of the driver.
    """

    processes: int = 0
    deaths: tuple[Death, ...] = ()
    trials: int = 0
    explaining_ns: Nanoseconds = _NO_TIME
    culprits: tuple[Culprit, ...] = ()
    messages: tuple[DriverMessages, ...] = ()

    def __add__(self, other: Self) -> Self:
        """Both together."""
        return type(self)(
            self.processes + other.processes,
            self.deaths + other.deaths,
            self.trials + other.trials,
            self.explaining_ns + other.explaining_ns,
            _each_once(self.culprits, other.culprits),
            self.messages + other.messages,
        )


class CompileReport(Record, frozen=True, kw_only=True):
    """The report of compiling a set. Its encoding is the JSON of `compile`.

    A pipeline that several applications used with different features is compiled for each; it counts once,
    with its worst outcome: failed before not run, compiled, hit, skipped.

    Attributes:
        version: Version of the format.
        device: The device.
        set: The set.
        mode: The cache topology.
        workers: Number of workers.
        outcomes: Pipelines of each status; disjoint, with the sum `set.unique`.
        outcomes_by_kind: The same for each kind.
        skipped: All skipped pipelines, by kind and key.
        failed: All failed pipelines, by kind and key.
        saved: Compiles that were saved, because the run had compiled the same code before.
        merge: The merges; null in mode `none`.
        cache_file: How the cache file was loaded and saved.
        timing: The times of the runs.
        stopped: Whether it was stopped before its end.
        out_of_time: Whether it was stopped because its time limit was reached.
        notes: Caveats for readers; each once.
        versions: The programs that made the report.
        pipelines: The outcome of each pipeline of the set, by kind and key.
        runs: The report of each group's run, in the order of `set.groups`.
        stages: Other parts of the job, in the order of their ends.
        inspected: The driver's statistics of each created pipeline's code, if requested, by group.
        supervision: The processes that compiled; null if it was this one.
        binaries: The use of binaries, over all groups; null in other modes.
        identifiers: The use of shader-module identifiers, over all groups; null if they are not used.
        clock: The time of the process, in stages.
    """

    version: int = FORMAT
    device: DeviceRecord
    set: SetRecord
    mode: CacheMode
    workers: int
    outcomes: Counts
    outcomes_by_kind: dict[PipelineKind, Counts]
    skipped: tuple[PipelineOutcome, ...]
    failed: tuple[PipelineOutcome, ...]
    saved: Savings = Savings()
    merge: MergeTotals | None
    cache_file: CacheFileRecord
    timing: Timing
    stopped: bool
    out_of_time: bool = False
    notes: tuple[str, ...]
    versions: Versions
    pipelines: OutcomeTable
    runs: tuple[RunReport, ...]
    stages: tuple[Stage, ...] = ()
    inspected: tuple[InspectedPipeline, ...] = ()
    supervision: Supervision | None = None
    binaries: BinariesRecord | None = None
    identifiers: IdentifiersRecord | None = None
    clock: ProcessClock = ProcessClock()

    @classmethod
    def of(cls, *, pipelines: OutcomeTable, runs: Sequence[RunReport], stopped: bool, **fields: Any) -> Self:
        """A report, with the attributes that follow from its table and its runs."""

        def counted(kind: PipelineKind | None) -> Counts:
            compiled, hits, skipped, failed, not_run = pipelines.counts(kind).values()
            return Counts(compiled, hits, skipped, failed, not_run if stopped or not_run else msgspec.UNSET)

        follows = {
            "outcomes": counted(None),
            "outcomes_by_kind": {kind: counted(kind) for kind in PipelineKind},
            "skipped": pipelines.of_status(OutcomeStatus.SKIPPED),
            "failed": pipelines.of_status(OutcomeStatus.FAILED),
            "merge": MergeTotals.of(tuple(each.merge for each in runs if each.merge is not None)),
            "binaries": reduce(_of_those_there, [each.binaries for each in runs], None),
            "identifiers": reduce(_of_those_there, [each.identifiers for each in runs], None),
        }
        return cls(pipelines=pipelines, runs=tuple(runs), stopped=stopped, **fields | follows)

    def counts(self, kind: PipelineKind | None = None) -> dict[OutcomeStatus, int]:
        """Pipelines of each status, of one kind or of all; every status has an entry."""
        return self.pipelines.counts(kind)

    def of_status(self, status: OutcomeStatus) -> tuple[PipelineOutcome, ...]:
        """The pipelines with a status, by kind and key."""
        return self.pipelines.of_status(status)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all merges, each once."""
        return _each_once(*(each.merge.warnings for each in self.runs if each.merge is not None))


# --- progress


INTERVAL_S: Final = 0.1
"""Least time between two reports of progress, seconds, except the last one."""


class SlowInFlight(Record, frozen=True, rename=None):
    """The longest driver call in flight.

    Attributes:
        key: Hash of its pipeline in the set; of several, of the first.
        kind: Its kind.
        pipelines: Number of pipelines in that call.
        age_s: Seconds since the call began, to a tenth.
    """

    key: Hash
    kind: PipelineKind
    pipelines: int
    age_s: float


class Progress(Record, frozen=True, rename=None):
    """Progress of a run, or of a compile over all its groups. The total is fixed, and `done` never falls.

    In a session the total is the number of submitted pipelines that were not cancelled, with the libraries
    that they need; at the end `done` equals it.

    Attributes:
        total: Pipelines to create; in a compile over all groups, known once the set's index is read.
        done: Pipelines with an outcome: compiled + hits + failed + skipped.
        compiled: Created by compiling.
        hits: Created from the application's cache, as creation feedback tells.
        failed: Not created, also if they were unusable from the start.
        skipped: Not given to the driver because the device lacks something; known when a group is prepared.
        in_flight: In a driver call now.
        started_ns: When the first job was submitted, on the clock of time.perf_counter_ns.
        elapsed_s: Seconds since then.
        rate: Pipelines that returned from the driver per second of that time.
        eta_s: Seconds to go, or None until that is known.
        total_ns: Estimated cost of all pipelines, nanoseconds; only in a session.
        done_ns: Estimated cost of those that are done, nanoseconds; only in a session.
        slowest: The longest driver call in flight; None if there is none, or it is not known.
    """

    total: int = 0
    done: int = 0
    compiled: int = 0
    hits: int = 0
    failed: int = 0
    skipped: int = 0
    in_flight: int = 0
    started_ns: int = 0
    elapsed_s: float = 0.0
    rate: float = 0.0
    eta_s: float | None = None
    total_ns: int = 0
    done_ns: int = 0
    slowest: SlowInFlight | None = None

    @property
    def share(self) -> float:
        """Share of pipelines that are done, 0..1; 0 before any was submitted."""
        return self.done / self.total if self.total else float(self.started_ns > 0)

    @property
    def cost_share(self) -> float:
        """Share of the estimated cost that is done, 0..1; exactly 1 at the end."""
        return self.done_ns / self.total_ns if self.total_ns else self.share


ProgressCallback = Callable[[Progress], None]
"""Called in the trio thread; must not block."""


@define(eq=False)
class Tally:
    """The outcomes of a compile, group by group. One thread.

    Attributes:
        total: Number of pipelines to create, over all groups.
        started_ns: When the first job of the compile was submitted, on the clock of time.perf_counter_ns; 0:
            none was.
        tables: Their outcomes.
        runs: The report of each group's run.
    """

    total: int = 0
    started_ns: int = 0
    tables: list[OutcomeTable] = field(factory=list)
    runs: list[RunReport] = field(factory=list)
    _before: dict[OutcomeStatus, int] = field(factory=lambda: dict.fromkeys(OutcomeStatus, 0))

    def leave_out(self, table: OutcomeTable, beside: Collection[PipelineJob] = ()) -> None:
        """Count pipelines that this run does not give to the driver: skipped or failed ones."""
        self.tables.append(table)
        for status, count in table.counts().items():
            self._before[status] += count
        keys = np.fromiter((each.key for each in beside), np.uint64, len(beside))
        for row in np.flatnonzero(np.isin(table.keys, keys)).tolist():
            if (outcome := table.row(row)).job in beside:
                self._before[outcome.status] -= 1

    def take_run(self, report: RunReport, beside: Collection[PipelineJob] = ()) -> None:
        """Count a group's run, without libraries that were not requested (`beside`)."""
        self.leave_out(report.pipelines, beside)
        self.runs.append(report)

    def outcomes(self, jobs: Sequence[PipelineJob]) -> OutcomeTable:
        """Outcomes of pipelines: the worst of their groups, or NOT_RUN."""
        table, _ = (
            OutcomeTable.joined(self.tables, _WORST_OF_GROUPS) if self.tables else (OutcomeTable.of(()), [])
        )
        columns = PipelineJobs.of(jobs)
        order = columns.in_order()
        if PipelineJobs(table.keys, table.kinds) == PipelineJobs(columns.keys[order], columns.kinds[order]):
            return table
        wanted = OutcomeTable.of(columns)
        table, (_, places) = OutcomeTable.joined([table, wanted])
        return table if len(table) == len(wanted) else table.rows(np.sort(places))

    def during(self, progress: Progress, beside: int = 0, cancelled: int = 0) -> Progress:
        """Progress over all groups while one of them runs."""
        before, total = self._before, self.total - cancelled
        done = sum(before.values()) - before[OutcomeStatus.NOT_RUN]
        progress = _without(progress, beside)
        rest = total - done - progress.total
        eta = progress.eta_s
        if eta is not None and rest > 0:  # later groups, at the rate of this one
            eta = eta + rest / progress.rate if progress.rate else None
        now_ns = progress.started_ns + round(progress.elapsed_s * 1e9)
        self.started_ns = self.started_ns or progress.started_ns
        elapsed_s = (now_ns - self.started_ns) / 1e9
        returned = before[OutcomeStatus.COMPILED] + before[OutcomeStatus.CACHE_HIT]
        returned += round(progress.rate * progress.elapsed_s)
        return msgspec.structs.replace(
            progress,
            started_ns=self.started_ns,
            elapsed_s=elapsed_s,
            rate=returned / elapsed_s if elapsed_s > 0 else 0.0,
            total_ns=0,
            done_ns=0,
            total=total,
            done=done + progress.done,
            compiled=before[OutcomeStatus.COMPILED] + progress.compiled,
            hits=before[OutcomeStatus.CACHE_HIT] + progress.hits,
            failed=before[OutcomeStatus.FAILED] + progress.failed,
            skipped=before[OutcomeStatus.SKIPPED] + progress.skipped,
            eta_s=eta,
        )


def _without(progress: Progress, beside: int) -> Progress:
    """Progress without libraries that were not requested. They come first, because others link them."""
    left = min(beside, progress.done)
    changed = {"total": progress.total - beside, "done": progress.done - left}
    for name in ("compiled", "hits", "failed", "skipped"):
        taken = min(left, getattr(progress, name))
        changed[name], left = getattr(progress, name) - taken, left - taken
    return msgspec.structs.replace(progress, **changed) if beside else progress


def problem_outcomes(built: BuiltImage) -> OutcomeTable:
    """Outcomes of the pipelines that were left out of an image."""
    skipped = (OutcomeStatus.FAILED, OutcomeStatus.SKIPPED)
    return OutcomeTable.of(
        [each.job for each in built.problems],
        [skipped[each.unsupported] for each in built.problems],
        [each.reason for each in built.problems],
    )


_AFTER_NS = 500_000_000
_OVERDUE = 1.5
_OVERDUE_NS = 200_000_000


@define(eq=False)
class TimeToGo:
    """Estimates the remaining time of a run, by the costs of its jobs and not their number.

    It is the longer of (queued cost + rest of the batches in flight) / workers, and the rest of the longest
    batch in flight. It is unknown before anything was measured, unless costs were recorded, and where all
    remaining batches are in flight and take much longer than estimated. It is called some times a second,
    without the schedule's lock: it reads single numbers that may be slightly old, and takes the time when it
    first saw a batch as its start.

    Attributes:
        scheduler: The scheduler.
        workers: Number of workers.
        trusted: Whether costs were recorded, so that they are trusted from the start.
    """

    scheduler: Scheduler
    workers: int
    trusted: bool = False
    _first_ns: int | None = field(default=None, init=False)
    _seen: dict[int, tuple[Assignment, int]] = field(factory=dict, init=False)

    def eta_s(self, now_ns: int) -> float | None:
        """Seconds to go at `now_ns`, or None where that is unknown; all calls use one clock."""
        scheduler = self.scheduler
        if self._first_ns is None:
            self._first_ns = now_ns
        flights = scheduler.flights
        # The assignment is kept too, so that its id is not used again.
        seen = {id(each): self._seen.get(id(each), (each, now_ns)) for each, _ in flights}
        self._seen = seen
        if not self.trusted and (not scheduler.learned or now_ns - self._first_ns < _AFTER_NS):
            return None
        queued_ns = scheduler.remaining_ns
        left = [estimated - (now_ns - seen[id(each)][1]) for each, estimated in flights]
        overdue = any(
            -rest > (_OVERDUE - 1.0) * estimated + _OVERDUE_NS
            for rest, (_, estimated) in zip(left, flights, strict=True)
        )
        if overdue and not queued_ns:
            return None
        in_flight = [max(0.0, each) for each in left]
        total = (queued_ns + sum(in_flight)) / self.workers
        return max(total, max(in_flight, default=0.0)) / 1e9

    def slowest(self, now_ns: int) -> tuple[Assignment, int] | None:
        """The longest assignment in flight that `eta_s` saw last, and its age, ns."""
        oldest = min(self._seen.values(), key=lambda each: each[1], default=None)
        return None if oldest is None else (oldest[0], now_ns - oldest[1])
