"""`State`: the one database of a cache directory, `state.sqlite`, for all that is kept beside cache files.

A value is returned only if the hash that was saved with it proves it: damage gives an error or a missing
value, never a wrong one. A file that is damaged, of another program or of another version is refused by name,
and the next writer puts it aside. What a transaction committed survives the end of the process; a power loss
may undo the last ones, never half of one. Nothing here follows a symbolic link or runs code of a schema.
"""

from __future__ import annotations

import errno
import functools
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar, get_args
from urllib.parse import quote

import msgspec
import numpy as np
from attrs import Factory, define, field, frozen

from orchestrator.stores.files.atomic_file import (
    FileStatus,
    MissingFileError,
    ReadError,
    SaveError,
    UntrustedError,
    close_quietly,
    content_hash128,
    distrust,
    distrust_directory,
    ensure_directory,
    files,
    likely_cause,
    probe_file,
    unwritable,
)
from orchestrator.stores.files.recovery import quarantine_file
from orchestrator.stores.files.writer_lock import lock_path, refused_locks, writer_lock

STATE_NAME: Final = "state.sqlite"
APPLICATION_ID: Final = 0x4F524353  # "ORCS"
SCHEMA_VERSION: Final = 3

_VALUES: Final = (
    "(kind TEXT NOT NULL, name TEXT NOT NULL, cache_file TEXT NOT NULL, used_s INTEGER NOT NULL,"
    " proof BLOB NOT NULL, data BLOB NOT NULL, UNIQUE (kind, name))"
)
SCHEMA: Final = (
    f"CREATE TABLE value {_VALUES}",
    f"CREATE TABLE large_value {_VALUES}",
    # Of `binary_store`, with its indexes:
    "CREATE TABLE binary_pipeline (id INTEGER PRIMARY KEY, generation BLOB NOT NULL, state BLOB NOT NULL,"
    " driver_key BLOB NOT NULL, identifiers BLOB NOT NULL, listing BLOB NOT NULL, proof BLOB NOT NULL,"
    " used_s INTEGER NOT NULL, UNIQUE (generation, state))",
    "CREATE INDEX binary_pipeline_key ON binary_pipeline (generation, driver_key, identifiers)",
    "CREATE TABLE binary_use (pipeline INTEGER NOT NULL, position INTEGER NOT NULL, key BLOB NOT NULL,"
    " payload INTEGER NOT NULL, PRIMARY KEY (pipeline, position)) WITHOUT ROWID",
    "CREATE INDEX binary_use_payload ON binary_use (payload)",
    "CREATE TABLE binary_payload (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, data BLOB NOT NULL)",
)
"""Every statement that makes a new database; a file with any other schema is refused."""

_WAIT_S: Final = 30.0
_CHECKED_WHOLE: Final = 64 << 20
_COMPANIONS: Final = ("-wal", "-shm", "-journal")
_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
# While a file is opened, every other error but these is one of its content too, such as a malformed schema.
_CIRCUMSTANCES: Final = {
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_INTERRUPT),
    *(sqlite3.SQLITE_IOERR, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PERM),
    *(sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_READONLY),
}
_CAUSES: Final = {
    sqlite3.SQLITE_BUSY: "another process did not finish writing in time",
    sqlite3.SQLITE_READONLY: "it may only be read",
    sqlite3.SQLITE_TOOBIG: "a value is larger than SQLite allows",
    sqlite3.SQLITE_NOTADB: "it is damaged: not a database",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
}
_FULL: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)

T = TypeVar("T")

# Files, by device and inode, whose structure this process has checked, and in which it met damage later.
_checked: set[tuple[int, int]] = set()
_damaged: set[tuple[int, int]] = set()


class DamagedStateError(ReadError):
    """The database is damaged, or another program's, or of another version."""


def state_path(directory: Path) -> Path:
    """The database of a cache directory."""
    return directory / STATE_NAME


def state_problem(directory: Path) -> str:
    """Why the database of a directory cannot be read, or not be created, or "". Leaves nothing behind."""
    path = state_path(directory)
    try:
        State.open(directory).close()
    except MissingFileError:
        try:
            with writer_lock(path, wait_s=0, only_if_there=True), probe_file(path) as descriptor:
                return refused_locks(descriptor)
        except SaveError as error:
            return f"{error.step} failed: {error.reason}"
        except OSError as error:
            return likely_cause(error)
    except ReadError as error:
        return error.reason
    return ""


def value_name(cache_file: Path) -> str:
    """The name by which values of a cache file are found: its own, as text that SQLite takes."""
    return cache_file.name.encode(errors="backslashreplace").decode()


@define(eq=False)
class State:
    """An open database; a context manager, which closes it.

    Thread-safe: one block of `reading` or `writing` at a time. It must not be open while its process forks,
    and no other code may open the file in the same process: closing it would free SQLite's locks.
    """

    path: Path  # The file.
    note: str  # What became of a file that could not be used, or "".
    _connection: sqlite3.Connection
    file_id: tuple[int, int]  # Its device and inode.
    _lock: threading.RLock = field(factory=threading.RLock, init=False)

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open the database of a directory to read it. Creates and changes nothing.

        Raises:
            MissingFileError: There is none yet.
            ReadError: It cannot be used; `DamagedStateError` if the next writer will begin a new one.
        """
        path = state_path(directory)
        return cls(path, "", *_opened(path))

    @classmethod
    def open_to_write(cls, directory: Path) -> Self:
        """As `open`, to write too; a missing database is created, and one that is damaged is put aside first.

        Raises:
            SaveError: It cannot be written.
        """
        path = state_path(directory)
        note = ""
        for is_last in (False, False, True):
            try:
                return cls(path, note, *_opened(path, to_write=True))
            except ReadError as error:
                if is_last or not isinstance(error, MissingFileError | DamagedStateError):
                    raise SaveError(path, "opening", error.reason) from _cause_of(error.__cause__ or error)
                if isinstance(error, MissingFileError):
                    _create(path)
                else:
                    note = _put_aside(path, error.reason)
        raise AssertionError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        with self._lock, suppress(sqlite3.Error):
            self._connection.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A block that sees one state of the database, whatever others write meanwhile.

        Raises:
            ReadError: A query failed.
        """
        with self._lock:
            try:
                self._connection.execute("BEGIN")
                yield self._connection
            except sqlite3.Error as error:
                self._note_damage(error)
                raise ReadError(self.path, _reason(error)) from error
            finally:
                self._roll_back()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is committed at the end of the block, or undone by an exception.

        Raises:
            SaveError: It failed, and nothing of it was kept.
        """
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._note_damage(error)
                raise SaveError(self.path, "writing", _reason(error)) from _cause_of(error)
            finally:
                self._roll_back()

    def _note_damage(self, error: sqlite3.Error) -> None:
        # A damaged header may forbid to write, where nothing else does.
        forbids = _code(error) == sqlite3.SQLITE_READONLY and unwritable(self.path) is None
        if forbids or _code(error) in _DAMAGE:
            _damaged.add(self.file_id)  # the next writer puts it aside

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def flush(self) -> None:
        """Move what was committed from the log into the file, as far as no reader needs the log."""
        with self._lock, suppress(sqlite3.Error):  # it is safe in the log, too
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def shrink(self) -> None:
        """Give unused pages back to the file system.

        Raises:
            SaveError: It failed; the values are unchanged.
        """
        with self._lock:
            try:
                # `execute` would end it after one page.
                self._connection.executescript("PRAGMA incremental_vacuum")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.Error as error:
                raise SaveError(self.path, "shrinking", _reason(error)) from _cause_of(error)


def _encode_array(value: object) -> bytes:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    raise NotImplementedError(type(value))


def _decode_array(type_: Any, data: bytes) -> object:
    """An array of one dimension, of the element type that an annotation `npt.NDArray[...]` names."""
    (element,) = get_args(get_args(type_)[1])
    return np.frombuffer(data, element)


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_encode_array)


def encoded(value: object) -> bytes:
    """A value as it is kept: MessagePack, arrays as bytes."""
    return _ENCODER.encode(value)


def decoder_of(type_: type[T]) -> msgspec.msgpack.Decoder[T]:
    """What decodes values of a type, with arrays of one dimension."""
    return msgspec.msgpack.Decoder(type_, dec_hook=_decode_array)


@frozen
class Kind(Generic[T]):
    """A kind of values in the database, each with a name, which is mostly that of a cache file."""

    name: str  # In words, for messages.
    # Type of a value: all that msgspec takes, with arrays of one dimension. Bytes are kept as they are.
    of: type[T]
    cap: int = 4 << 20  # Most bytes of a value.
    is_large: bool = False  # Whether the structure of their table is not checked in a large database.
    _decoder: msgspec.msgpack.Decoder[T] = field(
        init=False, repr=False, default=Factory(lambda self: decoder_of(self.of), takes_self=True)
    )

    @property
    def table(self) -> str:
        """The table that holds them."""
        return "large_value" if self.is_large else "value"

    def read(self, cache_file: Path) -> tuple[T | None, str]:
        """The value of a cache file or None, and why what is there was not used, or "". Never raises.

        The cache file need not exist. Thread-safe.
        """
        try:
            with State.open(cache_file.parent) as state, state.reading() as sql:
                return self.stored(sql, value_name(cache_file))
        except MissingFileError:
            return None, ""
        except ReadError as error:
            return None, str(error)

    def read_all(self, directory: Path) -> list[tuple[str, T | None, str]]:
        """Every value of a directory, by name: its name, the value or None, and why it was not used, or "".

        Raises:
            ReadError: The database cannot be used.
        """
        try:
            with State.open(directory) as state, state.reading() as sql:
                return [(name, *self.stored(sql, name)) for name in self.names(sql)]
        except MissingFileError:
            return []

    def update(self, cache_file: Path, make: Callable[[T | None], T]) -> tuple[T, str]:
        """Replace the value of a cache file; returns it, and why an old one was lost, or "". Thread-safe.

        `make` gets the old value, None where there is none that can be used, and runs inside the
        transaction: what other processes add is not lost.

        Raises:
            SaveError: It could not be written, or is too large; the old value is unchanged.
        """
        name = value_name(cache_file)
        with State.open_to_write(cache_file.parent) as state, state.writing() as sql:
            old, problem = self.stored(sql, name)
            new = make(old)
            self.store(sql, name, new)
        return new, state.note or problem

    def stored(self, sql: sqlite3.Connection, name: str) -> tuple[T | None, str]:
        """As `read`, in a block of `State`, by name."""
        row = sql.execute(
            f"SELECT proof, data FROM {self.table} WHERE kind = ? AND name = ?",  # noqa: S608
            (self.name, name),
        ).fetchone()
        if row is None:
            return None, ""
        proof, data = row
        if not isinstance(data, bytes) or proof != self._proof(name, data):
            return None, "it is damaged: the hash that was saved with it differs"
        if self.of is bytes:
            return data, ""  # type: ignore[return-value]
        try:
            return self._decoder.decode(data), ""
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            return None, str(error)

    def store(self, sql: sqlite3.Connection, name: str, value: T, cache_file: str = "") -> None:
        """Replace a value in a block of `State.writing`; `cache_file` is what it is about, if not its name.

        Raises:
            SaveError: It is too large.
        """
        data = value if isinstance(value, bytes) else encoded(value)
        if len(data) > self.cap:
            reason = f"{self.name}: {len(data)} bytes, more than the {self.cap} that are allowed"
            raise SaveError(Path(STATE_NAME), "checking the size", reason)
        row = self.name, name, cache_file or name, int(time.time()), self._proof(name, data), data
        sql.execute(f"INSERT OR REPLACE INTO {self.table} VALUES (?, ?, ?, ?, ?, ?)", row)  # noqa: S608

    def names(self, sql: sqlite3.Connection) -> list[str]:
        """The names of all values of this kind, in a block of `State`."""
        query = f"SELECT name FROM {self.table} WHERE kind = ? ORDER BY name"  # noqa: S608
        return [str(name) for (name,) in sql.execute(query, (self.name,))]

    def remove(self, sql: sqlite3.Connection, names: Iterable[str]) -> None:
        """Remove values of this kind, in a block of `State.writing`."""
        query = f"DELETE FROM {self.table} WHERE kind = ? AND name = ?"  # noqa: S608
        sql.executemany(query, [(self.name, each) for each in names])

    def _proof(self, name: str, data: bytes) -> bytes:
        return content_hash128(b"".join(map(content_hash128, (self.name.encode(), name.encode(), data))))


# --- opening and creating


def _opened(path: Path, *, to_write: bool = False) -> tuple[sqlite3.Connection, tuple[int, int]]:
    """A connection to a database that is ours and in order, and its device and inode; raises ReadError."""
    status = _trusted(path)
    _require_locks(path)
    try:
        try:
            return _connected(path, "mode=rw", status), status.file_id
        except sqlite3.OperationalError as error:
            # A full or read-only file system refuses the index of a log. An empty log needs none.
            may_help = _code(error) in _CIRCUMSTANCES - {sqlite3.SQLITE_BUSY} and not to_write
            if not may_help or _has_log(path):
                raise
            return _connected(path, "mode=ro&immutable=1", status), status.file_id
    except sqlite3.Error as error:
        damaged = _code(error) not in _CIRCUMSTANCES
        raise (DamagedStateError if damaged else ReadError)(path, _reason(error)) from error
    except UnicodeDecodeError as error:  # in SQLite's message about a malformed schema
        raise DamagedStateError(path, f"it is damaged: {error}") from error


def _require_locks(path: Path) -> None:
    # SQLite takes some refusals for locks of others, and waits. Its own file must not be opened here.
    try:
        descriptor = files().open_existing(lock_path(path))
    except OSError:
        return
    try:
        if reason := refused_locks(descriptor):
            raise ReadError(path, reason)
    finally:
        close_quietly(descriptor)


def _has_log(path: Path) -> bool:
    try:
        return files().stat(path.with_name(path.name + "-wal")).size > 0
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _trusted(path: Path) -> FileStatus:
    try:
        # SQLite follows links. The file itself must not be opened here (see the module).
        status = files().lstat(path)
        if not status.is_regular:
            raise ReadError(path, "it is not a regular file")
        reason = distrust(path, status) or distrust_directory(path.parent)
    except FileNotFoundError as error:
        raise MissingFileError(path, "there is no such file") from error
    except OSError as error:
        raise ReadError(path, likely_cause(error)) from error
    if reason is not None:
        raise UntrustedError(path, reason)
    return status


def _connected(path: Path, how: str, status: FileStatus) -> sqlite3.Connection:
    uri = f"file:{quote(os.fsencode(path.absolute()))}?{how}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
    )
    connection.text_factory = _text
    try:
        # Without the last one, removing a value writes zeros over it, for which a full disk has no room.
        for each in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0", "secure_delete = OFF"):
            connection.execute(f"PRAGMA {each}")
        _prove(path, connection, status)
        is_logged = connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.execute(f"PRAGMA synchronous = {'NORMAL' if is_logged else 'FULL'}")
    except BaseException:
        connection.close()
        raise
    return connection


def _text(stored: bytes) -> str:
    return stored.decode(errors="replace")  # damage is for the hash to find


def _prove(path: Path, connection: sqlite3.Connection, status: FileStatus) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    schema = _schema_of(connection)
    if not schema and not application:
        raise MissingFileError(path, "it is empty")  # its creator was killed
    if application != APPLICATION_ID:
        raise DamagedStateError(path, f"it is another program's database (application_id {application:#x})")
    if version != SCHEMA_VERSION or schema != _expected_schema():
        reason = f"its tables are not those of this version (version {version}, expected {SCHEMA_VERSION})"
        raise DamagedStateError(path, reason)
    if status.file_id in _damaged:
        raise DamagedStateError(path, "it is damaged: it could not be used")
    if status.file_id in _checked:
        return
    what = "(value)" if status.size > _CHECKED_WHOLE else ""
    answer = connection.execute(f"PRAGMA quick_check{what}").fetchone()
    if answer != ("ok",):
        raise DamagedStateError(path, f"it is damaged: {answer[0] if answer else 'no answer'}")
    _checked.add(status.file_id)


def _schema_of(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name").fetchall()


@functools.cache
def _expected_schema() -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        for each in SCHEMA:
            connection.execute(each)
        return _schema_of(connection)


def _create(path: Path) -> None:
    """Create the database, unless another process does; raises SaveError."""
    ensure_directory(path.parent)
    with _locked(path):
        try:
            close_quietly(files().open_new(path))
        except FileExistsError:
            pass  # by another process, or by one that was killed before it had written anything
        except OSError as error:
            raise SaveError(path, "creating", likely_cause(error)) from error
        else:
            _remove_companions(path)
        try:
            _trusted(path)
            _require_locks(path)
            with closing(sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)) as connection:
                _fill(connection)
            files().sync_directory(path.parent)
        except (ReadError, OSError) as error:
            raise SaveError(path, "creating", likely_cause(error)) from error
        except sqlite3.Error as error:
            raise SaveError(path, "creating", _reason(error)) from _cause_of(error)


def _fill(connection: sqlite3.Connection) -> None:
    if _schema_of(connection):
        return
    # The identity is in the file itself before there is a log.
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("BEGIN IMMEDIATE")
    for each in SCHEMA:
        connection.execute(each)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")
    connection.execute("PRAGMA journal_mode = WAL")


def _put_aside(path: Path, reason: str) -> str:
    """Move a damaged database to the quarantine; returns what was done. Raises SaveError."""
    with _locked(path):
        try:
            _opened(path)[0].close()
        except DamagedStateError:
            pass
        except ReadError:
            return ""
        else:
            return ""  # another process has begun a new one
        moved = quarantine_file(path)
        # SQLite notices that the file moved: whoever has it open does not write to the new one.
        _remove_companions(path)
    return f"{path} was moved to {moved}, and a new one begun: {reason}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with writer_lock(path, wait_s=_WAIT_S) as held:
        if not held:
            raise SaveError(path, "locking", "another process did not finish creating it in time")
        yield


def _remove_companions(path: Path) -> None:
    for each in _COMPANIONS:
        try:
            files().unlink(path.with_name(path.name + each))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SaveError(path, f"removing its {each}", likely_cause(error)) from error


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the extended code


def _cause_of(error: BaseException) -> BaseException:
    """What `SaveError.is_out_of_space` knows a full file system by."""
    return OSError(errno.ENOSPC, str(error)) if _is_full(error) else error


def _is_full(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) in _FULL


def _reason(error: sqlite3.Error) -> str:
    cause = "the file system is full" if _is_full(error) else _CAUSES.get(_code(error))
    return f"{cause}: {error}" if cause is not None else str(error)
