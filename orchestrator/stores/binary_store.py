"""`BinaryStore`: pipeline binaries of all devices, in one LMDB file beside the cache files.

    generations   hash of device and global key        -> the device and key, and a number
    pipelines     number, state key                    -> driver's key, cost, keys and hashes of its binaries
    keys          number, driver's key, state key      -> nothing: the states that share a driver's key
    identified    number, driver's key, identifiers, state key -> nothing: to look up without the state
    use           number, state key                    -> its time of last use and its value
    payloads      hash of a binary                     -> its bytes, once for all pipelines that use it
    references    hash of a binary                     -> number of pipelines that use it

A pipeline is found by the driver's key and the caller's own state key. Drivers may give one key to different
pipelines (NVIDIA 580.159, ray tracing) or to different binaries (RADV 25.0.7, ray tracing), so no driver key
is trusted alone: states that share a driver's key and differ in binaries are reported as collisions, and a
binary is named by the hash of its bytes. A caller that has only identifiers of the shader modules does not
know the state. It finds a pipeline by driver's key and identifiers, unless several with different binaries
match.

Guarantees:
- Every binary is proven by its hash before it is returned. A damaged one is a miss.
- A damaged entry that a writer meets, and what else nothing can find or nobody uses, goes with all that
  hung on it: indexes and counts are made anew from the entries that are whole.
- The hash of an entry covers its generation and its key, so no damage gives a device what is another's.
- Once `put` has returned, its pipelines are on disk, whatever happens to any process.
- The file is never larger than 1.1 times its bound, which it remembers. Beyond the bound the least valuable
  pipelines are removed, by GreedyDual-Size (Cao and Irani, 1997): compile cost per byte, aged by the value
  of those removed before.
- A file that is truncated, damaged, or made by another program or another version of this one is moved to
  the quarantine and never opened (lmdb_file.py). The first process that opens the file checks all of it.
  Without write permission for the file or its directory the store is read-only.
Assumptions: one object per file and process, not used after a fork. Thread-safe. The user owns the directory.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import lmdb
import msgspec
from attrs import define, evolve, field, frozen
from msgspec.structs import replace

from orchestrator.devices.binary_data import MOST_KEY_BYTES, PipelineBinary
from orchestrator.devices.device import DeviceIdentity
from orchestrator.errors import OrchestratorError
from orchestrator.stores.files.atomic_file import (
    REAL_FILE_OPERATIONS,
    FileOperations,
    MissingFileError,
    ReadError,
    SaveError,
    close_quietly,
    content_hash128,
    distrust,
    distrust_directory,
    ensure_directory,
    likely_cause,
    read_capped,
    status_of,
    write_atomically,
)
from orchestrator.stores.files.recovery import QuarantineError, quarantine_file
from orchestrator.stores.files.writer_lock import lock_path, writer_lock
from orchestrator.stores.kinds import STORE_NAME as STORE_NAME
from orchestrator.stores.lmdb_file import LmdbFileError, check_lmdb_file, mark_file, read_mark
from orchestrator.stores.profile_file import ProfileIdentity

STAMP_NAME: Final = "pipeline-binaries.stamp"

DEFAULT_BOUND: Final = 512 << 20
"""Default bound of a store, bytes."""

LEAST_BOUND: Final = 4 << 20

_LOCK_SUFFIX: Final = "-lock"  # of LMDB
_COMPACT_SUFFIX: Final = ".compact"
_USERS_SUFFIX: Final = ".users"  # who has the store open holds a shared lock on this; it names the file
_TABLES: Final = ("generations", "pipelines", "keys", "identified", "use", "payloads", "references", "about")
_OPEN_WAIT_S: Final = 30.0
_MOST_READERS: Final = 512
_LOCK_BYTES: Final = 64 * (_MOST_READERS + 4)  # LMDB: a cache line for each reader, and fewer than 4 others
_STAMP_CAP: Final = 4096
_NOTE_CAP: Final = 64
_MAP_OVER: Final = 1.1
_HIGH_WATER: Final = 0.95
_LOW_WATER: Final = 0.85
_A_COMMIT: Final = 0.04  # share of the bound that one commit may write
_MORE_ROOM: Final = (0.1, 0.2, 0.4)  # shares of the bound to free when data does not fit despite free room
_PAGES_A_PIPELINE: Final = 6  # written for each pipeline, besides its payload
_LOOK_EVERY: Final = 4  # pipelines to evict between two checks of the used bytes
_ENTRY_BYTES: Final = 512  # of a pipeline besides its payloads, to compute its value
_UNKNOWN_COST_NS: Final = 2_000_000
_GRAIN_S: Final = 60
_LONG_S: Final = 86_400
_FEW_NAMESAKES: Final = 8
_USE: Final = struct.Struct("<dQ")
_REFERENCE: Final = struct.Struct("<IQ")
_HASH_BYTES: Final = 16
_MOST_STATE_BYTES: Final = 64
_PREFIX: Final = struct.Struct(">I")
_MOST_NUMBER: Final = (1 << 32) - 1

_T = TypeVar("_T")


class StoreError(OrchestratorError):
    """The store of binaries cannot be used in this way.

    Attributes:
        path: The store.
        reason: What is wrong, and the likely cause.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class StoreFullError(StoreError):
    """Nothing more fits after eviction: the disk is full, or readers still hold removed pages."""


class DiskFullError(StoreFullError):
    """The disk is full, or the user's quota of it."""


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """A device and a global key; keys and binaries are valid only within it.

    Attributes:
        identity: The device and its driver.
        device_name: For people, as are `driver_name` and `driver_info`.
        global_key: vkGetPipelineKeyKHR without a create info.
        compressed: Whether the driver compresses its binaries itself.
    """

    identity: ProfileIdentity
    device_name: str
    driver_name: str
    driver_info: str
    global_key: bytes
    compressed: bool = False

    @classmethod
    def of(cls, identity: DeviceIdentity, global_key: bytes, *, compressed: bool = False) -> Self:
        """The generation of an open device."""
        return cls(
            identity=ProfileIdentity.of(identity),
            device_name=identity.device_name,
            driver_name=identity.driver_name,
            driver_info=identity.driver_info,
            global_key=global_key,
            compressed=compressed,
        )

    @property
    def digest(self) -> bytes:
        """Its key in the store, 16 bytes."""
        return content_hash128(msgspec.msgpack.encode((self.identity, self.global_key)))


@frozen
class _Owner:
    """A generation as the keys of its pipelines name it, and as the hashes of their entries do."""

    prefix: bytes
    digest: bytes

    def read(self, key: bytes, value: Any) -> _Entry | None:
        """An entry; None where it is damaged, or another generation's."""
        try:
            return _decode_entry.decode(_proven(value, self.digest, key))
        except (ValueError, msgspec.MsgspecError):
            return None


class _KnownGeneration(msgspec.Struct, frozen=True):
    number: int
    about: Generation
    used_s: int

    @property
    def owner(self) -> _Owner:
        return _Owner(_PREFIX.pack(self.number), self.about.digest)


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    driver_key: bytes
    cost_ns: int
    binaries: list[tuple[bytes, bytes, int]]  # key, hash of the bytes, size
    identifiers: bytes = b""

    @property
    def size(self) -> int:
        """Bytes of its binaries."""
        return sum(size for _, _, size in self.binaries)

    @property
    def worth(self) -> float:
        """Its value: ns that keeping it saves for each byte."""
        return (self.cost_ns or _UNKNOWN_COST_NS) / (self.size + _ENTRY_BYTES)


_decode_entry = msgspec.msgpack.Decoder(_Entry)
_decode_generation = msgspec.msgpack.Decoder(_KnownGeneration)


FOUND, MISSING, KEY_DIFFERS, DAMAGED = "found", "missing", "key_differs", "damaged"
"""Outcomes of a look-up. KEY_DIFFERS: it is stored under another driver's key."""

COLLIDES = "collides"
"""Several pipelines with different binaries match, so none of them is returned."""


class StoredPipeline(msgspec.Struct, frozen=True):
    """A pipeline in the store, or to be stored.

    Attributes:
        state_key: The caller's own key of its state, 1 to 64 bytes.
        driver_key: The driver's key, at most 32 bytes; empty where it gave none.
        binaries: Its binaries in the driver's order. From a look-up they are memory of the store, valid until
            the end of `reading`.
        cost_ns: Compile time, ns; 0 where it is not known.
        identifiers: Names the shader modules of its stages for look-ups without the modules, at most 32
            bytes; empty where it can only be found by its state.
    """

    state_key: bytes
    driver_key: bytes
    binaries: tuple[PipelineBinary, ...]
    cost_ns: int = 0
    identifiers: bytes = b""

    @property
    def size(self) -> int:
        """Bytes of its binaries."""
        return sum(len(each.data) for each in self.binaries)

    def check(self) -> None:
        """Raise ValueError if it cannot be stored: by a key's size, its cost, or for want of binaries."""
        if not 1 <= len(self.state_key) <= _MOST_STATE_BYTES:
            raise ValueError(f"a state key has 1 to {_MOST_STATE_BYTES} bytes, not {len(self.state_key)}")
        keys = (self.driver_key, self.identifiers, *(each.key for each in self.binaries))
        if max(map(len, keys)) > MOST_KEY_BYTES or not self.binaries:
            raise ValueError(f"a pipeline has binaries, and keys of at most {MOST_KEY_BYTES} bytes")
        if self.cost_ns < 0:
            raise ValueError(f"compiling a pipeline takes no time below 0 ns: {self.cost_ns}")


class PutReport(msgspec.Struct, frozen=True):
    """The result of storing pipelines; reports add up.

    Attributes:
        pipelines: Pipelines that are stored now.
        known: Pipelines that were stored before with the same binaries.
        collisions: Pipelines whose driver's key another state with other binaries has.
        shared_keys: Pipelines whose driver's key another state with the same binaries has.
        too_large: Pipelines that were not stored, because one would take too much of the bound.
        captured_bytes: Size of all given binaries.
        stored_bytes: Size of the new binaries among them.
        evicted: Pipelines that were removed to make room.
    """

    pipelines: int = 0
    known: int = 0
    collisions: int = 0
    shared_keys: int = 0
    too_large: int = 0
    captured_bytes: int = 0
    stored_bytes: int = 0
    evicted: int = 0

    def __add__(self, other: PutReport) -> PutReport:
        """Both together."""
        names = self.__struct_fields__
        return PutReport(*(getattr(self, each) + getattr(other, each) for each in names))

    @property
    def lost(self) -> str:
        """What is not in the store for want of room, and what to do, in words; or ""."""
        made_room, too_large = "removed again, or from before, to make room", "too large for the store"
        counts = {made_room: self.evicted, too_large: self.too_large}
        said = ", ".join(f"{count:,} {why}" for why, count in counts.items() if count)
        step = "`orchestrator compile --binaries-disk` allows the store more"
        return f"not all pipelines fit: {said}; {step}" if said else ""


class GenerationStat(msgspec.Struct, frozen=True, kw_only=True):
    """What a store holds of one generation.

    Attributes:
        about: The generation.
        pipelines: Number of pipelines.
        binaries: Number of their binaries, each counted for every use.
        bytes: Size of these binaries.
        shared_driver_keys: Driver's keys that several states share.
        used_s: When it was last written or touched, seconds since the epoch.
    """

    about: Generation
    pipelines: int
    binaries: int
    bytes: int
    shared_driver_keys: int
    used_s: int


class StoreStat(msgspec.Struct, frozen=True, kw_only=True):
    """What a store holds.

    Attributes:
        path: The file.
        generations: One for each device and global key.
        payloads: Number of different binaries.
        payload_bytes: Size of these binaries.
        used_bytes: Size of all used pages.
        file_bytes: Size of the file.
        bound_bytes: Bound on the used bytes.
    """

    path: str
    generations: tuple[GenerationStat, ...]
    payloads: int
    payload_bytes: int
    used_bytes: int
    file_bytes: int
    bound_bytes: int


class StoreVerification(msgspec.Struct, frozen=True):
    """The result of checking a whole store.

    Attributes:
        pipelines: Number of pipelines.
        payloads: Number of binaries, all of whose hashes were checked.
        bytes: Size of these binaries.
        problems: What is wrong, in words.
    """

    pipelines: int
    payloads: int
    bytes: int
    problems: tuple[str, ...]


_open_here: dict[tuple[int, Path], BinaryStore] = {}
_opening = threading.Lock()


def _drop_inherited() -> None:
    """Close stores that a fork inherited; they stay open in the parent process."""
    for process, path in [key for key in _open_here if key[0] != os.getpid()]:
        _open_here.pop((process, path))._let_go()


@define(eq=False)
class BinaryStore:
    """An open store, made by `BinaryStore.open`. Close it as often as it was opened.

    Attributes:
        path: The file.
        bound_bytes: Bound on the used bytes.
        read_only: Why nothing can be written, or "".
        set_aside: What was moved to the quarantine at opening, and why, or "".
    """

    path: Path
    bound_bytes: int
    read_only: str
    set_aside: str
    _environment: Any = field(repr=False)
    _tables: dict[str, Any] = field(repr=False)
    _users: int | None = field(repr=False)
    _operations: FileOperations = field(repr=False)
    _process: int = field(factory=os.getpid, repr=False)
    _opened: int = 1
    _lock: threading.Lock = field(factory=threading.Lock, repr=False)
    _is_damaged: bool = False
    _file: tuple[int, ...] | None = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._file = self._file_now()

    def _file_now(self) -> tuple[int, ...] | None:
        try:
            return self._operations.stat(self.path).file_id
        except OSError:
            return None

    @property
    def is_there(self) -> bool:
        """Whether its path still names the file that it writes: a removed file takes all that is stored."""
        return self._file_now() == self._file is not None

    # --- open and close

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        bound_bytes: int | None = None,
        create: bool = True,
        operations: FileOperations = REAL_FILE_OPERATIONS,
    ) -> BinaryStore:
        """Open the store of a directory; every call in a process gives the same object.

        Args:
            directory: The directory of cache files; created where it is missing.
            bound_bytes: The new bound, at least 4 MiB; None for the remembered one, or else `DEFAULT_BOUND`.
                A larger store loses its least valuable pipelines. While another process has it open, its
                bound stays.
            create: Make a store where there is none, or in place of one that must not be opened.
            operations: The calls to use.

        Raises:
            StoreError: There is no usable store, and `create` is false; others may write it; another process
                did not finish opening it in time; the disk is full.
            ValueError: The bound is too small.
        """
        if bound_bytes is not None and bound_bytes < LEAST_BOUND:
            raise ValueError(f"a store of {bound_bytes} bytes: {LEAST_BOUND} is the least")
        path = operations.resolve(directory) / STORE_NAME
        with _opening:
            _drop_inherited()
            known = _open_here.get((os.getpid(), path))
            if known is not None:
                known._opened += 1
                return known
            with _told(path):
                made = _Opening(path, bound_bytes, create, operations).open()
            _open_here[os.getpid(), path] = made
            return made

    @classmethod
    def compact(cls, directory: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> int | None:
        """Return unused pages to the disk; returns the bytes, None while a process has the store open.

        Raises:
            StoreError: As `open`.
        """
        path = operations.resolve(directory) / STORE_NAME
        with _opening, _told(path):
            return _Opening(path, None, False, operations).compact()

    def close(self) -> None:
        """Close it once; the last call closes the file. The caller uses nothing of it any more."""
        with _opening:
            self._opened -= 1
            if self._opened == 0 and _open_here.pop((self._process, self.path), None) is not None:
                self._let_go()

    def _let_go(self) -> None:
        self._environment.close()
        if self._users is not None:
            close_quietly(self._users, self._operations)

    def __enter__(self) -> Self:
        """Use it for a block, and close it then."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    # --- reading

    def generation(self, generation: Generation) -> int | None:
        """The number of a generation; None where nothing of it is stored."""
        with self._reading() as transaction:
            known = self._known(transaction, generation.digest)
            return None if known is None else known.number

    @contextmanager
    def reading(self, generation: Generation) -> Iterator[StoreReader]:
        """Look pipelines up. Found binaries are memory of the store, valid until the end of the block.

        Raises:
            StoreError: It cannot be read.
        """
        with self._reading() as transaction:
            digest = generation.digest
            known = self._known(transaction, digest)
            lost = known is None and self._get(transaction, "generations", digest) is not None
            yield StoreReader(self, transaction, None if known is None else known.owner, is_damaged=lost)

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        self._require_usable()
        try:
            with self._environment.begin(buffers=True) as transaction:
                yield transaction
        except lmdb.Error as error:
            raise StoreError(self.path, f"it cannot be read: {error}") from error

    def _require_usable(self) -> None:
        if os.getpid() != self._process:
            raise StoreError(self.path, "it was opened before a fork: open it again in this process")
        if not self._opened:
            raise StoreError(self.path, "it was closed before")

    def _known(self, transaction: Any, digest: bytes) -> _KnownGeneration | None:
        found = self._get(transaction, "generations", digest)
        return None if found is None else _generation_in(found, digest)

    def _get(self, transaction: Any, table: str, key: bytes) -> Any:
        database = self._tables.get(table)
        return None if database is None else transaction.get(key, db=database)

    # --- writing

    def put(self, generation: Generation, pipelines: Sequence[StoredPipeline]) -> PutReport:
        """Store pipelines, in as few commits as the bound allows; on disk when this returns.

        A pipeline of the same state is replaced. Less valuable ones are removed where room is needed.

        Raises:
            StoreFullError: There is no room, and none can be made. Earlier commits stay.
            StoreError: It cannot be written.
            ValueError: As `StoredPipeline.check`.
        """
        for each in pipelines:
            each.check()
        page = self._page_size
        report = PutReport()
        batch: list[tuple[StoredPipeline, list[bytes]]] = []
        size = 0
        most = self._bytes_a_commit
        for each in pipelines:
            taken = _PAGES_A_PIPELINE * page + sum(
                -(-(len(binary.data) + 16) // page) * page for binary in each.binaries
            )
            if taken > self.bound_bytes // 4:
                report += PutReport(too_large=1, captured_bytes=each.size)
                continue
            if batch and size + taken > most:
                report += self._put(generation, batch, size)
                batch, size = [], 0
            batch.append((each, [content_hash128(binary.data) for binary in each.binaries]))
            size += taken
        return report + self._put(generation, batch, size) if batch else report

    def _put(
        self, generation: Generation, batch: Sequence[tuple[StoredPipeline, list[bytes]]], size: int
    ) -> PutReport:
        evicted = self.make_room(size)

        def write(transaction: Any) -> PutReport:
            owner = self._owner(transaction, generation)
            age = self._age(transaction)
            now = int(time.time())
            report = PutReport()
            for pipeline, hashes in batch:
                report += self._put_one(transaction, owner, pipeline, hashes, age, now)
            return report

        for share in _MORE_ROOM:
            try:
                return self._write(write) + PutReport(evicted=evicted)
            except StoreFullError:
                # Large binaries need consecutive pages, and readers still hold some free pages.
                evicted += self.make_room(size + int(share * self.bound_bytes))
        return self._write(write) + PutReport(evicted=evicted)

    def _put_one(
        self,
        transaction: Any,
        owner: _Owner,
        pipeline: StoredPipeline,
        hashes: list[bytes],
        age: float,
        now: int,
    ) -> PutReport:
        tables, key = self._tables, owner.prefix + pipeline.state_key
        contents = [each.data for each in pipeline.binaries]
        entry = _Entry(
            pipeline.driver_key,
            pipeline.cost_ns,
            [
                (binary.key, digest, len(binary.data))
                for binary, digest in zip(pipeline.binaries, hashes, strict=True)
            ],
            pipeline.identifiers,
        )
        known = self._met(transaction, owner, key)
        same = known is not None and replace(entry, cost_ns=known.cost_ns) == known
        if known is not None and same and not entry.cost_ns:
            entry = known
        if entry != known:
            encoded = msgspec.msgpack.encode(entry)
            transaction.put(key, _sealed(encoded, owner.digest, key), db=tables["pipelines"])
        collisions = shared = 0
        if same:  # which says nothing of the payloads
            stored = sum(map(partial(self._mend, transaction), hashes, contents))
        else:
            stored = sum(map(partial(self._refer, transaction), hashes, contents))
            if known is not None:
                self._forget_binaries(transaction, known)
                self._forget_names(transaction, key, known)
            for table, name in _names(key, entry):
                transaction.put(name, b"", db=tables[table])
            if pipeline.driver_key:
                collisions, shared = self._namesakes(transaction, owner, key, entry)
        transaction.put(key, _USE.pack(age + entry.worth, now), db=tables["use"])
        return PutReport(1, int(same), collisions, shared, 0, entry.size, stored)

    def _namesakes(self, transaction: Any, owner: _Owner, key: bytes, entry: _Entry) -> tuple[int, int]:
        """(1, 0) if another state has the driver's key and other binaries, (0, 1) if the same ones."""
        prefix = _index_key(owner.prefix, entry.driver_key, b"")
        looked = 0
        with transaction.cursor(db=self._tables["keys"]) as cursor:
            there = cursor.set_range(prefix)
            while there and looked < _FEW_NAMESAKES:
                found = bytes(cursor.key())
                if not found.startswith(prefix):
                    break
                state = found[len(prefix) :]
                if state != key[4:]:
                    looked += 1
                    other = self._entry(transaction, owner, owner.prefix + state)
                    if other is not None and other.binaries != entry.binaries:
                        return 1, 0
                there = cursor.next()
        return 0, int(looked > 0)

    def _refer(self, transaction: Any, digest: bytes, data: bytes | memoryview) -> int:
        """Count one more use of a payload; returns the bytes that were written."""
        tables = self._tables
        count, size = self._reference(transaction, digest) or (0, len(data))
        transaction.put(digest, _REFERENCE.pack(count + 1, len(data)), db=tables["references"])
        if count and size == len(data):
            return self._mend(transaction, digest, data)
        transaction.put(digest, data, db=tables["payloads"])
        return len(data)

    def _mend(self, transaction: Any, digest: bytes, data: bytes | memoryview) -> int:
        """Write a payload again that is damaged or gone; returns the bytes that were written."""
        there = transaction.get(digest, db=self._tables["payloads"])
        if there is not None and len(there) == len(data) and content_hash128(there) == digest:
            return 0
        transaction.put(digest, data, db=self._tables["payloads"])
        return len(data)

    def _forget_names(self, transaction: Any, key: bytes, entry: _Entry) -> None:
        for table, name in _names(key, entry):
            transaction.delete(name, db=self._tables[table])

    def _reference(self, transaction: Any, digest: bytes) -> tuple[int, int] | None:
        """How many pipelines use a payload, and its size; None where nobody does. Notes a damaged count."""
        found = transaction.get(digest, db=self._tables["references"])
        told = None if found is None else _reference_in(found)
        self._is_damaged |= found is not None and told is None
        return told

    def _forget_binaries(self, transaction: Any, entry: _Entry) -> None:
        """Count one use less of an entry's payloads, and remove those that nobody uses."""
        tables = self._tables
        for _, digest, size in entry.binaries:
            count, _ = self._reference(transaction, digest) or (0, 0)
            if self._is_damaged:
                continue  # who else uses it is counted anew
            if count > 1:
                transaction.put(digest, _REFERENCE.pack(count - 1, size), db=tables["references"])
                continue
            transaction.delete(digest, db=tables["references"])
            transaction.delete(digest, db=tables["payloads"])

    def touch(self, generation: Generation, state_keys: Sequence[bytes], grain_s: int = _GRAIN_S) -> int:
        """Note that pipelines were used; returns how many notes were written.

        A use less than `grain_s` seconds after the last noted one is not noted. While nothing was evicted
        since, that is a day, because the order of eviction is the same.

        Raises:
            StoreError: It cannot be written.
        """
        now = int(time.time())
        with self._reading() as transaction:
            known = self._known(transaction, generation.digest)
            if known is None:
                return 0
            owner = known.owner
            aged = transaction.get(b"aged", db=self._tables["about"])
            aged_s = int.from_bytes(aged, "little") if aged is not None else 0
            stale = []
            for state in state_keys:
                found = transaction.get(owner.prefix + state, db=self._tables["use"])
                if found is not None:
                    _, used_s = _use_in(found)
                    grain = grain_s if used_s <= aged_s else grain_s and _LONG_S
                    if not 0 <= now - used_s < grain:  # a time to come is of a clock that went wrong
                        stale.append(owner.prefix + state)
        if not stale:
            return 0
        # Notes are small, but each may need a page of its own.
        at_once = max(1, self._bytes_a_commit // (2 * self._page_size))
        for start in range(0, len(stale), at_once):
            some = stale[start : start + at_once]
            self._write(partial(self._touch, owner=owner, keys=some, now=now))
        self._write(partial(self._owner, generation=generation))
        return len(stale)

    def _touch(self, transaction: Any, owner: _Owner, keys: Sequence[bytes], now: int) -> None:
        age = self._age(transaction)
        for key in keys:
            entry = self._entry(transaction, owner, key)
            if entry is not None:
                transaction.put(key, _USE.pack(age + entry.worth, now), db=self._tables["use"])

    def remove(self, generation: Generation, state_keys: Sequence[bytes]) -> int:
        """Remove pipelines, such as those that the driver refused; returns how many there were.

        Raises:
            StoreError: It cannot be written.
        """
        number = self.generation(generation)
        if number is None:
            return 0
        prefix = _PREFIX.pack(number)
        return self._remove([prefix + state for state in state_keys])

    def _remove(self, keys: Sequence[bytes]) -> int:
        removed = 0
        at_once = self._victims_a_commit
        for start in range(0, len(keys), at_once):
            removed += self._write(partial(self._drop_all, keys=keys[start : start + at_once]))
        return removed

    def _drop_all(self, transaction: Any, keys: Sequence[bytes]) -> int:
        owners = self._owners(transaction)
        return sum(self._drop(transaction, owners, key) for key in keys)

    def _drop(self, transaction: Any, owners: dict[bytes, _Owner], key: bytes) -> bool:
        """Remove one pipeline; returns whether it was there."""
        tables = self._tables
        entry = self._met(transaction, owners.get(key[: _PREFIX.size]), key)
        transaction.delete(key, db=tables["use"])
        if entry is not None:
            self._forget_names(transaction, key, entry)
            self._forget_binaries(transaction, entry)
        return bool(transaction.delete(key, db=tables["pipelines"]))

    def make_room(self, incoming: int) -> int:
        """Evict the least valuable pipelines until so many bytes fit into the bound; returns how many.

        Raises:
            StoreError: It cannot be written.
        """
        with self._reading() as transaction:
            if self._used_bytes(transaction) + incoming <= self.bound_bytes * _HIGH_WATER:
                return 0
        return self.shrink(max(0, int(self.bound_bytes * _LOW_WATER) - incoming))

    def shrink(self, most_bytes: int) -> int:
        """Evict the least valuable pipelines until at most so many bytes are used; returns how many.

        Raises:
            StoreError: It cannot be written.
        """
        with self._reading() as transaction:
            if self._used_bytes(transaction) <= most_bytes:
                return 0
            ranked = sorted(
                (_use_in(value)[0], bytes(key)) for key, value in transaction.cursor(db=self._tables["use"])
            )
        evicted = 0
        at_once = self._victims_a_commit
        for start in range(0, len(ranked), at_once):
            some = ranked[start : start + at_once]
            evicted += self._write(partial(self._evict, ranked=some, most_bytes=most_bytes))
            with self._reading() as transaction:
                if self._used_bytes(transaction) <= most_bytes:
                    break
        # LMDB reuses the pages that a commit frees from the second commit after it on.
        self._write(partial(self._grow_old, worth=0.0))
        return evicted

    def _evict(self, transaction: Any, ranked: Sequence[tuple[float, bytes]], most_bytes: int) -> int:
        gone = 0
        owners = self._owners(transaction)
        for number, (worth, key) in enumerate(ranked):
            if number % _LOOK_EVERY == 0 and self._used_bytes(transaction) <= most_bytes:
                break
            now = transaction.get(key, db=self._tables["use"])
            if now is None or _use_in(now)[0] != worth:
                continue  # removed or used since
            gone += self._drop(transaction, owners, key)
            self._grow_old(transaction, worth)
        return gone

    def prune(self, unwanted: Callable[[Generation, int], bool]) -> tuple[Generation, ...]:
        """Remove the generations for which `unwanted(generation, seconds of last use)` is true; returns them.

        What is damaged goes too.

        Raises:
            StoreError: It cannot be written.
        """
        with self._reading() as transaction:
            found = list(self._generations(transaction))
        gone = [(digest, known) for digest, known in found if unwanted(known.about, known.used_s)]
        for digest, known in gone:
            prefix = known.owner.prefix
            with self._reading() as transaction:
                keys = [bytes(key) for key, _ in _from(transaction, self._tables["pipelines"], prefix)]
            self._remove(keys)
            self._write(partial(self._drop_generation, digest=digest))
        self._rebuild()
        return tuple(known.about for _, known in gone)

    def _drop_generation(self, transaction: Any, digest: bytes) -> None:
        transaction.delete(digest, db=self._tables["generations"])

    def _rebuild(self) -> None:
        """Remove what is damaged or belongs to nothing, and count anew, from entries that are whole."""
        self._is_damaged = False
        tried: set[tuple[str, bytes]] = set()
        proven: dict[bytes, int] = {}
        with self._reading() as transaction:
            self._payload_sizes(transaction, proven)  # all are read, which nobody else need wait for
        while self._commit(partial(self._rebuild_some, tried=tried, proven=proven)):
            pass

    def _rebuild_some(
        self, transaction: Any, tried: set[tuple[str, bytes]], proven: dict[bytes, int]
    ) -> bool:
        """Do as much of it as one commit may write; returns whether more is left."""
        wrong = (each for each in self._wrong(transaction, proven) if each[:2] not in tried)
        changes = list(islice(wrong, self._victims_a_commit))
        for table, key, value in changes:
            tried.add((table, key))
            if value is None:
                self._take_out(transaction, self._tables[table], key)
            else:
                transaction.put(key, value, db=self._tables[table])
        return bool(changes)

    @staticmethod
    def _take_out(transaction: Any, table: Any, key: bytes) -> None:
        """Remove an entry, also where its damaged key is out of order, so that no search finds it."""
        if key and transaction.delete(key, db=table):
            return
        with transaction.cursor(db=table) as cursor:
            there = cursor.first()
            while there and bytes(cursor.key()) != key:
                there = cursor.next()
            if there:
                cursor.delete()

    def _payload_sizes(self, transaction: Any, proven: dict[bytes, int]) -> dict[bytes, int]:
        """Size of each payload, -1 where it is damaged; `proven` gets the others, which are read once."""
        sizes = {}
        for key, data in transaction.cursor(db=self._tables["payloads"]):
            digest = bytes(key)
            if digest not in proven and content_hash128(data) == digest:
                proven[digest] = len(data)
            sizes[digest] = proven.get(digest, -1)
        return sizes

    def _wrong(self, transaction: Any, proven: dict[bytes, int]) -> Iterator[tuple[str, bytes, bytes | None]]:
        """Table and key of what is not as the entries say, and what is right; None: nothing is."""
        rows = {
            table: {bytes(key): bytes(value) for key, value in transaction.cursor(db=self._tables[table])}
            for table in ("generations", "keys", "identified", "references", "use")
        }
        payloads = self._payload_sizes(transaction, proven)
        right: dict[str, dict[bytes, bytes]] = {table: {} for table in rows}
        right["generations"] = {
            digest: rows["generations"][digest] for digest, _ in self._generations(transaction)
        }
        owners, age, now = self._owners(transaction), self._age(transaction), int(time.time())
        counts: dict[bytes, int] = {}
        for raw_key, value in transaction.cursor(db=self._tables["pipelines"]):
            key = bytes(raw_key)
            owner = owners.get(key[: _PREFIX.size])
            entry = None if owner is None else owner.read(key, value)
            if entry is None or any(payloads.get(digest) != size for _, digest, size in entry.binaries):
                yield "pipelines", key, None
                continue
            for table, name in _names(key, entry):
                right[table][name] = b""
            for _, digest, _ in entry.binaries:
                counts[digest] = counts.get(digest, 0) + 1
            used = rows["use"].get(key, b"")
            right["use"][key] = used if _use_in(used)[1] else _USE.pack(age + entry.worth, now)
        right["references"] = {
            digest: _REFERENCE.pack(count, payloads[digest]) for digest, count in counts.items()
        }
        for table, held in rows.items():
            for key in held.keys() | right[table].keys():
                if held.get(key) != right[table].get(key):
                    yield table, key, right[table].get(key)
        for digest in payloads.keys() - counts.keys():
            yield "payloads", digest, None

    def _write(self, work: Callable[[Any], _T]) -> _T:
        """Run `work` in one commit; what it meets that is damaged is mended after that."""
        done = self._commit(work)
        if self._is_damaged:
            with suppress(StoreError):  # what `work` wrote is there in any case
                self._rebuild()
        return done

    def _commit(self, work: Callable[[Any], _T]) -> _T:
        """Run `work` in one commit. The lock serializes threads, LMDB serializes processes."""
        self._require_usable()
        if self.read_only:
            raise StoreError(self.path, f"it can only be read: {self.read_only}")
        with self._lock:
            try:
                with self._environment.begin(write=True) as transaction:
                    return work(transaction)
            except lmdb.MapFullError as error:
                raise StoreFullError(
                    self.path, f"its {self.bound_bytes} bytes are full: prune it, or allow it more"
                ) from error
            except lmdb.Error as error:
                cause = str(error)
                # LMDB reports a short write as an I/O error.
                full = "No space" in cause or "quota" in cause or self._disk_is_full()
                if full and "Input/output" in cause:
                    cause = likely_cause(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
                kind = DiskFullError if full else StoreError
                raise kind(self.path, f"it cannot be written: {cause}") from error

    def _disk_is_full(self) -> bool:
        try:
            system = os.statvfs(self.path.parent)
        except OSError:  # then it is not known, and the error that asks is told as it is
            return False
        return system.f_bavail * system.f_frsize < self._bytes_a_commit

    def _owner(self, transaction: Any, generation: Generation) -> _Owner:
        """A generation, made where it is new; notes its use."""
        digest = generation.digest
        known = self._known(transaction, digest)
        now = int(time.time())
        if known is None or not 0 <= now - known.used_s < _GRAIN_S:  # as in `touch`
            number = known.number if known is not None else self._new_number(transaction)
            known = _KnownGeneration(number, generation, now)
            sealed = _sealed(msgspec.msgpack.encode(known), digest)
            transaction.put(digest, sealed, db=self._tables["generations"])
        return known.owner

    def _new_number(self, transaction: Any) -> int:
        """A number that no generation and no pipeline has, whatever became of the note of the next one."""
        found = transaction.get(b"next", db=self._tables["about"])
        noted = int.from_bytes(found, "little") if found is not None and len(found) == 4 else 1
        owners, prefixes = self._owners(transaction), self._prefixes(transaction)
        # A damaged generation is made anew, and nothing finds its pipelines any more.
        self._is_damaged |= not prefixes <= owners.keys()
        taken = owners.keys() | prefixes
        number = max(noted, 1 + max((_PREFIX.unpack(each)[0] for each in taken), default=0))
        if number >= _MOST_NUMBER:  # as only damage makes it
            number = next(each for each in range(1, _MOST_NUMBER) if _PREFIX.pack(each) not in taken)
        transaction.put(b"next", (number + 1).to_bytes(4, "little"), db=self._tables["about"])
        return number

    def _owners(self, transaction: Any) -> dict[bytes, _Owner]:
        """All generations, by what the keys of their pipelines begin with."""
        return {known.owner.prefix: known.owner for _, known in self._generations(transaction)}

    def _prefixes(self, transaction: Any) -> set[bytes]:
        """What the keys of the stored pipelines begin with."""
        found = set()
        with transaction.cursor(db=self._tables["pipelines"]) as cursor:
            there = cursor.first()
            while there:
                prefix = bytes(cursor.key())[: _PREFIX.size].ljust(_PREFIX.size, b"\0")
                found.add(prefix)
                (number,) = _PREFIX.unpack(prefix)
                there = number < _MOST_NUMBER and cursor.set_range(_PREFIX.pack(number + 1))
        return found

    def _age(self, transaction: Any) -> float:
        found = transaction.get(b"age", db=self._tables["about"])
        age: float = struct.unpack("<d", found)[0] if found is not None and len(found) == 8 else 0.0
        return age if 0 <= age < float("inf") else 0.0

    def _grow_old(self, transaction: Any, worth: float) -> None:
        if worth == worth and worth < float("inf"):
            age = max(self._age(transaction), worth)
            transaction.put(b"age", struct.pack("<d", age), db=self._tables["about"])
            transaction.put(b"aged", int(time.time()).to_bytes(8, "little"), db=self._tables["about"])

    def _entry(self, transaction: Any, owner: _Owner | None, key: bytes) -> _Entry | None:
        found = self._get(transaction, "pipelines", key)
        return None if found is None or owner is None else owner.read(key, found)

    def _met(self, transaction: Any, owner: _Owner | None, key: bytes) -> _Entry | None:
        """As `_entry`, for whoever replaces or removes it: a damaged one does not say what hung on it."""
        entry = self._entry(transaction, owner, key)
        self._is_damaged |= entry is None and self._get(transaction, "pipelines", key) is not None
        return entry

    # --- figures

    @property
    def _page_size(self) -> int:
        return int(self._environment.stat()["psize"])

    @property
    def _bytes_a_commit(self) -> int:
        return max(8 * self._page_size, int(self.bound_bytes * _A_COMMIT))

    @property
    def _victims_a_commit(self) -> int:
        return max(1, self._bytes_a_commit // (_PAGES_A_PIPELINE * self._page_size))

    def _used_bytes(self, transaction: Any) -> int:
        pages = 2
        for table in self._tables.values():
            told = transaction.stat(db=table)
            pages += told["branch_pages"] + told["leaf_pages"] + told["overflow_pages"]
        return (pages + 1) * self._page_size

    def _generations(self, transaction: Any) -> Iterator[tuple[bytes, _KnownGeneration]]:
        for raw_key, value in transaction.cursor(db=self._tables["generations"]):
            key = bytes(raw_key)
            known = _generation_in(value, key)
            if known is not None:
                yield key, known

    def _entries(self, transaction: Any, owner: _Owner) -> Iterator[_Entry]:
        """Those of a generation that are whole."""
        for key, value in _from(transaction, self._tables["pipelines"], owner.prefix):
            entry = owner.read(bytes(key), value)
            if entry is not None:
                yield entry

    def statistics(self) -> StoreStat:
        """What it holds.

        Raises:
            StoreError: It cannot be read.
        """
        with self._reading() as transaction:
            if not self._tables:
                return self._stat((), 0, 0, 0)
            generations = []
            for _, known in self._generations(transaction):
                owner = known.owner
                pipelines = binaries = size = 0
                for entry in self._entries(transaction, owner):
                    pipelines += 1
                    binaries += len(entry.binaries)
                    size += entry.size
                shared: dict[bytes, int] = {}
                for key, _ in _from(transaction, self._tables["keys"], owner.prefix):
                    length = int.from_bytes(key[4:5], "big")  # a damaged key may end before it
                    driver_key = bytes(key[5 : 5 + length])
                    shared[driver_key] = shared.get(driver_key, 0) + 1
                generations.append(
                    GenerationStat(
                        about=known.about,
                        pipelines=pipelines,
                        binaries=binaries,
                        bytes=size,
                        shared_driver_keys=sum(
                            count > 1 for driver_key, count in shared.items() if driver_key
                        ),
                        used_s=known.used_s,
                    )
                )
            told = (_reference_in(value) for _, value in transaction.cursor(db=self._tables["references"]))
            sizes = [each[1] for each in told if each is not None]
            return self._stat(tuple(generations), len(sizes), sum(sizes), self._used_bytes(transaction))

    def freed_bytes(self, generations: Sequence[Generation]) -> list[int]:
        """Bytes of binaries that go with each generation, removed in this order; what others use stays.

        Raises:
            StoreError: It cannot be read.
        """
        uses: dict[bytes, int] = {}
        freed = []
        with self._reading() as transaction:
            for each in generations:
                freed.append(0)
                known = self._known(transaction, each.digest)
                for entry in () if known is None else self._entries(transaction, known.owner):
                    for _, digest, size in entry.binaries:
                        uses[digest] = uses.get(digest, 0) + 1
                        told = _reference_in(self._get(transaction, "references", digest) or b"")
                        freed[-1] += size if told is not None and uses[digest] == told[0] else 0
        return freed

    def _stat(
        self, generations: tuple[GenerationStat, ...], payloads: int, payload_bytes: int, used: int
    ) -> StoreStat:
        with _told(self.path):
            file_bytes = self._operations.stat(self.path).size
        return StoreStat(
            path=os.fsencode(self.path).decode("utf-8", "backslashreplace"),
            generations=generations,
            payloads=payloads,
            payload_bytes=payload_bytes,
            used_bytes=used,
            file_bytes=file_bytes,
            bound_bytes=self.bound_bytes,
        )

    def verify(self) -> StoreVerification:
        """Check everything: structure, hashes, references. Other processes may use the store meanwhile.

        Raises:
            StoreError: It cannot be read.
        """
        try:
            check_lmdb_file(self.path)
        except (LmdbFileError, OSError) as error:
            return StoreVerification(0, 0, 0, (str(error),))
        with self._reading() as transaction:
            return self._verify(transaction) if self._tables else StoreVerification(0, 0, 0, ())

    def _verify(self, transaction: Any) -> StoreVerification:
        problems: list[str] = []
        tables = self._tables
        generations = list(self._generations(transaction))
        numbers = [known.number for _, known in generations]
        there = {bytes(key) for key, _ in transaction.cursor(db=tables["generations"])}
        problems += [
            f"generation {digest.hex()}: its entry is damaged, so none of its pipelines is found"
            for digest in there - {digest for digest, _ in generations}
        ]
        problems += [
            f"{numbers.count(each)} generations have the number {each}"
            for each in sorted(set(numbers))
            if numbers.count(each) > 1
        ]
        owners = self._owners(transaction)
        orphans: dict[bytes, int] = {}
        used: dict[bytes, int] = {}
        sizes: dict[bytes, int] = {}
        indexed = set()
        pipelines = 0
        for raw_key, value in transaction.cursor(db=tables["pipelines"]):
            key = bytes(raw_key)
            pipelines += 1
            owner = owners.get(key[: _PREFIX.size])
            if owner is None:
                orphans[key[: _PREFIX.size]] = orphans.get(key[: _PREFIX.size], 0) + 1
                continue
            entry = owner.read(key, value)
            if entry is None:
                problems.append(f"pipeline {key.hex()}: its entry is damaged")
                continue
            indexed.update(_names(key, entry))
            if not _use_in(transaction.get(key, b"", db=tables["use"]))[1]:
                problems.append(f"pipeline {key.hex()}: nothing says when it was used")
            for _, digest, size in entry.binaries:
                used[digest] = used.get(digest, 0) + 1
                sizes[digest] = size
        problems += [
            f"{count} pipelines are of the generation {prefix.hex()}, which is not there"
            for prefix, count in orphans.items()
        ]
        kept = {
            (table, bytes(name))
            for table in ("keys", "identified")
            for name, _ in transaction.cursor(db=tables[table])
        }
        if kept != indexed:
            problems.append(
                f"{len(kept ^ indexed)} pipelines are not found by the driver's key, or wrongly so"
            )
        total = payloads = 0
        for raw_key, data in transaction.cursor(db=tables["payloads"]):
            digest = bytes(raw_key)
            payloads += 1
            total += len(data)
            if content_hash128(data) != digest or len(data) != sizes.get(digest, len(data)):
                problems.append(f"binary {digest.hex()}: its {len(data)} bytes are not what was stored")
            if digest not in used:
                problems.append(f"binary {digest.hex()}: no pipeline uses it")
        for digest, count in used.items():
            found = transaction.get(digest, db=tables["references"])
            told = (0, 0) if found is None else _reference_in(found)
            if told is None:
                problems.append(f"binary {digest.hex()}: the note of its {count} pipelines is damaged")
            elif told[0] != count:
                problems.append(f"binary {digest.hex()}: {count} pipelines use it, {told[0]} are noted")
            if transaction.get(digest, db=tables["payloads"]) is None:
                problems.append(f"binary {digest.hex()}: it is not there")
        references = transaction.stat(db=tables["references"])["entries"]
        if references != len(used):
            problems.append(f"{references} binaries are noted, {len(used)} are used")
        return StoreVerification(pipelines, payloads, total, tuple(problems))

    def pipelines(self, generation: Generation) -> Iterator[StoredPipeline]:
        """All undamaged pipelines of a generation, each valid until the next one is taken.

        Raises:
            StoreError: It cannot be read.
        """
        with self.reading(generation) as reader:
            yield from reader.all()


class StoreReader:
    """A snapshot of one generation, made by `BinaryStore.reading`. Used by one thread."""

    def __init__(
        self, store: BinaryStore, transaction: Any, owner: _Owner | None, *, is_damaged: bool
    ) -> None:
        self._store = store
        self._without = DAMAGED if is_damaged else MISSING
        self._transaction = transaction
        self._owner = owner
        self._proven: dict[bytes, Any] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the generation is stored, or can be found."""
        return self._owner is None

    def find(self, state_key: bytes, driver_key: bytes | None = None) -> tuple[str, StoredPipeline | None]:
        """Look a pipeline up: FOUND and the pipeline, or why there is none.

        Args:
            state_key: The caller's key of its state.
            driver_key: The driver's key; None where it is not known: it cannot change in a generation.
        """
        if self._owner is None:
            return self._without, None
        key = self._owner.prefix + state_key
        raw = self._store._get(self._transaction, "pipelines", key)
        if raw is None:
            return MISSING, None
        entry = self._owner.read(key, raw)
        if entry is None:
            return DAMAGED, None
        if driver_key is not None and driver_key != entry.driver_key:
            return KEY_DIFFERS, None
        binaries = []
        for binary_key, digest, size in entry.binaries:
            data = self._payload(digest, size)
            if data is None:
                return DAMAGED, None
            binaries.append(PipelineBinary(binary_key, data))
        return FOUND, StoredPipeline(
            state_key, entry.driver_key, tuple(binaries), entry.cost_ns, entry.identifiers
        )

    def find_identified(self, identifiers: bytes, driver_key: bytes) -> tuple[str, StoredPipeline | None]:
        """Look a pipeline up whose stages have only module identifiers, so that its state is not known.

        Args:
            identifiers: As in `StoredPipeline.identifiers`.
            driver_key: The driver's key of the pipeline; without one it is never found.

        Returns:
            FOUND and a pipeline with its stored state; COLLIDES where several with different binaries match;
            or why there is none.
        """
        if self._owner is None or not (identifiers and driver_key):
            return MISSING, None
        prefix = _identified_key(self._owner.prefix, driver_key, identifiers, b"")
        outcome, found = MISSING, None
        for name, _ in _from(self._transaction, self._store._tables["identified"], prefix):
            outcome, other = self.find(bytes(name)[len(prefix) :], driver_key)
            if other is None:
                return outcome, None
            if other.identifiers != identifiers:
                return DAMAGED, None  # no hash is over an index
            if found is not None and found.binaries != other.binaries:
                return COLLIDES, None
            found = found or other
        return outcome, found

    def all(self) -> Iterator[StoredPipeline]:
        """All undamaged pipelines, by state key."""
        if self._owner is None:
            return
        for key, _ in _from(self._transaction, self._store._tables["pipelines"], self._owner.prefix):
            _, found = self.find(bytes(key)[4:])
            if found is not None:
                yield found

    def _payload(self, digest: bytes, size: int) -> Any:
        """A payload that its hash proves; None where it is damaged."""
        if (known := self._proven.get(digest)) is not None:
            return known
        data = self._store._get(self._transaction, "payloads", digest)
        if data is None or len(data) != size:
            return None
        if self._store.read_only:
            data = bytes(data)  # without LMDB's lock a writer may reuse the page at any time
        if content_hash128(data) != digest:
            return None
        self._proven[digest] = data
        return data


def store_files(directory: Path) -> tuple[Path, ...]:
    """All files that a store in a directory consists of, or needs."""
    path = directory / STORE_NAME
    beside = (_LOCK_SUFFIX, _USERS_SUFFIX, _COMPACT_SUFFIX)
    return (
        path,
        directory / STAMP_NAME,
        lock_path(path),
        *(path.with_name(path.name + each) for each in beside),
    )


def refusal_of(path: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> str:
    """Why the file of a store would not be opened, or "". Reads only; never raises."""
    try:
        with _told(path):
            return _Opening(path, None, create=False, operations=operations).refuse()
    except StoreError as error:
        return error.reason


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn every error into a StoreError."""
    try:
        yield
    except (SaveError, QuarantineError, ReadError) as error:
        raise StoreError(path, str(error)) from error
    except OSError as error:
        raise StoreError(path, likely_cause(error)) from error
    except lmdb.Error as error:
        raise StoreError(path, f"LMDB cannot open it: {error}") from error


@frozen
class _Opening:
    """Opens or makes a store, under the writer lock of its directory."""

    path: Path
    bound_bytes: int | None
    create: bool
    operations: FileOperations

    @property
    def stamp(self) -> Path:
        return self.path.with_name(STAMP_NAME)

    def open(self) -> BinaryStore:
        if self.create:
            ensure_directory(self.path.parent, self.operations)
        elif status_of(self.path, self.operations) is None and not self.path.is_symlink():
            raise StoreError(self.path, "there is no store of binaries")
        if (reason := distrust_directory(self.path.parent, self.operations)) is not None:
            raise StoreError(self.path, reason)
        if not os.access(self.path.parent, os.W_OK) or (
            self.path.exists() and not os.access(self.path, os.W_OK)
        ):
            return self._open_read_only()
        with writer_lock(self.path, self.operations, wait_s=_OPEN_WAIT_S) as held:
            if not held:
                raise StoreError(self.path, "another process did not finish opening it in time")
            users = self._open_users()
            opening = self
            try:
                set_aside = ""
                # The first process checks the whole file; from then on LMDB keeps it whole for the others.
                if self.operations.try_lock(users):
                    set_aside = self._make_good()
                    self._fit()
                    self._note_file(users)
                    self.operations.unlock(users)
                else:
                    self._require_same(users)
                    # What one with a larger bound writes, the maps of the others would not hold.
                    opening = evolve(self, bound_bytes=None)
                # It succeeds: only a process with the writer lock takes the other, exclusive lock.
                self.operations.try_lock(users, shared=True)
                return opening._opened(set_aside=set_aside, users=users)
            except BaseException:
                close_quietly(users, self.operations)
                raise

    def compact(self) -> int | None:
        """See `BinaryStore.compact`."""
        if not self.path.exists():
            raise StoreError(self.path, "there is no store of binaries")
        with writer_lock(self.path, self.operations, wait_s=_OPEN_WAIT_S) as held:
            users = self._open_users()
            try:
                if not (held and self.operations.try_lock(users)):
                    return None
                self._make_good()
                return self._compact()
            finally:
                close_quietly(users, self.operations)

    def _open_users(self) -> int:
        path = self.path.with_name(f"{self.path.name}{_USERS_SUFFIX}")
        with _told(path):
            return self.operations.open_lock(path)

    @property
    def _file(self) -> bytes:
        """Which file it is, as whoever checked it notes for those who open it meanwhile."""
        try:
            return b"%d %d\n" % self.operations.stat(self.path).file_id
        except FileNotFoundError:
            return b"none\n"

    def _note_file(self, users: int) -> None:
        if self.operations.read(users, _NOTE_CAP) == self._file:
            return  # which a full disk allows
        self.operations.truncate(users)
        os.lseek(users, 0, os.SEEK_SET)
        self.operations.write(users, memoryview(self._file))

    def _require_same(self, users: int) -> None:
        """Refuse a file that nobody checked: others have the one open that was there before."""
        if self.operations.read(users, _NOTE_CAP) != self._file:
            raise StoreError(
                self.path,
                "it was removed or replaced, and another process has it open: end that process first",
            )

    def _fit(self) -> None:
        """Shrink a file that is larger than its bound; no other process has it open."""
        bound = self.bound_bytes
        if bound is not None and self.operations.stat(self.path).size > bound * _MAP_OVER:
            store = self._opened()
            try:
                store.shrink(int(bound * _LOW_WATER))
            finally:
                store._let_go()
            self._compact()

    def _compact(self) -> int:
        """Replace the file by a copy without unused pages; returns the bytes that this freed."""
        before = self.operations.stat(self.path).size
        nonce = read_mark(self.path) or b""
        with self._made_or_gone() as made:
            environment = self._environment(self.bound_bytes or DEFAULT_BOUND, read_only=True)
            try:
                environment.copy(os.fsencode(made), compact=True)
            except lmdb.Error as error:
                raise StoreError(self.path, f"a copy of what is used cannot be written: {error}") from error
            finally:
                environment.close()
            made.chmod(0o600)
            mark_file(made, nonce)
            check_lmdb_file(made)
            self.operations.rename(made, self.path)
        self.operations.sync_directory(self.path.parent)
        return before - self.operations.stat(self.path).size

    @property
    def _compacted(self) -> Path:
        return self.path.with_name(f"{self.path.name}{_COMPACT_SUFFIX}")

    def _make_good(self) -> str:
        """Move a bad file away, and make a store where there is none; returns what was moved, or ""."""
        set_aside = ""
        if self._compacted.exists():  # left by a process that died
            self.operations.unlink(self._compacted)
        if self.path.exists() or self.path.is_symlink():
            reason = self.refuse()
            if reason and not self.create:
                raise StoreError(self.path, f"{reason}; whoever uses it next moves it into the quarantine")
            if reason:
                set_aside = f"{reason}; moved to {quarantine_file(self.path, self.operations)}"
                self._remove_lock()
        if not self.path.exists():
            if not self.create:
                raise StoreError(self.path, "there is no store of binaries")
            self._make()
        return set_aside

    def refuse(self) -> str:
        """Why the existing file must not be opened, or ""."""
        if self.path.is_symlink():
            return "it is a symbolic link"
        status = self.operations.stat(self.path)
        if not status.is_regular:
            return "it is no regular file"
        if (reason := distrust(self.path, status, self.operations)) is not None:
            raise StoreError(self.path, reason)
        nonce = read_mark(self.path)
        if nonce is None:
            return "another program made it, or another version of this one"
        try:
            stamp = read_capped(self.stamp, _STAMP_CAP, self.operations, trusted=True)
        except MissingFileError:
            stamp = b""
        if stamp != _stamp(nonce):
            return "it was not made here: exchange stores by `orchestrator binaries export` and `import`"
        try:
            check_lmdb_file(self.path)
        except LmdbFileError as error:
            return error.reason
        return ""

    @property
    def _lock_of_lmdb(self) -> Path:
        return self.path.with_name(f"{self.path.name}{_LOCK_SUFFIX}")

    def _remove_lock(self) -> None:
        with _told(self._lock_of_lmdb):
            if self._lock_of_lmdb.exists():
                self.operations.unlink(self._lock_of_lmdb)

    def _make(self) -> None:
        self._remove_lock()
        nonce = os.urandom(16)
        with self._made_or_gone() as made:
            # LMDB takes an empty file for a new one, and makes one that the umask may keep from its owner.
            os.close(self.operations.open_lock(made))
            with self._told_of_size(self.bound_bytes or DEFAULT_BOUND) as size:
                lmdb.open(os.fsencode(made), subdir=False, map_size=size, lock=False).close()
            mark_file(made, nonce)
            # The stamp comes first, so that a store never lacks it.
            write_atomically(self.stamp, [_stamp(nonce)], self.operations)
            self.operations.rename(made, self.path)
        self.operations.sync_directory(self.path.parent)

    @contextmanager
    def _made_or_gone(self) -> Iterator[Path]:
        """The file in which a block makes a store, removed if it fails: the disk may be full of it."""
        try:
            yield self._compacted
        except BaseException:
            with suppress(OSError):
                self.operations.unlink(self._compacted)
            raise

    def _environment(self, bound_bytes: int, *, read_only: bool) -> Any:
        if not read_only:
            self._reserve_lock()
        with self._told_of_size(bound_bytes) as size:
            return lmdb.open(
                os.fsencode(self.path),
                subdir=False,
                map_size=size,
                max_dbs=len(_TABLES),
                max_readers=_MOST_READERS,
                mode=0o600,
                readonly=read_only,
                lock=not read_only,
                create=not read_only,
                writemap=False,
                readahead=True,
            )

    @contextmanager
    def _told_of_size(self, bound_bytes: int) -> Iterator[int]:
        """The size of the map for a bound, for a block; LMDB maps all of it at once."""
        try:
            yield _map_size(bound_bytes)
        except (lmdb.Error, OverflowError) as error:
            if isinstance(error, lmdb.Error) and os.strerror(errno.ENOMEM) not in str(error):
                raise
            raise StoreError(
                self.path,
                f"its {bound_bytes} bytes need as much address space, which the system does not give: name "
                "another size with `compile --binaries-disk`",
            ) from error

    def _reserve_lock(self) -> None:
        """Allocate LMDB's lock file on the disk: LMDB maps it, and a full disk would mean SIGBUS."""
        with _told(self._lock_of_lmdb):
            lock = self.operations.open_lock(self._lock_of_lmdb)
            try:
                os.posix_fallocate(lock, 0, _LOCK_BYTES)
            finally:
                os.close(lock)

    def _open_read_only(self) -> BinaryStore:
        why = "its directory or its file may not be written"
        if not self.path.exists():
            raise StoreError(self.path, f"there is no store of binaries, and none can be made: {why}")
        if reason := self.refuse():
            raise StoreError(self.path, reason)
        return self._opened(read_only=why)

    def _opened(self, *, read_only: str = "", set_aside: str = "", users: int | None = None) -> BinaryStore:
        bound = self.bound_bytes or DEFAULT_BOUND
        environment = self._environment(bound, read_only=bool(read_only))
        try:
            tables = {}
            if read_only:
                for name in _TABLES:
                    try:
                        tables[name] = environment.open_db(name.encode(), create=False)
                    except lmdb.NotFoundError:
                        tables = {}  # it was made, but nothing was stored yet
                        break
            else:
                environment.reader_check()
                if self.bound_bytes is None:
                    # A process that is waited for may write beyond our map: take the largest that there was.
                    with self._told_of_size(bound):
                        environment.set_mapsize(0)
                with environment.begin(write=True) as transaction:
                    for name in _TABLES:
                        tables[name] = environment.open_db(name.encode(), txn=transaction)
                    said = _bound_of(transaction, tables)
                    if self.bound_bytes not in (None, said):
                        transaction.put(b"bound", bound.to_bytes(8, "little"), db=tables["about"])
            if self.bound_bytes is None:
                with environment.begin() as transaction:
                    bound = _bound_of(transaction, tables) or bound
                with self._told_of_size(bound) as size:
                    environment.set_mapsize(size)
        except BaseException:
            environment.close()
            raise
        return BinaryStore(
            self.path, bound, read_only, set_aside, environment, tables, users, self.operations
        )


def _map_size(bound_bytes: int) -> int:
    page = 65536
    return int(bound_bytes * _MAP_OVER) // page * page


def _bound_of(transaction: Any, tables: dict[str, Any]) -> int | None:
    """The remembered bound of a store, or None."""
    said = transaction.get(b"bound", db=tables["about"]) if "about" in tables else None
    bound = int.from_bytes(said, "little") if said is not None and len(said) == 8 else 0
    return bound if bound >= LEAST_BOUND else None


def _stamp(nonce: bytes) -> bytes:
    return b"pipeline binaries " + nonce.hex().encode() + b"\n"


def _generation_in(value: Any, digest: bytes) -> _KnownGeneration | None:
    """A generation; None where it is damaged."""
    try:
        return _decode_generation.decode(_proven(value, digest))
    except (ValueError, msgspec.MsgspecError):
        return None


def _use_in(value: Any) -> tuple[float, int]:
    """Worth and time of last use; (0.0, 0) where that is damaged, so that it goes first."""
    worth, used_s = _USE.unpack(value) if len(value) == _USE.size else (0.0, 0)
    return (worth, used_s) if 0 <= worth < float("inf") else (0.0, 0)


def _reference_in(value: Any) -> tuple[int, int] | None:
    """How many pipelines use a payload, and its size; None where that is damaged."""
    if len(value) != _REFERENCE.size:
        return None
    count, size = _REFERENCE.unpack(value)
    return count, size


def _index_key(number: bytes, driver_key: bytes, state_key: bytes) -> bytes:
    return number + bytes([len(driver_key)]) + driver_key + state_key


def _identified_key(number: bytes, driver_key: bytes, identifiers: bytes, state_key: bytes) -> bytes:
    return _index_key(number, driver_key, bytes([len(identifiers)]) + identifiers + state_key)


def _names(key: bytes, entry: _Entry) -> list[tuple[str, bytes]]:
    """Tables and keys of the index entries of a pipeline."""
    number, state = key[:4], key[4:]
    names = [("keys", _index_key(number, entry.driver_key, state))]
    if entry.identifiers and entry.driver_key:
        name = _identified_key(number, entry.driver_key, entry.identifiers, state)
        names.append(("identified", name))
    return names


def _sealed(content: bytes, *names: bytes) -> bytes:
    """Content behind a hash of it and of what it belongs to."""
    return content_hash128(b"".join((*names, content))) + content


def _proven(value: Any, *names: bytes) -> bytes:
    """The content behind its hash; raises ValueError where it is damaged, or belongs to something else."""
    content = bytes(value[_HASH_BYTES:])
    if content_hash128(b"".join((*names, content))) != bytes(value[:_HASH_BYTES]):
        raise ValueError("it is not what was written")
    return content


def _from(transaction: Any, table: Any, prefix: bytes) -> Iterator[tuple[Any, Any]]:
    """Entries of a table whose keys begin with a prefix."""
    with transaction.cursor(db=table) as cursor:
        there = cursor.set_range(prefix)
        while there and bytes(cursor.key()).startswith(prefix):
            yield cursor.item()
            there = cursor.next()
