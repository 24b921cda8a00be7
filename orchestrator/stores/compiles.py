"""What was compiled into a cache directory, so that it can be compiled again for another driver."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import msgspec

from orchestrator.stores.files.atomic_file import ReadError, content_hash128
from orchestrator.stores.state import Kind


class RememberedCompile(msgspec.Struct, frozen=True):
    """A compile: a set, for a device, with options."""

    paths: tuple[bytes, ...]  # Of the set's archives, absolute; bytes, as file systems have them.
    selector: str
    options: bytes  # Encoded options, without limits of time.
    cache_file: str  # The name of the cache file of the device and driver that it was last done for.
    pack: bytes = b""  # The pack that it is for, absolute; none where the cache directory keeps it.

    @classmethod
    def of(
        cls, paths: Iterable[str], selector: str, options: bytes, cache_file: str, pack: Path | None
    ) -> Self:
        """A compile of archives for a pack or none; all paths are absolute."""
        of_pack = b"" if pack is None else os.fsencode(pack)
        return cls(tuple(map(os.fsencode, paths)), selector, options, cache_file, of_pack)

    @property
    def set_paths(self) -> tuple[str, ...]:
        """The paths of the set's archives."""
        return tuple(map(os.fsdecode, self.paths))


COMPILES: Final = Kind("compiles", RememberedCompile)


def remember_compile(directory: Path, done: RememberedCompile) -> None:
    """Keep a compile in the database of a directory, in place of the same one for another driver.

    Raises:
        SaveError: As `Kind.update`.
    """
    what = msgspec.msgpack.encode((done.paths, done.selector, done.options, done.pack))
    row = directory / content_hash128(what).hex()
    if COMPILES.read(row)[0] != done:
        COMPILES.update(row, lambda _: done)


def remembered_compiles(directory: Path) -> list[RememberedCompile]:
    """All compiles that a directory remembers, by their paths. Never raises; damaged ones are left out."""
    found: list[RememberedCompile] = []
    with suppress(ReadError):
        found = [done for _, done, _ in COMPILES.read_all(directory) if done is not None]
    return sorted(found, key=lambda each: (each.paths, each.selector, each.options))
