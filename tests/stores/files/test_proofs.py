"""Hashes of content, and keyed MACs: what they prove, and which key files are taken."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from orchestrator.stores.files.atomic_file import (
    MAC_SIZE,
    MacKey,
    MissingFileError,
    ReadError,
    UntrustedError,
    content_hash128,
)

SECRET = bytes(range(32))


def key_file(path: Path, content: bytes = SECRET, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_only_the_same_key_purpose_and_content_are_proven() -> None:
    key = MacKey.of(SECRET)
    mac = key.sign("pack", [b"con", b"tent"])
    assert len(mac) == MAC_SIZE
    assert key.proves(mac, "pack", [b"content"])
    assert not key.proves(mac, "binaries", [b"content"])
    assert not key.proves(mac, "pack", [b"contenT"])
    assert not key.proves(mac[:-1], "pack", [b"content"])
    assert not MacKey.of(SECRET[:-1] + b"\0").proves(mac, "pack", [b"content"])


def test_it_is_keyed_blake2b() -> None:
    secret = hashlib.blake2b(SECRET, digest_size=64, person=b"mac key").digest()
    expected = hashlib.blake2b(b"content", key=secret, digest_size=32, person=b"pack").digest()
    assert MacKey.of(SECRET).sign("pack", [memoryview(b"content")]) == expected


@pytest.mark.parametrize("purpose", ["", "seventeen letters"])
def test_a_purpose_has_1_to_16_bytes(purpose: str) -> None:
    with pytest.raises(ValueError, match="1 to 16"):
        MacKey.of(SECRET).sign(purpose, [])


def test_a_key_file_counts_to_its_last_byte_and_is_not_shown(tmp_path: Path) -> None:
    long = bytes(100) + b"\1"
    one = MacKey.read(key_file(tmp_path / "one", long))
    assert one != MacKey.read(key_file(tmp_path / "two", long[:-1] + b"\2"))
    assert one == MacKey.of(long)
    assert repr(one) == "MacKey()"


def test_key_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        MacKey.read(tmp_path / "none")
    with pytest.raises(ValueError, match="a key of 31 bytes can be guessed; 32 are needed"):
        MacKey.read(key_file(tmp_path / "short", SECRET[:-1]))
    with pytest.raises(ReadError, match="more than the 4096"):
        MacKey.read(key_file(tmp_path / "long", bytes(4097)))
    with pytest.raises(UntrustedError, match="others may read the key"):
        MacKey.read(key_file(tmp_path / "read", mode=0o640))
    with pytest.raises(UntrustedError, match="everybody"):
        MacKey.read(key_file(tmp_path / "written", mode=0o602))
    (tmp_path / "link").symlink_to(key_file(tmp_path / "target"))
    with pytest.raises(ReadError, match="symbolic link"):
        MacKey.read(tmp_path / "link")


def test_the_hash_is_that_of_the_xxh3_specification() -> None:
    # The published test vector for no input and seed 0.
    assert content_hash128(b"").hex() == "99aa06d3014798d86001c324468d497f"
    data = bytes(range(256)) * 9
    assert content_hash128(bytearray(data)) == content_hash128(memoryview(data)) == content_hash128(data)
