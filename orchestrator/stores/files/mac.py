"""Keyed MACs: whether content comes from somebody who has the team's key file.

A hash beside content finds accidents: whoever changes the content changes the hash too. A MAC cannot be made
without the key. It is BLAKE2b in its keyed mode (RFC 7693), 32 bytes, and needs no library of its own.

Guarantees: a key never shows in a repr or an error. Purposes are apart: the MAC of one kind of file is never
that of another, even of the same bytes. Comparing takes the same time wherever two MACs differ.
Assumptions: everybody who may read the key file may also sign; a MAC does not say who of them did. It does
not stop an old file of the team from being given out again. Thread-safe: there is no state.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

from attrs import field, frozen

from orchestrator.stores.files.atomic_file import (
    REAL_FILE_OPERATIONS,
    FileOperations,
    UntrustedError,
    likely_cause,
    read_capped,
)

MAC_SIZE: Final = 32
"""Bytes of a MAC."""

_LEAST_KEY_BYTES: Final = 32
_KEY_FILE_CAP: Final = 4096
_OTHERS_READ: Final = 0o044
_DERIVED: Final = b"mac key"


@frozen
class MacKey:
    """The secret of a team. Make its file with `head -c 32 /dev/urandom > team.key; chmod 600 team.key`."""

    _secret: bytes = field(repr=False)

    @classmethod
    def read(cls, path: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> Self:
        """Read a key file: 32 to 4096 bytes of any content, which counts to its last byte.

        Raises:
            MissingFileError: There is none.
            UntrustedError: Others own it or its directory, or may read it or write one of them.
            ReadError: It is larger than a key file, or cannot be read.
            ValueError: It is too short to be a secret.
        """
        content = read_capped(path, _KEY_FILE_CAP, operations, trusted=True)
        try:
            permissions = operations.stat(path).permissions
        except OSError as error:
            raise UntrustedError(path, likely_cause(error)) from error
        if operations.effective_user() is not None and permissions & _OTHERS_READ:
            raise UntrustedError(
                path, f"others may read the key (mode {permissions:04o}); mend: chmod 600 {path}"
            )
        return cls.of(content)

    @classmethod
    def of(cls, content: bytes) -> Self:
        """The key that the content of a key file is.

        Raises:
            ValueError: It is too short to be a secret.
        """
        if len(content) < _LEAST_KEY_BYTES:
            raise ValueError(
                f"a key file of {len(content)} bytes, fewer than {_LEAST_KEY_BYTES}, can be guessed: make "
                "one with `head -c 32 /dev/urandom`"
            )
        # A key of BLAKE2b has 64 bytes at most; this way each byte of a longer file counts.
        return cls(hashlib.blake2b(content, digest_size=64, person=_DERIVED).digest())

    def sign(self, purpose: str, parts: Iterable[bytes | bytearray | memoryview]) -> bytes:
        """The MAC of content, given in parts that are taken as one.

        Args:
            purpose: What kind of file this is, such as "pack": 1 to 16 bytes of ASCII.
            parts: The content. Where it ends inside of them is not part of it: a format with several fields
                gives their lengths too.

        Raises:
            ValueError: The purpose is empty or too long.
        """
        person = purpose.encode("ascii")
        if not 1 <= len(person) <= hashlib.blake2b.PERSON_SIZE:
            raise ValueError(f"purpose {purpose!r}: 1 to {hashlib.blake2b.PERSON_SIZE} bytes are expected")
        made = hashlib.blake2b(digest_size=MAC_SIZE, key=self._secret, person=person)
        for part in parts:
            made.update(part)
        return made.digest()

    def proves(self, mac: bytes, purpose: str, parts: Iterable[bytes | bytearray | memoryview]) -> bool:
        """Whether content was signed with this key for this purpose."""
        return hmac.compare_digest(mac, self.sign(purpose, parts))
