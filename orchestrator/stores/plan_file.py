"""Plans in the database: sets in decoded form, so that the next run need not decode them.

This module treats a plan as bytes. It is found by what it was made of and by which rules; each device has its
own, and may try those of others.

Guarantees: a plan is returned only if its hash proves it. Their number and total size are bounded; those that
were not used for longest are removed.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from attrs import evolve, frozen

from orchestrator.stores.files.atomic_file import (
    REAL_FILE_OPERATIONS,
    FileOperations,
    ReadError,
    SaveError,
)
from orchestrator.stores.state import State, proof_of, state_path, value_name

MOST_PLANS: Final = 64
"""Most plans of a directory."""
MOST_BYTES: Final = 1 << 30
"""Most bytes of all plans of a directory."""
_MOST_OF_ONE: Final = 1 << 29
_DAY_S: Final = 86_400
_MOST_FOUND: Final = 8


@frozen
class PlanIdentity:
    """What a plan was made from, in hashes of 16 bytes.

    Attributes:
        content: Of the set's files and of the part that was decoded.
        rules: Of the program, registry and ABI that made it.
        device: Of the device's name.
    """

    content: bytes
    rules: bytes
    device: bytes


def find_plans(
    directory: Path, identity: PlanIdentity, operations: FileOperations = REAL_FILE_OPERATIONS
) -> tuple[PlanIdentity, ...]:
    """Plans of a set: the device's own, else those of others, the newest first. Never raises."""
    with suppress(ReadError), State.open(directory, operations) as state, state.reading() as sql:
        rows = sql.execute(
            "SELECT device FROM plan WHERE content = ? AND rules = ?"
            " ORDER BY device = ? DESC, used_s DESC LIMIT ?",
            (*_key(identity), _MOST_FOUND),
        )
        devices = [device for (device,) in rows if isinstance(device, bytes)]
        found = [evolve(identity, device=each) for each in devices]
        return (identity,) if identity in found else tuple(found)
    return ()


def read_plan(
    directory: Path, identity: PlanIdentity, operations: FileOperations = REAL_FILE_OPERATIONS
) -> tuple[bytes | None, str]:
    """A plan or None, and why one that is there was not used, or "". Never raises. Thread-safe."""
    try:
        with State.open(directory, operations) as state, state.reading() as sql:
            row = _row(sql, "used_s, proof, data", identity)
    except ReadError as error:
        return None, str(error)
    if row is None:
        return None, ""
    used_s, proof, data = row
    if not _is_proven(identity, proof, data):
        return None, "it is damaged: the hash that was saved with it differs"
    if not isinstance(used_s, int) or not 0 <= time.time() - used_s < _DAY_S:
        _mark_used(directory, identity, operations)
    return data, ""


def save_plan(
    cache_file: Path,
    identity: PlanIdentity,
    parts: Sequence[bytes | memoryview],
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> None:
    """Save a plan beside a cache file, in place of one with the same identity. Thread-safe.

    Raises:
        SaveError: It could not be written, or is too large.
    """
    data = b"".join(parts)
    if len(data) > _MOST_OF_ONE:
        path, step = state_path(cache_file.parent), "checking the size of a plan"
        raise SaveError(
            path, step, f"it has {len(data)} bytes, more than the {_MOST_OF_ONE} that are allowed"
        )
    with State.open_to_write(cache_file.parent, operations) as state, state.writing() as sql:
        sql.execute(
            "INSERT OR REPLACE INTO plan"
            " (content, rules, device, used_s, cache_file, proof, data) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                *_key(identity),
                int(time.time()),
                value_name(cache_file),
                _proof(identity, data),
                data,
            ),
        )
        _bound(sql)


def prove_plans(sql: sqlite3.Connection) -> list[str]:
    """What is wrong with each plan, or "", in a block of `State`."""
    found = []
    rows = sql.execute("SELECT content, rules, device, proof, data FROM plan")
    for content, rules, device, proof, data in rows:
        whole = all(isinstance(each, bytes) for each in (content, rules, device))
        identity = PlanIdentity(content, rules, device)
        whole = whole and _is_proven(identity, proof, data)
        found.append("" if whole else "a plan: damaged: the hash that was saved with it differs")
    return found


def _bound(sql: sqlite3.Connection) -> None:
    total = 0
    rows = sql.execute("SELECT rowid, length(data) FROM plan ORDER BY used_s DESC, rowid DESC").fetchall()
    for number, (row, size) in enumerate(rows):
        total += size
        if number and (number >= MOST_PLANS or total > MOST_BYTES):
            sql.execute("DELETE FROM plan WHERE rowid = ?", (row,))


def _mark_used(directory: Path, identity: PlanIdentity, operations: FileOperations) -> None:
    # It may be in a directory that may only be read.
    with suppress(SaveError), State.open_to_write(directory, operations) as state, state.writing() as sql:
        sql.execute(
            "UPDATE plan SET used_s = ? WHERE content = ? AND rules = ? AND device = ?",
            (int(time.time()), *_key(identity)),
        )


def _row(sql: sqlite3.Connection, columns: str, identity: PlanIdentity) -> tuple[Any, ...] | None:
    row: tuple[Any, ...] | None = sql.execute(
        f"SELECT {columns} FROM plan WHERE content = ? AND rules = ? AND device = ?",  # noqa: S608
        _key(identity),
    ).fetchone()
    return row


def _key(identity: PlanIdentity) -> tuple[bytes, bytes, bytes]:
    return identity.content, identity.rules, identity.device


def _is_proven(identity: PlanIdentity, proof: object, content: object) -> bool:
    return isinstance(content, bytes) and proof == _proof(identity, content)


def _proof(identity: PlanIdentity, content: bytes) -> bytes:
    return proof_of(*_key(identity), content)
