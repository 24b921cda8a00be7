"""`BinaryStore`: pipeline binaries of all devices, in the database of a cache directory (`state`).

Every pipeline and every binary is proven by a hash before it is returned. The hash of a pipeline covers its
generation, its keys and its binaries, so no damage gives a device what is another's. What is damaged is a
miss, and storing it again mends it. Once `put` has returned, its pipelines survive the end of any process.
Beyond the bound, which the database remembers, what was used least recently is removed.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from attrs import define, field
from msgspec.structs import replace

from orchestrator.devices.binary_data import MOST_KEY_BYTES, PipelineBinary
from orchestrator.devices.device import DeviceIdentity
from orchestrator.stores.files.atomic_file import (
    MissingFileError,
    ReadError,
    SaveError,
    content_hash128,
    status_of,
)
from orchestrator.stores.profile_file import ProfileIdentity
from orchestrator.stores.state import Kind, State, state_path

DEFAULT_BOUND: Final = 512 << 20
"""Default bound of a store, bytes."""

LEAST_BOUND: Final = 4 << 20

FOUND, MISSING, DAMAGED = "found", "missing", "damaged"
"""Outcomes of a look-up."""

COLLIDES = "collides"
"""Several pipelines with different binaries match, so none of them is returned."""

_BOUND: Final = Kind("bound of binaries", int)
_BOUND_OF: Final = "bound"
_HIGH_WATER: Final = 0.95  # shares of the bound
_LOW_WATER: Final = 0.85
_A_COMMIT: Final = 0.04
_MOST_A_COMMIT: Final = 16 << 20
_FLUSHED: Final = 128 << 10
_EVICTED_AT_ONCE: Final = 16  # one of so many
_ENTRY_BYTES: Final = 512  # of a pipeline besides its payloads, about
_GRAIN_S: Final = 3600
_AT_ONCE: Final = 512  # pipelines or binaries of one query
_MOST_STATE_BYTES: Final = 64


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """A device and a global key (vkGetPipelineKeyKHR without a create info); keys hold only within it.

    Names are for people; `compressed` says whether the driver compresses its binaries itself.
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
        return _hash(self.identity, self.global_key)


class StoredPipeline(msgspec.Struct, frozen=True):
    """A pipeline in the store, or to be stored.

    Drivers may give one key to different pipelines (NVIDIA 580.159, ray tracing) or to different binaries
    (RADV 25.0.7, ray tracing). So a pipeline is found by the caller's own key of its state.
    """

    state_key: bytes  # the caller's own key of its state, 1 to 64 bytes
    driver_key: bytes  # the driver's key, at most 32 bytes; empty where it gave none
    binaries: tuple[PipelineBinary, ...]  # its binaries in the driver's order
    # names the shader modules of its stages for look-ups without the modules, at most 32 bytes; empty where
    # it can only be found by its state
    identifiers: bytes = b""

    @property
    def size(self) -> int:
        """Bytes of its binaries."""
        return sum(len(each.data) for each in self.binaries)

    def check(self) -> None:
        """Raise ValueError if it cannot be stored: by a key's size, or for want of binaries."""
        if not 1 <= len(self.state_key) <= _MOST_STATE_BYTES:
            raise ValueError(f"a state key has 1 to {_MOST_STATE_BYTES} bytes, not {len(self.state_key)}")
        keys = (self.driver_key, self.identifiers, *(each.key for each in self.binaries))
        if max(map(len, keys)) > MOST_KEY_BYTES or not self.binaries:
            raise ValueError(f"a pipeline has binaries, and keys of at most {MOST_KEY_BYTES} bytes")


class PutReport(msgspec.Struct, frozen=True):
    """The result of storing pipelines; reports add up."""

    # pipelines that are stored now, of which `known` were stored before with the same binaries
    pipelines: int = 0
    known: int = 0
    collisions: int = 0  # pipelines whose driver's key another state with other binaries has
    shared_keys: int = 0  # pipelines whose driver's key another state with the same binaries has
    too_large: int = 0  # pipelines that were not stored, because one would take too much of the bound
    captured_bytes: int = 0  # size of all given binaries; `stored_bytes` is that of the new ones
    stored_bytes: int = 0
    evicted: int = 0  # pipelines that were removed to make room

    def __add__(self, other: PutReport) -> PutReport:
        """Both together."""
        return PutReport(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))

    @property
    def lost(self) -> str:
        """What is not in the store for want of room, and what to do, in words; or ""."""
        made_room, too_large = "removed again, or from before, to make room", "too large for the store"
        counts = {made_room: self.evicted, too_large: self.too_large}
        said = ", ".join(f"{count:,} {why}" for why, count in counts.items() if count)
        step = "`orchestrator compile --binaries-disk` allows the store more"
        return f"not all pipelines fit: {said}; {step}" if said else ""


class GenerationStat(msgspec.Struct, frozen=True, kw_only=True):
    """What a store holds of one generation; `binaries` and their `bytes` count for every use."""

    about: Generation
    pipelines: int
    binaries: int
    bytes: int
    payload_bytes: int  # of different binaries
    shared_driver_keys: int  # that several states share
    used_s: int  # when a pipeline was last stored or used, seconds since 1970


class StoreStat(msgspec.Struct, frozen=True, kw_only=True):
    """What a store holds; `payloads` are different binaries, `used_bytes` is what the bound bounds."""

    generations: tuple[GenerationStat, ...]
    payloads: int
    payload_bytes: int
    used_bytes: int
    unused_bytes: int  # of pages in the file
    file_bytes: int
    bound_bytes: int


_GENERATIONS: Final = Kind("generations of binaries", Generation)
OWN_KINDS: Final = frozenset({_BOUND.name, _GENERATIONS.name})
"""Kinds of values that belong to the store."""


def _hash(*parts: object) -> bytes:
    return content_hash128(msgspec.msgpack.encode(parts))


@define(eq=False)
class BinaryStore:
    """An open store, made by `BinaryStore.open`; a context manager, which closes it.

    Thread-safe; it must not be open while its process forks. Every method raises ReadError where the database
    cannot be read, and SaveError where it cannot be written.
    """

    path: Path  # the database
    bound_bytes: int  # bound on the used bytes
    read_only: str  # why nothing can be written, or ""
    set_aside: str  # what became of a database that could not be used, or ""
    _state: State = field(repr=False)

    @classmethod
    def open(cls, directory: Path, *, bound_bytes: int | None = None, create: bool = True) -> Self:
        """Open the store of a directory.

        `bound_bytes` is the new bound; None is for the remembered one, or else `DEFAULT_BOUND`. A larger
        store loses what was used least recently. `create` makes a database where there is none, or in place
        of one that cannot be used.

        Raises:
            ReadError: There is no usable database, and `create` is false.
            SaveError: Others may write it; the disk is full.
            ValueError: The bound is below `LEAST_BOUND`.
        """
        if bound_bytes is not None and bound_bytes < LEAST_BOUND:
            raise ValueError(f"a store of {bound_bytes} bytes: {LEAST_BOUND} is the least")
        directory = Path(os.path.realpath(directory))
        path, read_only = state_path(directory), ""
        try:
            state = State.open_to_write(directory) if create else State.open(directory)
        except SaveError as error:
            try:
                state, read_only = State.open(directory), error.reason
            except ReadError:
                raise error from None
        except MissingFileError:
            raise MissingFileError(path, "there is no store of binaries") from None
        if not os.access(path, os.W_OK) or not os.access(directory, os.W_OK):
            read_only = read_only or "its directory or its file may not be written"
        store = cls(path, DEFAULT_BOUND, read_only, state.note, state)
        try:
            with state.reading() as sql:
                store.bound_bytes = _BOUND.stored(sql, _BOUND_OF)[0] or DEFAULT_BOUND
            if bound_bytes not in (None, store.bound_bytes) and not read_only:
                store._set_bound(bound_bytes or DEFAULT_BOUND)
        except BaseException:
            store.close()
            raise
        return store

    def _set_bound(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        with self._writing() as sql:
            _BOUND.store(sql, _BOUND_OF, bound_bytes)
        if self.shrink(int(bound_bytes * _HIGH_WATER)):
            self._state.shrink()

    def compact(self) -> int:
        """Return unused pages to the disk; returns how many bytes."""
        before = _size_of(self.path)
        self._state.shrink()
        return before - _size_of(self.path)

    def close(self) -> None:
        """Close it. The caller uses nothing of it any more."""
        self._state.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_there(self) -> bool:
        """Whether its path still names the file that it writes: a removed file takes all that is stored."""
        with suppress(OSError):
            there = status_of(self.path)
            return there is not None and there.file_id == self._state.file_id
        return False

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        if self.read_only:
            raise SaveError(self.path, "writing", f"it can only be read: {self.read_only}")
        with self._state.writing() as sql:
            yield sql

    # --- reading

    def has(self, generation: Generation) -> bool:
        """Whether anything of a generation is stored."""
        with self._state.reading() as sql:
            return not StoreReader(sql, generation.digest).is_empty

    @contextmanager
    def reading(self, generation: Generation) -> Iterator[StoreReader]:
        """Look pipelines up in one state of the store."""
        with self._state.reading() as sql:
            yield StoreReader(sql, generation.digest)

    def pipelines(self, generation: Generation) -> Iterator[StoredPipeline]:
        """All undamaged pipelines of a generation."""
        with self.reading(generation) as reader:
            yield from (found for _, found in reader.all() if found is not None)

    # --- writing

    def put(self, generation: Generation, pipelines: Sequence[StoredPipeline]) -> PutReport:
        """Store pipelines, in as few commits as the bound allows; kept when this returns.

        A pipeline of the same state is replaced. What was used least recently is removed where room is
        needed; where the disk is full, half of the store, and then it is tried once more.

        Raises:
            SaveError: It cannot be written. Earlier commits stay.
            ValueError: As `StoredPipeline.check`.
        """
        report, batch, size = PutReport(), [], 0
        for each in pipelines:
            each.check()
            if each.size + _ENTRY_BYTES > self.bound_bytes // 4:
                report += PutReport(too_large=1, captured_bytes=each.size)
                continue
            batch.append(each)
            size += each.size + _ENTRY_BYTES
            if size > min(_MOST_A_COMMIT, int(self.bound_bytes * _A_COMMIT)):
                report += self._put(generation, batch, size)
                batch, size = [], 0
        return report + self._put(generation, batch, size) if batch else report

    def _put(self, generation: Generation, batch: Sequence[StoredPipeline], size: int) -> PutReport:
        try:
            return self._put_once(generation, batch, size)
        except SaveError as error:
            if not error.is_out_of_space:
                raise
            try:
                self._state.shrink()  # the log of earlier commits takes room, too
                with self._state.reading() as sql:
                    half = _used_bytes(sql) // 2
                evicted = self.shrink(half)
                self._state.shrink()
            except (SaveError, ReadError):
                raise error from None
            return self._put_once(generation, batch, size) + PutReport(evicted=evicted)

    def _put_once(self, generation: Generation, batch: Sequence[StoredPipeline], size: int) -> PutReport:
        with self._writing() as sql:
            self._require_room(sql, size)
            evicted = 0
            if _used_bytes(sql) + size > self.bound_bytes * _HIGH_WATER:
                evicted = _evict(sql, max(0, int(self.bound_bytes * _LOW_WATER) - size))
            name, now = generation.digest.hex(), int(time.time())
            if _GENERATIONS.stored(sql, name)[0] is None:
                _GENERATIONS.store(sql, name, generation)
            done = (_put_one(sql, generation.digest, each, now) for each in batch)
            report = sum(done, PutReport(evicted=evicted))
        if size >= _FLUSHED:
            self._state.flush()  # a long log could not be emptied on a full disk
        return report

    def _require_room(self, sql: sqlite3.Connection, size: int) -> None:
        """Raise SaveError where the log has room, and the file has none: that could not be emptied."""
        system = os.statvfs(self.path.parent)
        unused = _pragma(sql, "freelist_count") * _pragma(sql, "page_size")
        log = _size_of(self.path) - self.path.stat().st_size
        if system.f_bavail * system.f_frsize < max(0, size - log) + max(0, size - unused):
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise SaveError(self.path, "writing", "the file system is full") from full

    def touch(self, generation: Generation, state_keys: Iterable[bytes]) -> int:
        """Note that pipelines were used, unless that was noted within the hour; returns of how many."""
        now = int(time.time())
        with self._writing() as sql:
            return sql.executemany(
                "UPDATE binary_pipeline SET used_s = ? WHERE generation = ? AND state = ?"
                " AND NOT used_s BETWEEN ? AND ?",  # a time to come is of a clock that went wrong
                ((now, generation.digest, each, now - _GRAIN_S + 1, now) for each in state_keys),
            ).rowcount

    def shrink(self, most_bytes: int) -> int:
        """Remove what was used least recently until at most so many bytes are used; returns of how many."""
        with self._state.reading() as sql:
            if _used_bytes(sql) <= most_bytes:
                return 0
        with self._writing() as sql:
            return _evict(sql, most_bytes)

    def prune(self, gone: Collection[Generation]) -> None:
        """Remove generations, and what is damaged."""
        with self._state.reading() as sql:  # which nobody else need wait for
            kept = _known(sql).keys() - {each.digest for each in gone}
            damaged = [(each,) for digest in kept for each in _damaged(sql, digest)]
            digests = set(_column(sql, "SELECT DISTINCT generation FROM binary_pipeline")) - kept
            names = set(_GENERATIONS.names(sql)) - {digest.hex() for digest in kept}
        with self._writing() as sql:
            sql.executemany("DELETE FROM binary_pipeline WHERE generation = ?", [(each,) for each in digests])
            _GENERATIONS.remove(sql, names)
            sql.executemany(_DROP, damaged)
            _remove_orphans(sql)

    # --- figures

    def statistics(self) -> StoreStat:
        """What it holds."""
        with self._state.reading() as sql:
            payloads = "SELECT count(*), total(length(data)) FROM binary_payload"
            count, size = sql.execute(payloads).fetchone()
            found = [_stat_of(sql, about) for about in _known(sql).values()]
            used, unused = _used_bytes(sql), _pragma(sql, "freelist_count") * _pragma(sql, "page_size")
        return StoreStat(
            generations=tuple(each for each in found if each.pipelines),
            payloads=count,
            payload_bytes=int(size),
            used_bytes=used,
            unused_bytes=unused,
            file_bytes=_size_of(self.path),
            bound_bytes=self.bound_bytes,
        )

    def verify(self) -> list[str]:
        """What is wrong in structure, hashes, references. Other processes may use the store meanwhile."""
        with self._state.reading() as sql:
            problems = [said for said in _column(sql, "PRAGMA integrity_check") if said != "ok"]
            for name in _GENERATIONS.names(sql):
                _, problem = _GENERATIONS.stored(sql, name)
                problems += [f"generation {name}: {problem}"] * bool(problem)
            for digest in _column(sql, "SELECT DISTINCT generation FROM binary_pipeline"):
                damaged = _damaged(sql, digest)
                problems += [f"pipeline {each}: it is damaged, so it is not found" for each in damaged]
            for what, table, condition in _ORPHANS:
                (count,) = sql.execute(f"SELECT count(*) FROM {table} WHERE {condition}").fetchone()
                problems += [f"{count} {what}"] * bool(count)
            problems += [
                f"binary {name.hex()}: its {len(data)} bytes are not what was stored"
                for name, data in sql.execute("SELECT hash, data FROM binary_payload")
                if not _proves(name, data)
            ]
        return problems


_ORPHANS: Final = (
    ("uses of binaries are of no pipeline", "binary_use", "pipeline NOT IN (SELECT id FROM binary_pipeline)"),
    ("binaries are used by no pipeline", "binary_payload", "id NOT IN (SELECT payload FROM binary_use)"),
)
"""What nothing refers to: in words, its table, and the condition."""

_DROP: Final = "DELETE FROM binary_pipeline WHERE id = ?"


class StoreReader:
    """One state of one generation, made by `BinaryStore.reading`. Used by one thread.

    Equal binaries are one object.
    """

    def __init__(self, sql: sqlite3.Connection, digest: bytes) -> None:
        self._sql = sql
        self._digest = digest
        self._data: dict[int, bytes | None] = {}  # by id; None where it is damaged

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the generation is stored."""
        query = "SELECT EXISTS (SELECT 1 FROM binary_pipeline WHERE generation = ?)"
        return _column(self._sql, query, (self._digest,)) == [0]

    def find_all(self, state_keys: Sequence[bytes]) -> Iterator[tuple[bytes, str, StoredPipeline | None]]:
        """Look pipelines up, some at a time: state key, outcome and pipeline of each."""
        for start in range(0, len(state_keys), _AT_ONCE):
            some = state_keys[start : start + _AT_ONCE]
            condition = f"p.state IN ({','.join('?' * len(some))})"
            found = {each[1]: each for each in self._entries(condition, some)}
            self._read_data(each for entry in found.values() for each in entry[-1])
            for state in some:
                if state in found:
                    yield state, *self._pipeline(found[state])
                else:
                    yield state, MISSING, None

    def find_identified(self, identifiers: bytes, driver_key: bytes) -> tuple[str, StoredPipeline | None]:
        """Look a pipeline up of which only the driver's key and the identifiers of its modules are known.

        Returns:
            FOUND and a pipeline with its stored state; COLLIDES where several with different binaries match;
            or why there is none.
        """
        if not (identifiers and driver_key):
            return MISSING, None
        query = (
            "SELECT state FROM binary_pipeline WHERE generation = ? AND driver_key = ? AND identifiers = ?"
        )
        states = _column(self._sql, query, (self._digest, driver_key, identifiers))
        outcome, found = MISSING, None
        for _, outcome, other in self.find_all(states):
            if other is None:
                return outcome, None
            if (other.driver_key, other.identifiers) != (driver_key, identifiers):
                return DAMAGED, None
            if found is not None and found.binaries != other.binaries:
                return COLLIDES, None
            found = found or other
        return outcome, found

    def all(self) -> Iterator[tuple[int, StoredPipeline | None]]:
        """All pipelines by number; None where one is damaged. No binary is kept."""
        for entry in self._entries("1", ()):
            self._data.clear()
            self._read_data(entry[-1])
            yield entry[0], self._pipeline(entry)[1]

    def _entries(self, condition: str, values: Sequence[object]) -> Iterator[tuple[Any, ...]]:
        """Number, state, keys, proof, and the uses (key, payload, hash), of pipelines; nothing is proven."""
        query = (
            "SELECT p.id, p.state, p.driver_key, p.identifiers, p.proof, u.key, u.payload, b.hash"
            " FROM binary_pipeline p LEFT JOIN binary_use u ON u.pipeline = p.id"
            " LEFT JOIN binary_payload b ON b.id = u.payload"
            f" WHERE p.generation = ? AND {condition} ORDER BY p.id, u.position"
        )
        rows = self._sql.execute(query, (self._digest, *values))
        for entry, uses in groupby(rows, key=lambda row: row[:5]):
            yield *entry, [row[5:] for row in uses]

    def _read_data(self, uses: Iterable[tuple[bytes, int, bytes]]) -> None:
        names = {payload: name for _, payload, name in uses if payload not in self._data}
        numbers = [*names]
        for start in range(0, len(numbers), _AT_ONCE):
            some = numbers[start : start + _AT_ONCE]
            query = f"SELECT id, data FROM binary_payload WHERE id IN ({','.join('?' * len(some))})"
            for number, data in self._sql.execute(query, some):
                self._data[number] = data if _proves(names.get(number), data) else None

    def _pipeline(self, entry: tuple[Any, ...]) -> tuple[str, StoredPipeline | None]:
        _, state, driver_key, identifiers, proof, uses = entry
        listed = [(key, name) for key, _, name in uses]
        binaries = [(key, self._data.get(payload)) for key, payload, _ in uses]
        made = tuple(PipelineBinary(key, data) for key, data in binaries if data is not None)
        is_proven = proof == _hash(self._digest, state, driver_key, identifiers, _hash(listed))
        if not is_proven or len(made) < len(binaries):
            return DAMAGED, None
        return FOUND, StoredPipeline(state, driver_key, made, identifiers)


def _damaged(sql: sqlite3.Connection, digest: bytes) -> list[int]:
    """The numbers of the damaged pipelines of a generation."""
    return [each for each, found in StoreReader(sql, digest).all() if found is None]


def _put_one(sql: sqlite3.Connection, digest: bytes, pipeline: StoredPipeline, now_s: int) -> PutReport:
    """Store a pipeline of a generation, or note its use, within a transaction."""
    keys = (pipeline.state_key, pipeline.driver_key, pipeline.identifiers)
    uses, listed, stored = [], [], 0
    for position, binary in enumerate(pipeline.binaries):
        name = content_hash128(binary.data)
        payload, written = _put_payload(sql, name, bytes(binary.data))
        stored += written
        uses.append((position, binary.key, payload))
        listed.append((binary.key, name))
    listing = _hash(listed)
    proof = _hash(digest, *keys, listing)
    report = PutReport(pipelines=1, captured_bytes=pipeline.size, stored_bytes=stored)
    query = (
        "SELECT id, state, driver_key, identifiers, proof FROM binary_pipeline"
        " WHERE generation = ? AND state = ?"
    )
    before: list[tuple[int, bytes, int]] = []
    for number, *found in sql.execute(query, (digest, pipeline.state_key)).fetchall():
        query = "SELECT position, key, payload FROM binary_use WHERE pipeline = ? ORDER BY position"
        before = sql.execute(query, (number,)).fetchall()
        if found == [*keys, proof] and before == uses:
            sql.execute("UPDATE binary_pipeline SET used_s = ? WHERE id = ?", (now_s, number))
            return replace(report, known=1)
        sql.execute(_DROP, (number,))
        sql.execute("DELETE FROM binary_use WHERE pipeline = ?", (number,))
    columns = "generation, state, driver_key, identifiers, listing, proof, used_s"
    insert = f"INSERT INTO binary_pipeline ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)"
    number = sql.execute(insert, (digest, *keys, listing, proof, now_s)).lastrowid
    sql.executemany("INSERT INTO binary_use VALUES (?, ?, ?, ?)", [(number, *each) for each in uses])
    sql.executemany(
        "DELETE FROM binary_payload WHERE id = ? AND id NOT IN (SELECT payload FROM binary_use)",
        [(payload,) for *_, payload in before],
    )
    differs = None  # from another state with the driver's key
    if pipeline.driver_key:
        query = (
            "SELECT max(listing != ?) FROM binary_pipeline"
            " WHERE generation = ? AND driver_key = ? AND state != ?"
        )
        values = (listing, digest, pipeline.driver_key, pipeline.state_key)
        (differs,) = sql.execute(query, values).fetchone()
    return replace(report, collisions=int(differs == 1), shared_keys=int(differs == 0))


def _put_payload(sql: sqlite3.Connection, name: bytes, data: bytes) -> tuple[int, int]:
    """The number of a binary that is stored, and the bytes that were written; a damaged one is mended."""
    query = "SELECT id, data = ? FROM binary_payload WHERE hash = ?"
    number, is_whole = sql.execute(query, (data, name)).fetchone() or (0, False)
    if is_whole:
        return number, 0
    made = sql.execute(
        "INSERT INTO binary_payload (hash, data) VALUES (?, ?)"
        " ON CONFLICT (hash) DO UPDATE SET data = excluded.data RETURNING id",
        (name, data),
    )
    return made.fetchone()[0], len(data)


def _column(sql: sqlite3.Connection, query: str, values: Sequence[object] = ()) -> list[Any]:
    return [value for (value,) in sql.execute(query, values)]


def _known(sql: sqlite3.Connection) -> dict[bytes, Generation]:
    """All generations that are not damaged, by digest."""
    found = (_GENERATIONS.stored(sql, name)[0] for name in _GENERATIONS.names(sql))
    return {each.digest: each for each in found if each is not None}


def _stat_of(sql: sqlite3.Connection, about: Generation) -> GenerationStat:
    digest = (about.digest,)
    query = "SELECT count(*), coalesce(max(used_s), 0) FROM binary_pipeline WHERE generation = ?"
    pipelines, used_s = sql.execute(query, digest).fetchone()
    query = (
        "SELECT count(*), total(length(data)) FROM binary_pipeline p"
        " JOIN binary_use ON pipeline = p.id JOIN binary_payload b ON b.id = payload WHERE generation = ?"
    )
    binaries, size = sql.execute(query, digest).fetchone()
    query = (
        "SELECT total(length(data)) FROM binary_payload WHERE id IN (SELECT payload FROM binary_pipeline"
        " JOIN binary_use ON pipeline = id WHERE generation = ?)"
    )
    (payload_bytes,) = sql.execute(query, digest).fetchone()
    query = (
        "SELECT count(*) FROM (SELECT 1 FROM binary_pipeline WHERE generation = ? AND driver_key != x''"
        " GROUP BY driver_key HAVING count(*) > 1)"
    )
    (shared,) = sql.execute(query, digest).fetchone()
    return GenerationStat(
        about=about,
        pipelines=pipelines,
        binaries=binaries,
        bytes=int(size),
        payload_bytes=int(payload_bytes),
        shared_driver_keys=shared,
        used_s=used_s,
    )


def _pragma(sql: sqlite3.Connection, name: str) -> int:
    return int(sql.execute(f"PRAGMA {name}").fetchone()[0])


def _used_bytes(sql: sqlite3.Connection) -> int:
    """Size of the database without unused pages and without what is no binary."""
    pages = _pragma(sql, "page_count") - _pragma(sql, "freelist_count")
    others = "SELECT (SELECT total(length(data)) FROM value) + (SELECT total(length(data)) FROM large_value)"
    return max(0, pages * _pragma(sql, "page_size") - int(sql.execute(others).fetchone()[0]))


def _evict(sql: sqlite3.Connection, most_bytes: int) -> int:
    evicted = 0
    while _used_bytes(sql) > most_bytes:
        (count,) = sql.execute("SELECT count(*) FROM binary_pipeline").fetchone()
        query = "SELECT id FROM binary_pipeline ORDER BY used_s, id LIMIT ?"
        oldest = _column(sql, query, (-(-count // _EVICTED_AT_ONCE),))
        if not oldest:
            break
        sql.executemany(_DROP, [(each,) for each in oldest])
        _remove_orphans(sql)
        evicted += len(oldest)
    return evicted


def _remove_orphans(sql: sqlite3.Connection) -> None:
    for _, table, condition in _ORPHANS:
        sql.execute(f"DELETE FROM {table} WHERE {condition}")


def _proves(name: object, data: object) -> bool:
    return isinstance(data, bytes) and content_hash128(data) == name


def _size_of(path: Path) -> int:
    """Of a database with its log."""
    log = path.with_name(f"{path.name}-wal")
    return path.stat().st_size + (log.stat().st_size if log.exists() else 0)
