"""The records of a run: outcomes, progress, calls, timing, and the reports of a run and of a compile.

A record is encoded as JSON or MessagePack and decoded to an equal one, for durations up to 26 days. Durations
are nanoseconds here and seconds in the encoding; hashes are numbers here and 16 hex digits there; text is
plain `str` that UTF-8 can carry. docs/report.md is made from the comments of the fields.
"""

from __future__ import annotations

import base64
import enum
import html
import importlib
import importlib.util
import operator
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar, get_args

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import asdict, define, field

from orchestrator.devices.device import (
    FEEDBACK_APPLICATION_CACHE_HIT,
    FEEDBACK_VALID,
    PIPELINE_COMPILE_REQUIRED,
    SUCCESS,
    CreationBatch,
    DeviceFeatures,
    DeviceIdentity,
)
from orchestrator.devices.image import KINDS, CreateInfoImage, PipelineKind
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.request import ApplicationInfo, DeviceRequest, OtherFeatures
from orchestrator.process import StageClock
from orchestrator.registry import registry
from orchestrator.schedule.scheduler import Assignment, Scheduler
from orchestrator.sets.image.built import BuiltImage
from orchestrator.sets.records import Damage, FeatureGroup, PipelineJob, PipelineJobs, RecordTag
from orchestrator.sets.subset import Subset
from orchestrator.stores.cache_file import LoadResult, LoadStatus
from orchestrator.stores.culprits import Culprit

FORMAT: Final = 5
"""Version of the encoding; a new field does not change it."""

_HIT = FEEDBACK_VALID | FEEDBACK_APPLICATION_CACHE_HIT
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


def _decode_hook(kind: Any, value: Any) -> object:
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
        return Path(os.fsdecode(value))
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
    return msgspec.json.decode(data, type=kind, dec_hook=_decode_hook)


def encode_msgpack(record: Record) -> bytes:
    """A record as MessagePack, with columns and paths as bytes. Paths that are not UTF-8 are preserved."""
    return msgspec.msgpack.encode(
        record, enc_hook=lambda value: os.fsencode(value) if isinstance(value, Path) else encode_hook(value)
    )


def decode_msgpack(data: bytes, kind: type[_T]) -> _T:
    """A record from MessagePack; raises as `decode_json`."""
    return msgspec.msgpack.decode(data, type=kind, dec_hook=_decode_hook)


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
                msgspec.structs.force_setattr(self, name, _plain(value, name != encoded))


class Sums(Record, frozen=True):
    """A record whose fields add."""

    def __add__(self, other: Self) -> Self:
        """Both together."""
        return type(self)(*map(operator.add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


class Columns(Record, frozen=True, eq=False):
    """A record with arrays; two are equal if all elements are."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            if isinstance(getattr(self, name), np.ndarray)
            else getattr(self, name) == getattr(other, name)
            for name in self.__struct_fields__
        )

    __hash__ = None  # type: ignore[assignment]

    def at(self, rows: slice | npt.NDArray[np.intp]) -> dict[str, Any]:
        """Its columns at some rows, by name."""
        columns = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: each[rows] for name, each in columns.items() if isinstance(each, np.ndarray)}


# --- outcomes of pipelines


class OutcomeStatus(enum.StrEnum):
    """The outcome of a pipeline. Every pipeline has exactly one.

    Attributes:
        COMPILED: created, and the application's cache did not hold it (or the driver does not tell).
        CACHE_HIT: created from the application's cache, as creation feedback tells; time is no evidence. Some
            drivers give no feedback for a pipeline that only links libraries; it is a hit if all its
            libraries were.
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
_CACHE_HIT = _CODE[OutcomeStatus.CACHE_HIT]
_COMPILED = _CODE[OutcomeStatus.COMPILED]
_BADNESS: Final = np.array([2, 1, 0, 4, 3], np.int8)
"""By status code: of the outcomes of several groups the worst counts; each application needs its own."""


def status_code(status: OutcomeStatus) -> int:
    """Number that stands for a status in columns: its position in `OutcomeStatus`."""
    return _CODE[status]


CREATED_CODES: Final = (_COMPILED, _CACHE_HIT)
"""What stands for a pipeline that was created, by `PipelineOutcome.created`."""


class PipelineOutcome(Record, frozen=True, omit_defaults=True):
    """The outcome of one pipeline: a row of an `OutcomeTable`, made on demand."""

    key: Hash  # Its hash in the set.
    kind: PipelineKind  # Its kind.
    status: OutcomeStatus  # Its outcome; NOT_RUN also if it was cancelled, or waits for its turn.
    reason: str = ""  # Why it was skipped or failed; if the driver refused it, the name of the VkResult.
    driver_ns: Nanoseconds = _NO_TIME  # Driver time, over all groups.
    index: int = 0  # Its row in the table; in a run, its number in the image.
    handle: int = 0  # The pipeline, if the run keeps pipelines and it was not taken; else 0.

    @property
    def job(self) -> PipelineJob:
        """The pipeline of the set."""
        return PipelineJob(self.key, self.kind)

    @property
    def created(self) -> bool:
        """Whether there is a pipeline."""
        return self.status in (OutcomeStatus.COMPILED, OutcomeStatus.CACHE_HIT)


class Counts(Record, frozen=True):
    """Number of pipelines with each status; disjoint."""

    compiled: int  # Created by compiling.
    cache_hits: int  # Created from the cache, as creation feedback tells.
    skipped: int  # Not given to the driver, because the device lacks something.
    failed: int  # Not created.
    not_run: int | msgspec.UnsetType = msgspec.UNSET  # Not tried; present only if that may be.


class OutcomeTable(Columns, frozen=True, eq=False, omit_defaults=True):
    """The outcomes of pipelines, one row each."""

    keys: npt.NDArray[np.uint64]  # Hash of each in the set.
    kinds: npt.NDArray[np.uint8]  # Kind of each: 0 graphics, 1 compute, 2 ray tracing.
    status: npt.NDArray[np.uint8]  # 0 compiled, 1 cache hit, 2 skipped, 3 failed, 4 not run.
    driver_ns: npt.NDArray[np.uint64] = msgspec.field(name="driver_ns")  # Driver time of each.
    worker: npt.NDArray[np.int32]  # The worker that created it; -1 if none tried.
    reasons: dict[int, str]  # Why a pipeline was skipped or failed, by row.
    handles: npt.NDArray[np.uint64] | None = None  # Kept pipelines, which the caller owns.

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
            handles=np.zeros(count, np.uint64) if keep else None,
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

    def of_status(self, status: OutcomeStatus) -> tuple[PipelineOutcome, ...]:
        """The rows with a status, in order."""
        return tuple(map(self.row, np.flatnonzero(self.status == _CODE[status]).tolist()))

    def counts(self, kind: PipelineKind | None = None) -> dict[OutcomeStatus, int]:
        """Pipelines of each status, of one kind or of all; every status has an entry."""
        status = self.status if kind is None else self.status[self.kinds == KINDS.index(kind)]
        numbers = np.bincount(status, minlength=len(_STATUSES)).tolist()
        return dict(zip(_STATUSES, numbers, strict=True))

    def settle(self, status: OutcomeStatus, reasons: Mapping[int, str]) -> None:
        """Give pipelines an outcome without a driver call."""
        for index, reason in reasons.items():
            self.reasons[index] = plain_text(reason)
            self.status[index] = _CODE[status]

    def only(self, chosen: npt.NDArray[np.bool_]) -> Self:
        """The chosen rows, without handles."""
        rows = np.flatnonzero(chosen)
        reasons = {row: self.reasons[at] for row, at in enumerate(rows.tolist()) if at in self.reasons}
        return type(self)(**self.at(rows) | {"reasons": reasons, "handles": None})

    @classmethod
    def joined(cls, tables: Sequence[OutcomeTable]) -> Self:
        """One table of several, by kind and key: of each pipeline the worst outcome, and the time of all."""
        keys, kinds, status, driver_ns, worker = (
            np.concatenate([getattr(each, name) for each in (cls.of(()), *tables)])
            for name in ("keys", "kinds", "status", "driver_ns", "worker")
        )
        order = np.lexsort((-_BADNESS[status], keys, kinds))
        first = PipelineJobs(keys[order], kinds[order]).firsts()
        chosen = order[first]
        starts = np.cumsum([0, *map(len, tables)]).tolist()
        reasons = {
            start + row: reason
            for start, table in zip(starts, tables, strict=False)
            for row, reason in table.reasons.items()
        }
        spent = np.add.reduceat(driver_ns[order], np.flatnonzero(first)) if len(order) else driver_ns
        told = {row: reasons[at] for row, at in enumerate(chosen.tolist()) if at in reasons}
        return cls(keys[chosen], kinds[chosen], status[chosen], spent, worker[chosen], told)


class OutcomeRecorder:
    """Fills the table of a run.

    Several threads may write at once without a lock: each writes the rows of its own batch, and no pipeline
    is in two batches.

    Attributes:
        believes_hits: Whether a cache may hold what feedback says that it does: it began with something, or
            something was compiled.
        disbelieved: How many pipelines count as compiled, because their cache could not hold them.
    """

    table: OutcomeTable
    believes_hits = True
    disbelieved = 0

    def __init__(
        self,
        image: CreateInfoImage,
        *,
        keep: bool = False,
        expect_hits: bool = False,
        has_cache: bool = True,
    ) -> None:
        self._has_cache = has_cache
        self._expect_hits = expect_hits
        self.table = OutcomeTable.untried(image.keys, image.kinds, keep=keep)
        self._only_links = image.links & (np.diff(image.module_slot_start) == 0)
        self._libraries_of = image.libraries_of

    def record(self, indices: npt.NDArray[np.int32], batch: CreationBatch) -> tuple[Mapping[int, str], int]:
        """Record a batch's results: gives why pipelines failed, and how many were hits."""
        whole = self.table
        is_hit = batch.feedback_flags & _HIT == _HIT
        if not self.believes_hits:
            is_made = (batch.results == SUCCESS) & (batch.feedback_flags & FEEDBACK_VALID != 0)
            self.believes_hits = bool((is_made & ~is_hit).any())
            if not self.believes_hits:
                self.disbelieved += int(np.count_nonzero(is_hit))
                is_hit[:] = False
        status = np.where(is_hit, _CACHE_HIT, _COMPILED).astype(np.uint8)
        silent = self._only_links[indices] & (batch.feedback_flags & FEEDBACK_VALID == 0)
        for place in np.flatnonzero(silent).tolist():
            libraries = list(self._libraries_of(int(indices[place])))
            if (whole.status[libraries] == _CACHE_HIT).all():
                status[place] = _CACHE_HIT
        reasons: dict[int, str] = {}
        if not batch.all_created:
            for place in np.flatnonzero(batch.results != SUCCESS).tolist():
                status[place] = _CODE[OutcomeStatus.FAILED]
                reasons[int(indices[place])] = _refusal(int(batch.results[place]))
            whole.reasons.update(reasons)
        if self._expect_hits:
            reasons |= self._doubted(indices, batch, status)
            whole.reasons.update(reasons)
        if whole.handles is not None:
            whole.handles[indices] = batch.handles
        whole.status[indices] = status  # each once: another thread may count, and no number may fall
        return reasons, int(np.count_nonzero(status == _CACHE_HIT))

    def _doubted(
        self, indices: npt.NDArray[np.int32], batch: CreationBatch, status: npt.NDArray[np.uint8]
    ) -> dict[int, str]:
        """Take for a hit what was created though compiling was forbidden, unless the driver denies it."""
        made = status == _COMPILED
        # Without a cache of the application nothing is a hit in one.
        denied = made & (batch.feedback_flags & FEEDBACK_VALID != 0) & self._has_cache
        status[made] = _CACHE_HIT
        status[denied] = _CODE[OutcomeStatus.FAILED]
        missing = batch.results == PIPELINE_COMPILE_REQUIRED
        return dict.fromkeys(indices[denied].tolist(), _IGNORED) | dict.fromkeys(
            indices[missing].tolist(), _MISSING
        )

    def record_failed_call(self, indices: npt.NDArray[np.int32], reason: str) -> dict[int, str]:
        """Record a call that failed as a whole; returns its pipelines with the reason."""
        reasons = dict.fromkeys(indices.tolist(), reason)
        self.table.settle(OutcomeStatus.FAILED, reasons)
        return reasons

    def attribute(self, calls: Calls, durations_ns: npt.NDArray[np.uint64]) -> None:
        """Set worker and driver time of the pipelines of a worker's calls, after the barrier."""
        # A pipeline is listed twice where a failed call was repeated; the last cost counts.
        self.table.worker[calls.indices] = np.repeat(calls.worker, calls.sizes)
        self.table.driver_ns[calls.indices] = durations_ns


_MISSING: Final = "the cache does not hold it: an application would compile it"
_IGNORED: Final = (
    "the driver created it though compiling was forbidden, and says that it was no hit: it ignores "
    "FAIL_ON_PIPELINE_COMPILE_REQUIRED, or has a cache of its own"
)


NOT_FOUND: Final = (_MISSING, _IGNORED)
"""What the reasons of pipelines begin with that were expected in the cache, and are not there."""


def _refusal(result: int) -> str:
    if result == PIPELINE_COMPILE_REQUIRED:
        return (
            "VK_PIPELINE_COMPILE_REQUIRED: its create info forbids compiling, and the cache does not hold it"
        )
    return registry().result_name(result)


def problem_outcomes(built: BuiltImage) -> OutcomeTable:
    """Outcomes of the pipelines that were left out of an image."""
    return OutcomeTable.of(
        [each.job for each in built.problems],
        [OutcomeStatus.SKIPPED if each.unsupported else OutcomeStatus.FAILED for each in built.problems],
        [each.reason for each in built.problems],
    )


# --- calls, the barrier, the merge


class CreationCall(msgspec.Struct, frozen=True, eq=False):
    """One call of `Device.create_pipelines`: a row of `Calls`, with its pipelines, shape (k,), int32."""

    worker: int
    start_ns: int
    wall_ns: int
    cpu_ns: int
    driver_ns: int
    run_delay_ns: int
    blocked_ns: int
    indices: npt.NDArray[np.int32]


_CALL_COLUMNS: Final = ("worker", "start_ns", "wall_ns", "cpu_ns", "driver_ns", "run_delay_ns")


class Calls(Columns, frozen=True, eq=False, rename=None):
    """Every call of a run, worker by worker, in order.

    Several driver calls for one batch of expected hits count as one: the worker does nothing between them,
    and reads the clocks before the first and after the last.
    """

    worker: npt.NDArray[np.int32]  # The worker that made each call.
    start_ns: npt.NDArray[np.int64]  # When it began, on the clock of time.perf_counter_ns.
    wall_ns: npt.NDArray[np.int64]  # Its duration.
    cpu_ns: npt.NDArray[np.int64]  # CPU time of the thread during the call.
    driver_ns: npt.NDArray[np.int64]  # Driver time of its pipelines by creation feedback, else `wall_ns`.
    run_delay_ns: npt.NDArray[np.int64]  # Time in which the thread was runnable but not scheduled.
    sizes: npt.NDArray[np.int32]  # Number of its pipelines.
    indices: npt.NDArray[np.int32]  # The pipelines of all calls in sequence, as rows of the run's table.

    def __post_init__(self) -> None:
        """Raise ValueError unless the columns fit together."""
        if any(len(getattr(self, name)) != len(self.sizes) for name in _CALL_COLUMNS):
            raise ValueError("the columns of a table of calls differ in length")
        if int(self.sizes.sum()) != len(self.indices):
            raise ValueError("a table of calls has not as many pipelines as its calls")

    @classmethod
    def joined(cls, parts: Sequence[Calls]) -> Self:
        """The calls of several, one after the other."""
        columns = [part.at(slice(None)) for part in parts]
        names = cls.__struct_fields__
        joined = {
            name: np.concatenate([np.zeros(0, np.int32), *(each[name] for each in columns)]) for name in names
        }
        return cls(**joined)

    def __len__(self) -> int:
        """Number of calls."""
        return len(self.sizes)

    def __iter__(self) -> Iterator[CreationCall]:
        """The calls as rows."""
        columns = (getattr(self, name).tolist() for name in (*_CALL_COLUMNS, "blocked_ns"))
        pipelines = np.split(self.indices, np.cumsum(self.sizes)[:-1]) if len(self) else []
        return map(CreationCall, *columns, pipelines)

    @property
    def blocked_ns(self) -> npt.NDArray[np.int64]:
        """Time asleep inside the driver, call by call: driver - cpu - run delay, at least 0."""
        slept: npt.NDArray[np.int64] = np.maximum(0, self.driver_ns - self.cpu_ns - self.run_delay_ns)
        return slept


class Barrier(Record, frozen=True, rename=None):
    """The point where all workers have ended."""

    arrivals_ns: tuple[int, ...]  # When each worker arrived, on the clock of time.perf_counter_ns.
    end_ns: int  # When the last worker had arrived and the run went on.

    @property
    def waits_ns(self) -> tuple[int, ...]:
        """Time that each worker waited."""
        return tuple(self.end_ns - each for each in self.arrivals_ns)


class RollingReport(Record, frozen=True):
    """The merges during a run, without the merge at the barrier."""

    folds: int  # Number of merges into the primary.
    caches: int  # Number of merged worker caches.
    pipelines: int  # Number of pipelines that were compiled into them.
    source_bytes: int  # Sum of their sizes.
    merge_ns: Nanoseconds  # Time of all these merges; other threads compile meanwhile.


class MergeReport(Record, frozen=True):
    """The merge. In mode SHARED there are no sources, and the figures are those of the primary."""

    source_bytes: tuple[int, ...]  # Size of each worker cache, worker by worker.
    primary_bytes_before: int  # Size of the primary before the merge, and before those during the run.
    primary_bytes_after: int  # Its size after the merge.
    pruned_bytes: int  # Payload that the sources and the primary held more than once.
    merge_ns: Nanoseconds  # Time of the merge alone.
    warnings: tuple[str, ...]  # What a user should know, such as a merge that kept nothing.
    rolling: RollingReport | None = None  # The merges during the run, or null if all were at the barrier.
    unmerged: int = 0  # Worker caches that the driver did not merge, so that what only they held is lost.
    started_ns: int = msgspec.field(default=0, name="started_ns")  # When it began, by perf_counter_ns.


class BinariesRecord(Sums, frozen=True, omit_defaults=True):
    """The use of pipeline binaries, in mode `binaries`."""

    looked_up: int = 0  # Pipelines that were looked up before the first was created.
    pulled_in: int = 0  # Pipelines that were found, and whose binaries were created in advance.
    pulled_late: int = 0  # Pipelines that were found, and whose binaries were created when needed.
    pulled_binaries: int = 0  # Binaries of the pipelines found that were created, each time.
    pulled_bytes: int = 0  # Size of these binaries.
    from_internal_cache: int = 0  # Pipelines whose binaries the driver's own cache had.
    created: int = 0  # Pipelines that were created from binaries.
    refused: int = 0  # Pipelines that were compiled because the driver refused their binaries.
    damaged: int = 0  # Pipelines whose stored entry or binaries were damaged; they were compiled.
    ambiguous: int = 0  # Pipelines that were compiled because their module identifiers fit several.
    captured: int = 0  # Pipelines that were compiled and captured.
    stored: int = 0  # Captured pipelines that were stored.
    lost: int = 0  # Captured pipelines that could not be stored.
    too_large: int = 0  # Captured pipelines that would take too much of the store.
    collisions: int = 0  # Stored pipelines whose driver's key another state with other binaries has.
    shared_keys: int = 0  # Stored pipelines whose driver's key another state with the same binaries has.
    captured_bytes: int = 0  # Size of all captured binaries.
    stored_bytes: int = 0  # Size of the binaries that were new to the store.
    evicted: int = 0  # Pipelines that were removed from the store to make room.
    commits: int = 0  # Number of batches that were stored.
    look_up_ns: Nanoseconds = 0  # Time of look-ups and of creating binaries, before the first pipeline.


class IdentifiersRecord(Sums, frozen=True, omit_defaults=True):
    """The use of shader-module identifiers, with which pipelines may be created without their SPIR-V."""

    modules: int = 0  # Number of shader modules; one that two groups of a set use counts twice.
    known: int = 0  # Modules whose identifier was known at the start.
    created: int = 0  # Pipelines that were created without their SPIR-V.
    missed: int = 0  # Pipelines that were not, and needed their SPIR-V.
    unknown: int = 0  # Missed pipelines that the driver was not asked for: an identifier was not known.
    asked: int = 0  # Shaders whose SPIR-V was requested.
    refused: int = 0  # Requested shaders that were not supplied, or whose code cannot be used.
    changed: int = 0  # Requested shaders whose identifier differs from the known one.
    supplied_bytes: int = 0  # Size of the supplied SPIR-V.
    provider_ns: Nanoseconds = 0  # Sum of the provider's response times.
    code_bytes: int = 0  # SPIR-V of all modules, as far as its size is known.


# --- timing


class Timing(Sums, frozen=True):
    """Times of a run. Every figure adds up, over the groups of a compile and over parts."""

    wall_ns: Nanoseconds = 0  # From the first job submitted to the end of the barrier.
    driver_ns: Nanoseconds = 0  # Sum over all calls of the driver's own time.
    cpu_ns: Nanoseconds = 0  # Sum over all calls of the threads' CPU time.
    blocked_ns: Nanoseconds = 0  # Sum over all calls of the time asleep inside the driver.
    run_delay_ns: Nanoseconds = 0  # Sum over all calls of the time runnable but not scheduled.
    merge_ns: Nanoseconds = 0  # Merging the worker caches.
    make_caches_ns: Nanoseconds = 0  # Creating the primary and the worker caches, before the first job.
    read_back_ns: Nanoseconds = 0  # Reading the primary's data, if the run does.

    @classmethod
    def of(cls, calls: Calls, **spent: int) -> Self:
        """The times of a run with these calls."""
        names = ("driver_ns", "cpu_ns", "blocked_ns", "run_delay_ns")
        return cls(**{name: int(getattr(calls, name).sum()) for name in names}, **spent)


# --- the report of a run


class RunReport(Record, frozen=True, omit_defaults=True):
    """The outcomes and costs of a run. A value: it refers to no cache and no device."""

    mode: CacheMode  # The cache topology.
    workers: int  # Number of workers.
    pipelines: OutcomeTable  # The outcome of each pipeline, in the order of the image.
    calls: Calls  # Every call, worker by worker, in order.
    barrier: Barrier  # The barrier.
    merge: MergeReport | None  # The merge; null in mode `none`.
    timing: Timing  # The times.
    stopped: bool  # Whether the run was stopped before its end, so that pipelines may be NOT_RUN.
    notes: tuple[str, ...]  # Caveats for readers, such as a fallback; each once.
    device_lost: bool = False  # Whether VK_ERROR_DEVICE_LOST stopped it.
    cache_data: bytes | None = None  # The primary's data, if the run created the primary and has it.
    binaries: BinariesRecord | None = None  # The use of binaries; null in other modes.
    identifiers: IdentifiersRecord | None = None  # The use of shader-module identifiers; null if not used.

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
    """A device and its driver."""

    vendor_id: int  # VkPhysicalDeviceProperties::vendorID.
    device_id: int  # VkPhysicalDeviceProperties::deviceID.
    driver_version: int  # VkPhysicalDeviceProperties::driverVersion, in the vendor's own encoding.
    driver_id: int  # VkDriverId, or 0 if the driver does not tell.
    driver_abi: int  # Bits of a pointer in the process that uses the driver.
    pipeline_cache_uuid: str  # VkPhysicalDeviceProperties::pipelineCacheUUID, 32 hex digits.
    api_version: ApiVersion  # VkPhysicalDeviceProperties::apiVersion.
    device_name: str  # Name of the device.
    driver_name: str  # VkPhysicalDeviceDriverProperties::driverName.
    driver_info: str  # VkPhysicalDeviceDriverProperties::driverInfo.

    @classmethod
    def of(cls, identity: DeviceIdentity, **more: Any) -> Self:
        """The record of an identity, with more fields."""
        uuid, version = identity.pipeline_cache_uuid.hex(), ApiVersion(identity.api_version)
        return cls(**asdict(identity) | {"pipeline_cache_uuid": uuid, "api_version": version} | more)

    @property
    def identity(self) -> DeviceIdentity:
        """The identity."""
        fields = {name: getattr(self, name) for name in IdentityRecord.__struct_fields__}
        return DeviceIdentity(**fields | {"pipeline_cache_uuid": bytes.fromhex(self.pipeline_cache_uuid)})


class DeviceRecord(IdentityRecord, frozen=True, kw_only=True):
    """A device."""

    features: DeviceFeatures  # Its features that matter to this program.


class RequestRecord(Record, frozen=True):
    """How a device was opened."""

    application: str | None  # VkApplicationInfo::pApplicationName, null for a null pointer.
    application_version: int  # VkApplicationInfo::applicationVersion.
    engine: str | None  # VkApplicationInfo::pEngineName, null for a null pointer.
    engine_version: int  # VkApplicationInfo::engineVersion.
    api_version: ApiVersion | None  # VkApplicationInfo::apiVersion; null opens the newest.
    features: tuple[str, ...]  # Features to enable, as structure::member, if the device has them.
    extensions: tuple[str, ...]  # Device extensions to enable in addition to those of the features.
    others: OtherFeatures  # All other features: off, on if captures cannot record them, or on.
    orchestrator_features: bool | None = None  # Whether this program's own were added; null: if harmless.

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
            tuple(sorted("::".join(each) for each in request.features)),
            tuple(sorted(request.extensions)),
            request.others,
            request.orchestrator_features,
        )

    @property
    def request(self) -> DeviceRequest:
        """The request."""
        told = (self.application, self.application_version, self.engine, self.engine_version)
        pairs = (each.partition("::") for each in self.features)
        return DeviceRequest(
            ApplicationInfo(*told, self.api_version or 0),
            frozenset((struct, member) for struct, _, member in pairs),
            frozenset(self.extensions),
            self.others,
            self.orchestrator_features,
        )


class GroupRecord(Record, frozen=True):
    """A group of pipelines and the device that it was compiled on."""

    opened_as: RequestRecord  # How the device was opened.
    added: tuple[str, ...]  # Features and extensions that no recorded application enabled.
    applications: tuple[Hash, ...]  # Hashes of the applications.
    pipelines: int  # Number of its pipelines that were given to the driver.
    cache_file: Path | None = None  # Its cache file, or null.

    @classmethod
    def of(cls, group: FeatureGroup, pipelines: int, cache_file: Path | None) -> Self:
        """The record of a group."""
        applications = tuple(map(Hash, group.applications))
        return cls(RequestRecord.of(group.request), group.added, applications, pipelines, cache_file)


class DamageRecord(Record, frozen=True):
    """Damage in a set, which was left out."""

    offset: int | None  # Byte offset in the file, or null.
    tag: str | None  # Kind of the record, such as `shader_module`, or its number; or null.
    key: Hash | None  # Hash of the record, or null.
    reason: str  # What is wrong and the likely cause.

    @classmethod
    def of(cls, damage: Damage) -> Self:
        """The record of a damage."""
        tag = damage.tag
        known = tag in RecordTag.__members__.values()
        name = None if tag is None else RecordTag(tag).name.lower() if known else str(tag)
        return cls(damage.offset, name, None if damage.key is None else Hash(damage.key), damage.reason)


class SubsetRecord(Record, frozen=True):
    """Which part of a set was compiled."""

    shard: int  # Which shard, 1 to `shards`.
    shards: int  # How many shards the set is divided into.
    keys: tuple[Hash, ...] | None  # Keys that were chosen, or null for all.
    of: int  # Number of pipelines of the set.

    @classmethod
    def of_set(cls, subset: Subset, pipelines: int) -> Self | None:
        """The record of a subset of a set with so many pipelines; None for all of it."""
        keys = None if subset.keys is None else tuple(map(Hash, sorted(subset.keys)))
        return None if subset.is_whole else cls(subset.shard, subset.shards, keys, pipelines)


class SetRecord(Record, frozen=True):
    """The set that was compiled."""

    path: str  # Its path.
    content_hash: Hash | None  # Hash over the names of all records.
    pipelines: dict[PipelineKind, int]  # Number of requested pipelines of each kind.
    unique: int  # Number of all requested pipelines.
    applications: tuple[str, ...]  # Names of the recorded applications, "" for one without a name.
    groups: tuple[GroupRecord, ...]  # The groups that were compiled, each on a device opened for it.
    damage: tuple[DamageRecord, ...]  # Records that cannot be read.
    subset: SubsetRecord | None = None  # The requested part of the set; null for all of it.


class SaveReason(enum.StrEnum):
    """Why a save is due."""

    QUIET = "quiet"  # Nothing was created for a while.
    GROWTH = "growth"  # Much is new.
    OVERDUE = "overdue"  # New pipelines have waited for long, because creation was never quiet.
    CANCELLED = "cancelled"  # The run was cancelled.
    SIGNAL = "signal"  # The process was asked to end, as by SIGTERM.
    EXIT = "exit"  # The run or the process ends.


class CacheSave(Record, frozen=True):
    """One save of the cache file."""

    reason: SaveReason  # What caused the save.
    saved_bytes: int = 0  # Bytes of the file that was written, or 0.
    bytes_before: int = 0  # Size of the old driver data that was merged with ours, or 0.
    bytes_after: int = 0  # Size of the driver data in the file now, if known.
    merged_with_others: bool = False  # Whether the old data came from another process, and not from this run.
    skipped: str | None = None  # Why nothing was written, or null.
    error: str | None = None  # Why it failed, or null.
    note: str | None = None  # A caveat, such as a driver that does not merge, or null.


class NotLoaded(Record, frozen=True):
    """A cache file that was not loaded."""

    status: LoadStatus  # The result of loading it.
    field: str | None  # Vulkan name of the first field that differs or is wrong, or null.
    detail: str  # A sentence: expected and found for every field that differs, or the cause.


class CacheFileRecord(Record, frozen=True):
    """How the cache file was loaded and saved."""

    path: Path | None = None  # Its path, or null if the mode has no cache file.
    load_status: LoadStatus | None = None  # The result of loading it; null if that was not tried.
    load_field: str | None = None  # Vulkan name of the first field that differs or is wrong, or null.
    load_detail: str | None = None  # What was expected and found for each field that differs.
    instead_of: NotLoaded | None = None  # The current generation, if the previous one was loaded.
    quarantined: Path | None = None  # Where a damaged file was moved to, or null.
    loaded_bytes: int = 0  # Bytes of driver data that were loaded.
    saved_bytes: int = 0  # Bytes of the file in the last save, or 0.
    not_saved: str | None = None  # Why the last save wrote nothing, or null.
    error: str | None = None  # Why the last save failed, or null.
    saves: tuple[CacheSave, ...] = ()  # All saves, also those during the run.

    @classmethod
    def of(cls, path: Path, loaded: LoadResult) -> Self:
        """The record of a file after loading it."""
        current = loaded.instead_of
        return cls(
            path=path,
            load_status=loaded.status,
            load_field=loaded.field,
            load_detail=loaded.detail,
            instead_of=None if current is None else NotLoaded(current.status, current.field, current.detail),
            quarantined=loaded.quarantined,
            loaded_bytes=len(loaded.data),
        )


class Savings(Sums, frozen=True):
    """Compiles that were saved, because the run had compiled the same code before."""

    by_state_key: int = 0  # Pipelines with the state key of another one.
    by_pipeline_key: int = 0  # Pipelines with the driver's key of another one, each state key once.
    driver_ns: Nanoseconds = 0  # Compile time of the others, minus that of the hits.
    keys_asked: int = 0  # Number of pipelines whose key the driver was asked for.
    keys_ns: Nanoseconds = 0  # Time of asking.


class MergeTotals(Record, frozen=True):
    """The merges of all groups together; `runs` has the merge of each group."""

    caches: int  # Number of worker caches, with those that were merged during the runs.
    source_bytes: int  # Size of all these.
    primary_bytes_before: int  # Size of the primary before the first.
    primary_bytes_after: int  # That and what each merge added.
    pruned_bytes: int  # Payload that was there more than once.
    merge_ns: Nanoseconds  # Time of the merges.

    @classmethod
    def of(cls, merges: Sequence[MergeReport]) -> Self | None:
        """The totals; None where nothing was merged."""
        if not merges:
            return None
        rolling = [each.rolling for each in merges if each.rolling is not None]
        sources = [size for each in merges for size in each.source_bytes]
        before = merges[0].primary_bytes_before
        return cls(
            caches=len(sources) + sum(each.caches for each in rolling),
            source_bytes=sum(sources) + sum(each.source_bytes for each in rolling),
            primary_bytes_before=before,
            primary_bytes_after=before
            + sum(each.primary_bytes_after - each.primary_bytes_before for each in merges),
            pruned_bytes=sum(each.pruned_bytes for each in merges),
            merge_ns=sum(each.merge_ns for each in merges),
        )


class Stage(Record, frozen=True):
    """A part of the job other than creating pipelines, for timelines."""

    name: str  # "plan", "open", "read", "prepare", "identifiers", "vet", "pipeline_keys", "cache_load", ...
    start_ns: int = msgspec.field(name="start_ns")  # When it began, on the clock of time.perf_counter_ns.
    duration_ns: Nanoseconds  # Its duration.
    overlapped: bool = False  # Whether another group ran meanwhile: this was for the next one.


class ProcessClock(Sums, frozen=True):
    """The time of the process up to the end of the report, in stages; every moment belongs to one stage.

    If a program embeds `compile_set`, it begins with the call.
    """

    start_ns: Nanoseconds = 0  # Start of the interpreter.
    imports_ns: Nanoseconds = 0  # Loading the program and parsing its command line.
    read_ns: Nanoseconds = 0  # Opening the set and reading its index.
    open_ns: Nanoseconds = 0  # Opening devices, as far as nothing else was done meanwhile.
    prepare_ns: Nanoseconds = 0  # Creating create infos, layouts, render passes and modules.
    vet_ns: Nanoseconds = 0  # Validating or trying modules that may be invalid.
    cache_load_ns: Nanoseconds = 0  # Reading cache files and creating primaries.
    keys_ns: Nanoseconds = 0  # Recorded times, pipeline keys, and making the schedule.
    run_ns: Nanoseconds = 0  # Creating worker caches and pipelines.
    merge_ns: Nanoseconds = 0  # Merging after the barrier, and reading back.
    save_ns: Nanoseconds = 0  # Writing cache files, recorded times and notes.
    supervise_ns: Nanoseconds = 0  # Waiting for the process that compiles, but for its stages.
    close_ns: Nanoseconds = 0  # Closing devices.
    report_ns: Nanoseconds = 0  # Making and writing the report, without its reader.

    @classmethod
    def of(cls, clock: StageClock) -> Self:
        """The times of the stages of a clock so far."""
        return cls(**{f"{stage}_ns": spent_ns for stage, spent_ns in clock.spent_ns().items()})

    @property
    def total_ns(self) -> int:
        """Sum of all stages."""
        return sum(msgspec.structs.astuple(self))


class Versions(Record, frozen=True):
    """The programs that made a report."""

    python: str  # Version of Python.
    orchestrator: str  # Version of this package.
    registry: str  # Version of its Vulkan registry.


class Death(Record, frozen=True):
    """The end of a process that compiled."""

    how: str  # The signal or the exit code; or that it was killed, because a driver call did not return.
    where: str  # What it was doing.
    suspects: int  # Number of pipelines that were in the driver.
    blamed: int  # Number of pipelines that trials blamed; others may have been tried with the suspects.
    by_driver: bool = True  # Whether the driver ended it: no person, other program or limit on memory.
    explained: bool = True  # Whether all suspects were tried.


class DriverMessages(Record, frozen=True):
    """Messages of the driver, with the pipelines that caused them as far as known."""

    lines: int  # Number of lines.
    size: int  # Number of bytes.
    first: str  # The first line, with the next if it is a heading; a long one is cut off.
    keys: tuple[Hash, ...]  # Pipelines in the driver while it printed; one if the cause is known.


class Supervision(Sums, frozen=True):
    """The supervision of a compile."""

    processes: int = 0  # Number of processes that compiled, one after another.
    deaths: tuple[Death, ...] = ()  # The ends of all of them except the last.
    trials: int = 0  # Number of processes that tried suspects alone.
    explaining_ns: Nanoseconds = _NO_TIME  # Time between the deaths and their explanations.
    culprits: tuple[Culprit, ...] = ()  # Pipelines left out because they ended a process, ever.
    messages: tuple[DriverMessages, ...] = ()  # Messages of the driver.


_Summed = TypeVar("_Summed", BinariesRecord, IdentifiersRecord)


def _total(records: Iterable[_Summed | None]) -> _Summed | None:
    there = [each for each in records if each is not None]
    return reduce(operator.add, there) if there else None


class CompileReport(Record, frozen=True, kw_only=True):
    """The report of compiling a set. Its encoding is the JSON of `compile`.

    A pipeline that several applications used with different features is compiled for each; it counts once,
    with its worst outcome: failed before not run, compiled, hit, skipped.
    """

    version: int = FORMAT  # Version of the format.
    device: DeviceRecord  # The device.
    set: SetRecord  # The set.
    mode: CacheMode  # The cache topology.
    workers: int  # Number of workers.
    outcomes: Counts  # Pipelines of each status; disjoint, with the sum `set.unique`.
    outcomes_by_kind: dict[PipelineKind, Counts]  # The same for each kind.
    skipped: tuple[PipelineOutcome, ...]  # All skipped pipelines, by kind and key.
    failed: tuple[PipelineOutcome, ...]  # All failed pipelines, by kind and key.
    saved: Savings = Savings()  # Compiles that were saved, because the run had compiled the same code before.
    merge: MergeTotals | None  # The merges; null in mode `none`.
    cache_file: CacheFileRecord  # How the cache file was loaded and saved.
    timing: Timing  # The times of the runs.
    stopped: bool  # Whether it was stopped before its end.
    out_of_time: bool = False  # Whether it was stopped because its time limit was reached.
    notes: tuple[str, ...]  # Caveats for readers; each once.
    versions: Versions  # The programs that made the report.
    pipelines: OutcomeTable  # The outcome of each pipeline of the set, by kind and key.
    runs: tuple[RunReport, ...]  # The report of each group's run, in the order of `set.groups`.
    stages: tuple[Stage, ...] = ()  # Other parts of the job, in the order of their ends.
    supervision: Supervision | None = None  # The processes that compiled; null if it was this one.
    binaries: BinariesRecord | None = None  # The use of binaries, over all groups; null in other modes.
    identifiers: IdentifiersRecord | None = None  # The use of module identifiers, over all groups, or null.
    clock: ProcessClock = ProcessClock()  # The time of the process, in stages.

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
            "merge": MergeTotals.of([each.merge for each in runs if each.merge is not None]),
            "binaries": _total(each.binaries for each in runs),
            "identifiers": _total(each.identifiers for each in runs),
        }
        return cls(pipelines=pipelines, runs=tuple(runs), stopped=stopped, **fields | follows)

    def counts(self, kind: PipelineKind | None = None) -> dict[OutcomeStatus, int]:
        """Pipelines of each status, of one kind or of all; every status has an entry."""
        return self.pipelines.counts(kind)

    def of_status(self, status: OutcomeStatus) -> tuple[PipelineOutcome, ...]:
        """The pipelines with a status, by kind and key."""
        return self.pipelines.of_status(status)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """One row for each pipeline, by kind and key, as arrays of shape (n,): what `pandas.DataFrame` takes.

        `key` is uint64, `driver_ns` uint64, `worker` int32; `kind`, `status` and `reason` are texts.
        """
        table = self.pipelines
        return {
            "key": table.keys,
            "kind": np.array([each.value for each in KINDS])[table.kinds],
            "status": np.array([each.value for each in _STATUSES])[table.status],
            "driver_ns": table.driver_ns,
            "worker": table.worker,
            "reason": np.array([table.reasons.get(row, "") for row in range(len(table))], np.str_),
        }

    def frame(self) -> Any:
        """`columns` as a frame of polars, or else of pandas; ModuleNotFoundError where neither is there."""
        for name in ("polars", "pandas"):
            if importlib.util.find_spec(name) is not None:
                return importlib.import_module(name).DataFrame(self.columns())
        raise ModuleNotFoundError("neither polars nor pandas is installed: use `columns()`")

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{each.value.replace('_', ' ')}</th>" for each in _STATUSES)
        rows = "".join(
            f"<tr><th>{kind.value.replace('_', ' ')}</th>"
            + "".join(f"<td>{count}</td>" for count in self.counts(kind).values())
            + "</tr>"
            for kind in KINDS
        )
        told = f"{self.set.path} on {self.device.device_name}, mode {self.mode}, {self.workers} workers"
        return f"<p>{html.escape(told)}</p><table><tr><th></th>{head}</tr>{rows}</table>"

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all merges, each once."""
        merges = (each.merge for each in self.runs if each.merge is not None)
        return tuple(dict.fromkeys(warning for merge in merges for warning in merge.warnings))


# --- progress


INTERVAL_S: Final = 0.1
"""Least time between two reports of progress, seconds, except the last one."""


class SlowInFlight(Record, frozen=True, rename=None):
    """The longest driver call in flight."""

    key: Hash  # Hash of its pipeline in the set; of several, of the first.
    kind: PipelineKind  # Its kind.
    pipelines: int  # Number of pipelines in that call.
    age_s: float  # Seconds since the call began, to a tenth.


class Progress(Record, frozen=True, rename=None):
    """Progress of a run, or of a compile over all its groups. The total is fixed, and `done` never falls.

    In a session the total is the number of submitted pipelines that were not cancelled, with the libraries
    that they need; at the end `done` equals it.
    """

    total: int = 0  # Pipelines to create; in a compile over all groups, known once the set's index is read.
    done: int = 0  # Pipelines with an outcome: compiled + hits + failed + skipped.
    compiled: int = 0  # Created by compiling.
    hits: int = 0  # Created from the application's cache, as creation feedback tells.
    failed: int = 0  # Not created, also if they were unusable from the start.
    skipped: int = 0  # Not given to the driver because the device lacks something.
    in_flight: int = 0  # In a driver call now.
    started_ns: int = 0  # When the first job was submitted, on the clock of time.perf_counter_ns.
    elapsed_s: float = 0.0  # Seconds since then.
    rate: float = 0.0  # Pipelines that returned from the driver per second of that time.
    eta_s: float | None = None  # Seconds to go, or None until that is known.
    total_ns: int = 0  # Estimated cost of all pipelines, nanoseconds; only in a session.
    done_ns: int = 0  # Estimated cost of those that are done, nanoseconds; only in a session.
    slowest: SlowInFlight | None = None  # The longest driver call in flight, if known.

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

_SETTLED_AS: Final = {
    "compiled": OutcomeStatus.COMPILED,
    "hits": OutcomeStatus.CACHE_HIT,
    "failed": OutcomeStatus.FAILED,
    "skipped": OutcomeStatus.SKIPPED,
}


@define(eq=False)
class Tally:
    """The outcomes of a compile, group by group. One thread."""

    total: int = 0  # pipelines to create, over all groups
    started_ns: int = 0  # when the first job was submitted, by time.perf_counter_ns; 0: none was
    runs: list[RunReport] = field(factory=list)  # the report of each group's run
    _tables: list[OutcomeTable] = field(factory=list)
    _before: dict[OutcomeStatus, int] = field(factory=lambda: dict.fromkeys(OutcomeStatus, 0))

    def leave_out(self, table: OutcomeTable, beside: Collection[PipelineJob] = ()) -> None:
        """Count pipelines with their outcomes, but for libraries that were not requested (`beside`)."""
        self._tables.append(table)
        requested = table.only(~_among(table, PipelineJobs.of(beside))) if beside else table
        for status, count in requested.counts().items():
            self._before[status] += count

    def take_run(self, report: RunReport, beside: Collection[PipelineJob] = ()) -> None:
        """Count a group's run; see `leave_out`."""
        self.leave_out(report.pipelines, beside)
        self.runs.append(report)

    def outcomes(self, jobs: Sequence[PipelineJob]) -> OutcomeTable:
        """Outcomes of pipelines, by kind and key: the worst of their groups, or NOT_RUN."""
        columns = PipelineJobs.of(jobs)
        table = OutcomeTable.joined(self._tables)
        table = table.only(_among(table, columns))
        missing = columns.where(~_among(columns, table))
        if len(table) == len(columns):
            return table
        return OutcomeTable.joined([table, OutcomeTable.untried(missing.keys, missing.kinds)])

    def during(self, progress: Progress, beside: int = 0, cancelled: int = 0) -> Progress:
        """Progress over all groups while one of them runs, of whose pipelines `beside` were not requested."""
        before, total = self._before, self.total - cancelled
        settled = {name: getattr(progress, name) for name in _SETTLED_AS}
        for name in settled:  # what was not requested comes first, because others link it
            taken = min(beside, settled[name])
            settled[name], beside = settled[name] - taken + before[_SETTLED_AS[name]], beside - taken
        done = sum(settled.values())
        eta = progress.eta_s
        later = total - done - (progress.total - progress.done - beside)
        if eta is not None and later > 0:  # later groups, at the rate of this one
            eta = eta + later / progress.rate if progress.rate else None
        self.started_ns = self.started_ns or progress.started_ns
        elapsed_s = (progress.started_ns - self.started_ns) / 1e9 + progress.elapsed_s
        returned = before[OutcomeStatus.COMPILED] + before[OutcomeStatus.CACHE_HIT]
        returned += round(progress.rate * progress.elapsed_s)
        return msgspec.structs.replace(
            progress,
            **settled,
            total=total,
            done=done,
            started_ns=self.started_ns,
            elapsed_s=elapsed_s,
            rate=returned / elapsed_s if elapsed_s > 0 else 0.0,
            eta_s=eta,
            total_ns=0,
            done_ns=0,
        )


def _among(some: OutcomeTable | PipelineJobs, jobs: OutcomeTable | PipelineJobs) -> npt.NDArray[np.bool_]:
    """Which pipelines are also in `jobs`, shape (n,)."""
    found = np.zeros(len(some.keys), np.bool_)
    for kind in range(len(KINDS)):
        of_kind = some.kinds == kind
        found[of_kind] = np.isin(some.keys[of_kind], jobs.keys[jobs.kinds == kind])
    return found


_AFTER_NS: Final = 500_000_000
_LONG_NS: Final = 10_000_000_000
_OVERDUE_NS: Final = 200_000_000
_ENOUGH: Final = 0.03
"""Share of the work after which a time to go is told, if it is over before `_LONG_NS`."""
_TRUST: Final = 0.2
"""Share of the work that recorded costs count for, as if so much had been done in the recorded time."""


@define(eq=False)
class TimeToGo:
    """Estimates the remaining time of a run, by the costs of its jobs and not their number.

    What was done took so many times its estimated cost, and what is left will. Expected hits cost next to
    nothing. A batch in flight has what it did not have yet, and the longest one bounds the whole. The time is
    unknown before enough was measured, unless costs were recorded (`trusted`), and where all remaining
    batches are in flight and take much longer than estimated. All calls are under the scheduler's lock.
    """

    scheduler: Scheduler
    workers: int
    trusted: bool = False
    _first_ns: int | None = field(default=None, init=False)
    _seen: dict[Assignment, int] = field(factory=dict, init=False)

    def eta_s(self, now_ns: int) -> float | None:
        """Seconds to go at `now_ns`, or None where that is unknown; all calls use one clock."""
        if self._first_ns is None:
            self._first_ns = now_ns
        self._look(now_ns)
        over, queued, flights = self.scheduler.costs()
        total = over + queued + sum(flights.values())
        elapsed_ns = now_ns - self._first_ns
        is_enough = elapsed_ns >= _AFTER_NS and (over >= _ENOUGH * total or elapsed_ns >= _LONG_NS)
        if not (self.trusted or (is_enough and over and self.scheduler.spent_ns)):
            return None
        known = _TRUST * total if self.trusted else 0.0
        rate = (self.scheduler.spent_ns + known) / (over + known)
        left = [(rate * cost - (now_ns - self._seen[each]), rate * cost) for each, cost in flights.items()]
        if not queued and any(-rest > cost / 2 + _OVERDUE_NS for rest, cost in left):
            return None
        in_flight = [max(0.0, rest) for rest, _ in left]
        return max((rate * queued + sum(in_flight)) / self.workers, *in_flight, 0.0) / 1e9

    def slowest(self, now_ns: int) -> tuple[Assignment, int] | None:
        """The assignment in flight that was seen first, and its age, ns; None where there is none."""
        self._look(now_ns)
        oldest = min(self._seen, key=self._seen.__getitem__, default=None)
        return None if oldest is None else (oldest, now_ns - self._seen[oldest])

    def _look(self, now_ns: int) -> None:
        self._seen = {each: self._seen.get(each, now_ns) for each in self.scheduler.assigned}
