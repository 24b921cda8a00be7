"""What every set is made of: records of (tag, hash, payload), wherever they lie, and pipelines to compile.

Everything above reads sets through `RecordSource`. What a source had to leave out it writes down in a
`DamageLog`: thread-safe, each thing once, and bounded.
"""

from __future__ import annotations

import enum
import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Final, Protocol, Self, overload

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from orchestrator.devices.image import KINDS, PipelineKind
from orchestrator.devices.request import DeviceRequest
from orchestrator.errors import RecordError

FORMAT_VERSION = 6
"""The version of payloads that are written here."""
FORMAT_VERSIONS = (5, 6)
"""The versions of payloads that are read."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def document_text(payload: bytes) -> bytes:
    """The JSON of a record: up to the first NUL byte, without the mark that some editors put before UTF-8."""
    end = payload.find(b"\0")  # what follows may be a module's code, which is not copied here
    return (payload if end < 0 else payload[:end]).removeprefix(_BYTE_ORDER_MARK)


class UnknownContentError(RecordError):
    """A record holds what this version does not know: it is no damage, a newer recorder wrote it."""


def check_version(tag: int, key: int, version: int) -> None:
    """Refuse a record by the version of its JSON.

    Raises:
        UnknownContentError: The version is newer than those that are read.
        RecordError: It is older.
    """
    if version not in FORMAT_VERSIONS:
        is_newer = version > FORMAT_VERSION
        kind = UnknownContentError if is_newer else RecordError
        why = "the recorder is newer: " if is_newer else ""
        raise kind(tag, key, f"{why}version {version} of the JSON is not supported (5 and 6 are)")


class RecordTag(enum.IntEnum):
    """What a record holds; the numbers are those of the archive format."""

    APPLICATION_INFO = 0
    SAMPLER = 1
    DESCRIPTOR_SET_LAYOUT = 2
    PIPELINE_LAYOUT = 3
    SHADER_MODULE = 4
    RENDER_PASS = 5
    GRAPHICS_PIPELINE = 6
    COMPUTE_PIPELINE = 7
    APPLICATION_BLOB_LINK = 8
    RAY_TRACING_PIPELINE = 9
    BUCKET_INFO = 10


class Closing(Protocol):
    """A context manager that closes what it is at the end of the block."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Damage(msgspec.Struct, frozen=True):
    """Something in a set that could not be read and was left out."""

    offset: int | None
    tag: int | None
    key: int | None
    reason: str


class RecordSource(Protocol):
    """Gives records. Reads are thread-safe; nothing it returns may be changed."""

    @property
    def name(self) -> str:
        """Where the records come from, for messages: a path, or a word."""

    @property
    def damage(self) -> Sequence[Damage]:
        """What was found damaged so far; grows as payloads are read."""

    def keys(self, tag: RecordTag) -> Sequence[int]:
        """Hashes of all records of a tag, in the order of the set, each once."""

    def payload(self, tag: RecordTag, key: int) -> bytes:
        """The decompressed payload of a record; KeyError where there is none, RecordError for damage."""


DETAILS_MAX = 10_000


class DamageLog:
    """Collects `Damage`, each once; the first 10,000 that are found."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[Damage, None] = {}

    def add(self, damage: Damage) -> None:
        """Write something down, unless it stands there already."""
        with self._lock:
            if len(self._entries) < DETAILS_MAX:
                self._entries[damage] = None

    @property
    def entries(self) -> tuple[Damage, ...]:
        """What was described so far, in the order it was found."""
        with self._lock:
            return tuple(self._entries)


KIND_OF_TAG: dict[RecordTag, PipelineKind] = {
    RecordTag.GRAPHICS_PIPELINE: PipelineKind.GRAPHICS,
    RecordTag.COMPUTE_PIPELINE: PipelineKind.COMPUTE,
    RecordTag.RAY_TRACING_PIPELINE: PipelineKind.RAY_TRACING,
}
"""The kind of pipeline in the records of a tag, in the order of `PipelineKind`."""

TAG_OF_KIND: dict[PipelineKind, RecordTag] = {kind: tag for tag, kind in KIND_OF_TAG.items()}
"""The tag of the records that hold pipelines of a kind."""


class PipelineJob(msgspec.Struct, frozen=True, order=True, gc=False):
    """A pipeline to compile."""

    key: int
    kind: PipelineKind

    @property
    def tag(self) -> RecordTag:
        """The tag of its record."""
        return TAG_OF_KIND[self.kind]

    def __hash__(self) -> int:
        return self.key  # which tells nearly all apart; hashing the kind too would take five times as long

    def __str__(self) -> str:
        return f"{self.kind.value} {self.key:016x}"


_KIND_CODE: Final = {kind: code for code, kind in enumerate(KINDS)}


class PipelineJobs(Sequence[PipelineJob]):
    """Pipelines in columns: keys, shape (n,), uint64, and kinds, positions in `PipelineKind`, (n,), uint8.

    A `PipelineJob` is made when one is asked for. Immutable, and equal to a tuple.
    """

    __slots__ = ("keys", "kinds")

    def __init__(self, keys: npt.NDArray[np.uint64], kinds: npt.NDArray[np.uint8]) -> None:
        self.keys: Final = keys
        self.kinds: Final = kinds

    @classmethod
    def of(cls, jobs: Iterable[PipelineJob]) -> PipelineJobs:
        """The columns of some pipelines; columns are taken as they are."""
        if isinstance(jobs, PipelineJobs):
            return jobs
        rows = list(jobs)
        return cls(
            np.array([each.key for each in rows], np.uint64),
            np.array([_KIND_CODE[each.kind] for each in rows], np.uint8),
        )

    @classmethod
    def of_records(cls, source: RecordSource) -> PipelineJobs:
        """All pipelines of a source, once each: graphics, compute, ray tracing, in the source's order."""
        keys = [source.keys(tag) for tag in KIND_OF_TAG]
        return cls(
            np.concatenate([np.array(each, np.uint64) for each in keys]),
            np.repeat(np.arange(len(keys), dtype=np.uint8), [len(each) for each in keys]),
        )

    @classmethod
    def joined(cls, parts: Sequence[PipelineJobs]) -> PipelineJobs:
        """One after the other."""
        return cls(
            np.concatenate([np.zeros(0, np.uint64), *(each.keys for each in parts)]),
            np.concatenate([np.zeros(0, np.uint8), *(each.kinds for each in parts)]),
        )

    def where(self, chosen: npt.NDArray[np.bool_]) -> PipelineJobs:
        """Those that are chosen, in the same order."""
        return self if chosen.all() else PipelineJobs(self.keys[chosen], self.kinds[chosen])

    def at(self, places: npt.NDArray[np.int64]) -> PipelineJobs:
        """Those at some places, in the order of these."""
        return PipelineJobs(self.keys[places], self.kinds[places])

    def in_order(self) -> npt.NDArray[np.int64]:
        """Their places in order of kind and key, shape (n,); those of equal ones in any order."""
        order = np.argsort(self.keys)  # by far faster than a stable one
        kinds = self.kinds[order]
        return order[np.argsort(kinds, kind="stable")] if (kinds[1:] < kinds[:-1]).any() else order

    def firsts(self) -> npt.NDArray[np.bool_]:
        """Which differ from the one before, where they are in order, shape (n,)."""
        first = np.ones(len(self), np.bool_)
        first[1:] = (self.keys[1:] != self.keys[:-1]) | (self.kinds[1:] != self.kinds[:-1])
        return first

    def counts(self) -> dict[PipelineKind, int]:
        """Number of pipelines of each kind."""
        numbers = np.bincount(self.kinds, minlength=len(KINDS)).tolist()
        return dict(zip(KINDS, numbers, strict=True))

    def __len__(self) -> int:
        """Number of pipelines."""
        return len(self.keys)

    @overload
    def __getitem__(self, index: int) -> PipelineJob: ...
    @overload
    def __getitem__(self, index: slice) -> PipelineJobs: ...
    def __getitem__(self, index: int | slice) -> PipelineJob | PipelineJobs:
        if isinstance(index, slice):
            return PipelineJobs(self.keys[index], self.kinds[index])
        return PipelineJob(int(self.keys[index]), KINDS[self.kinds[index]])

    def __iter__(self) -> Iterator[PipelineJob]:
        """The pipelines, one after the other."""
        for key, kind in zip(self.keys.tolist(), self.kinds.tolist(), strict=True):
            yield PipelineJob(key, KINDS[kind])

    def __contains__(self, job: object) -> bool:
        """Whether a pipeline is among them."""
        if not isinstance(job, PipelineJob):
            return False
        return bool(((self.keys == job.key) & (self.kinds == _KIND_CODE[job.kind])).any())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PipelineJobs):
            return np.array_equal(self.keys, other.keys) and np.array_equal(self.kinds, other.kinds)
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.keys.tobytes(), self.kinds.tobytes()))

    def __repr__(self) -> str:
        return f"<{len(self)} pipelines>"


def _columns(jobs: Iterable[PipelineJob]) -> PipelineJobs:
    return PipelineJobs.of(jobs)


@frozen
class FeatureGroup:
    """Pipelines to compile on one device."""

    request: DeviceRequest  # what the device is opened as
    # Hashes of the applications, in the order of the set; none where the set has none.
    applications: tuple[int, ...]
    # Which, in the order of the set: graphics, compute, ray tracing.
    pipelines: PipelineJobs = field(repr=False, converter=_columns)
    # Features and extensions of the request that no application is known to have enabled, and that the
    # pipelines need; the driver's keys of these pipelines may not be those of the application.
    added: tuple[str, ...] = ()
