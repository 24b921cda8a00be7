"""Keys: what a signature proves, which files are keys, and that none is replaced."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.stores.signing import PublicKey, SigningError, SigningKey


def test_only_the_same_pair_purpose_and_content_are_proven(tmp_path: Path) -> None:
    key = SigningKey()
    signature = key.sign("pack", b"content")
    assert key.public.proves(signature, "pack", b"content")
    assert not key.public.proves(signature, "binaries", b"content")
    assert not key.public.proves(signature, "pack", b"contenT")
    assert not key.public.proves(signature[:-1], "pack", b"content")
    assert not SigningKey().public.proves(signature, "pack", b"content")
    assert repr(key) == "SigningKey()"


def test_a_pair_is_written_once_and_only_its_owner_reads_the_private_key(tmp_path: Path) -> None:
    key, path = SigningKey(), tmp_path / "team.key"
    public = key.write(path)
    assert (public.name, path.stat().st_mode & 0o777) == ("team.pub", 0o600)
    assert SigningKey.read(path).public == PublicKey.read(public) == key.public
    for missing, there in ((path, public), (public, path)):
        before = there.read_bytes()
        missing.unlink()
        with pytest.raises(SigningError, match=rf"{there.name}: there is something already"):
            SigningKey().write(path)
        assert not missing.exists()
        assert there.read_bytes() == before
        key = SigningKey()
        there.unlink()
        key.write(path)


def test_what_is_no_key_or_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "team.key"
    public = SigningKey().write(path)
    with pytest.raises(SigningError, match="it is no public key"):
        PublicKey.read(path)
    with pytest.raises(SigningError, match="it is no private key") as refused:
        SigningKey.read(public)
    path.chmod(0o640)
    with pytest.raises(SigningError, match="others may read the key") as refused:
        SigningKey.read(path)
    assert refused.value.next_step == f"chmod 600 {path}"
    (tmp_path / "link").symlink_to(path)
    for missing in (tmp_path / "none", tmp_path / "link"):
        with pytest.raises(SigningError, match=missing.name):
            SigningKey.read(missing)


def test_openssl_checks_what_is_signed(tmp_path: Path) -> None:
    """The files and the signature are those of the standard, by a program that knows nothing of this one."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key = SigningKey()
    public = key.write(tmp_path / "team.key")
    (tmp_path / "signature").write_bytes(key.sign("pack", b"content"))
    (tmp_path / "message").write_bytes(b"orchestrator pack\0content")
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(public), "-rawin"]
    command += ["-in", str(tmp_path / "message"), "-sigfile", str(tmp_path / "signature")]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
