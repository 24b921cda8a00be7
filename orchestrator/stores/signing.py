"""Keys with which packs and exports are signed (Ed25519, RFC 8032), in files as OpenSSL writes them (PEM).

Who has the private key can sign; who has the public key can check, and not sign. Importing this needs the
library cryptography, of the extra `sign`. Thread-safe.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import attrs
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from orchestrator.errors import OrchestratorError, shell_text
from orchestrator.stores.files.atomic_file import (
    ReadError,
    files,
    read_capped,
    write_atomically,
    write_document,
)

PUBLIC_SUFFIX: Final = ".pub"
_CAP: Final = 4096
_PEM: Final = serialization.Encoding.PEM


class SigningError(OrchestratorError):
    """A key cannot be used or made; `next_step` says what to do."""

    def __init__(self, path: Path, reason: str, next_step: str = "name a file that is not there") -> None:
        super().__init__(f"{path}: {reason}")
        self.next_step = next_step


@attrs.frozen
class PublicKey:
    """Checks signatures."""

    raw: bytes  # 32 bytes

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file of a public key; raises SigningError where it is none, or cannot be read."""
        try:
            key = serialization.load_pem_public_key(_content(path))
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, ed25519.Ed25519PublicKey):
            step = f"name the {PUBLIC_SUFFIX} file that `orchestrator key new` wrote beside the private key"
            raise SigningError(path, "it is no public key (Ed25519, in PEM)", step)
        return cls(key.public_bytes_raw())

    def proves(self, signature: bytes, purpose: str, content: bytes) -> bool:
        """Whether a signature is of this content, by the other key of the pair and for this purpose."""
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, _message(purpose, content))
        except (InvalidSignature, ValueError):
            return False
        return True


@attrs.frozen(eq=False)
class SigningKey:
    """Signs. It shows in no repr and no error."""

    _key: ed25519.Ed25519PrivateKey = attrs.field(repr=False, factory=ed25519.Ed25519PrivateKey.generate)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file of a private key.

        Raises:
            SigningError: It is none, cannot be read, belongs to another user, or others may read or write it.
        """
        content = _content(path, trusted=True)
        if (mode := files().stat(path).permissions) & 0o044:
            step = f"chmod 600 {shell_text(path)}"
            raise SigningError(path, f"others may read the key (mode {mode:04o})", step)
        try:
            key = serialization.load_pem_private_key(content, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            step = "make a pair of keys: orchestrator key new team.key"
            raise SigningError(path, "it is no private key (Ed25519, in PEM without a password)", step)
        return cls(key)

    @property
    def public(self) -> PublicKey:
        """The other key of the pair."""
        return PublicKey(self._key.public_key().public_bytes_raw())

    def sign(self, purpose: str, content: bytes) -> bytes:
        """The signature of content, 64 bytes. Equal bytes for two purposes have different ones."""
        return self._key.sign(_message(purpose, content))

    def write(self, path: Path) -> Path:
        """Write both keys into new files, the private one, mode 0600, at `path`; returns the public one's.

        Raises:
            SigningError: There is something already.
            SaveError: A file cannot be written.
        """
        public = path.with_name(path.name.removesuffix(".key") + PUBLIC_SUFFIX)
        private = self._key.private_bytes(
            _PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        of_both = self._key.public_key().public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        for each in (path, public):
            with suppress(OSError):
                files().lstat(each)
                raise SigningError(each, "there is something already, and no key is replaced")
        write_atomically(path, [private])
        write_document(public, of_both)
        return public


def _message(purpose: str, content: bytes) -> bytes:
    return b"orchestrator " + purpose.encode() + b"\0" + content


def _content(path: Path, *, trusted: bool = False) -> bytes:
    try:
        return read_capped(path, _CAP, trusted=trusted)
    except ReadError as error:
        reason, _, step = error.reason.partition("; mend: ")
        step = step or "check the path; `orchestrator key new team.key` makes a pair of keys"
        raise SigningError(path, reason, step) from None
