"""What tests ask about the database of a directory, or do to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from orchestrator.stores.files.atomic_file import ReadError
from orchestrator.stores.state import Kind, State
from tests.drivers import unsupported


def plans(directory: Path) -> int:
    """Number of plans in a directory."""
    try:
        with State.open(directory) as state, state.reading() as sql:
            return int(sql.execute("SELECT count(*) FROM large_value").fetchone()[0])
    except ReadError:
        return 0


def plan_bytes(directory: Path) -> bytes:
    """The one plan in a directory."""
    with State.open(directory) as state, state.reading() as sql:
        ((data,),) = sql.execute("SELECT data FROM large_value").fetchall()
    return bytes(data)


def damage_plan(directory: Path, at: int) -> None:
    """Change a byte of the one plan in a directory; its hash stays."""
    data = bytearray(plan_bytes(directory))
    data[at] ^= 1
    with State.open_to_write(directory) as state, state.writing() as sql:
        sql.execute("UPDATE large_value SET data = ?", (bytes(data),))


def names(directory: Path, kind: Kind[Any]) -> list[str]:
    """The cache files about which there is a value."""
    try:
        with State.open(directory) as state, state.reading() as sql:
            return kind.names(sql)
    except ReadError:
        return []


def damage(directory: Path, kind: Kind[Any]) -> None:
    """Change the first byte of all values of a kind; their hashes stay."""
    with State.open_to_write(directory) as state, state.writing() as sql:
        sql.execute("UPDATE value SET data = x'ff' || substr(data, 2) WHERE kind = ?", (kind.name,))


def forget(directory: Path, kind: Kind[Any]) -> None:
    """Remove all values of a kind."""
    with State.open_to_write(directory) as state, state.writing() as sql:
        sql.execute("DELETE FROM value WHERE kind = ?", (kind.name,))


def lines_on(folder: Path, mount: str, program: str) -> list[str]:
    """What a program prints that gets a folder, after a mount over it."""
    enter = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*enter, mount, "sh", str(folder)], capture_output=True, check=False).returncode:
        unsupported("no file system can be mounted here (unshare --map-root-user --mount)")
    run = [sys.executable, "-c", program, str(folder)]
    command = [*enter, f'{mount} && shift && exec "$@"', "sh", str(folder), *run]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
