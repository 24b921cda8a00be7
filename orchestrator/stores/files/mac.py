"""Keyed MACs: they prove that content comes from somebody who has the team's key file.

A hash beside content only finds accidents, because whoever changes the content can change the hash. A MAC
cannot be made without the key. It is BLAKE2b in its keyed mode (RFC 7693), 32 bytes.

Guarantees: a key never shows in a repr or an error. Two kinds of files never have the same MAC, even with the
same bytes. The time of a comparison does not depend on where two MACs differ.
Limits: everybody who can read the key file can sign, and a MAC does not tell who did. It does not stop anyone
from handing out an old file of the team again. Thread-safe: there is no state.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

from attrs import field, frozen

from orchestrator.errors import shell_text
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
    """A team's secret. To make its file: `head -c 32 /dev/urandom > team.key; chmod 600 team.key`."""

    _secret: bytes = field(repr=False)

    @classmethod
    def read(cls, path: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> Self:
        """Read a key file: 32 to 4096 bytes of any content. Every byte counts.

        Raises:
            MissingFileError: There is no such file.
            UntrustedError: Another user owns it or its directory, may read it, or may write one of them.
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
                path,
                f"others may read the key (mode {permissions:04o}); mend: chmod 600 {shell_text(path)}",
            )
        return cls.of(content)

    @classmethod
    def of(cls, content: bytes) -> Self:
        """The key from the content of a key file.

        Raises:
            ValueError: It is too short to be a secret.
        """
        if len(content) < _LEAST_KEY_BYTES:
            raise ValueError(f"a key of {len(content)} bytes can be guessed; {_LEAST_KEY_BYTES} are needed")
        # A key of BLAKE2b has at most 64 bytes; hashed, all bytes of a longer file count.
        return cls(hashlib.blake2b(content, digest_size=64, person=_DERIVED).digest())

    def sign(self, purpose: str, parts: Iterable[bytes | bytearray | memoryview]) -> bytes:
        """The MAC of content that is given in parts.

        Args:
            purpose: The kind of file, such as "pack": 1 to 16 bytes of ASCII.
            parts: The content. Borders between parts do not count, so a format with several fields must
                include their lengths.

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
        """Whether `mac` is that of this content, by this key and for this purpose."""
        return hmac.compare_digest(mac, self.sign(purpose, parts))
