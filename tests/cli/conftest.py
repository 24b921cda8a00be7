"""Fixtures of the command line's tests.

The program as tests call it: in this process where nothing about the process matters, else in one of its
own.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from orchestrator.cli.output import take_display
from orchestrator.cli.program import main
from orchestrator.sets.archive.reader import RECORD_SIZE, Archive
from orchestrator.sets.records import RecordTag
from tests.drivers import REPOSITORY, missing
from tests.run.small_sets import write_small_set


@frozen
class Done:
    """A call of the program that ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Its JSON: the whole of stdout."""
        loaded = json.loads(self.out)
        assert isinstance(loaded, dict)
        return loaded


Call = Callable[..., Done]

DISPLAY_VARIABLES = "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def terminal_as(monkeypatch: pytest.MonkeyPatch, stream: str, columns: int = 100) -> Terminal:
    """A terminal without colours as stdout or stderr."""
    terminal = Terminal()
    monkeypatch.setattr(f"sys.{stream}", terminal)
    for name, value in (("TERM", "xterm"), ("COLUMNS", str(columns)), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    return terminal


def inspected(done: Done) -> dict[str, Any]:
    """What `inspect --json` said of the only file."""
    (file,) = done.document["files"]
    assert isinstance(file, dict)
    return file


@pytest.fixture(autouse=True)
def usual_display() -> Iterator[None]:
    """Forget what a call said of its output; a test that makes views without a call finds what is usual."""
    yield
    take_display([])


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call the program in this process."""
    for name in DISPLAY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    capsys.readouterr()

    def run(*arguments: str | os.PathLike[str]) -> Done:
        code = main([os.fspath(each) for each in arguments])
        captured = capsys.readouterr()
        return Done(int(code), captured.out, captured.err)

    return run


def run_python(
    *arguments: str | os.PathLike[str],
    environment: Mapping[str, str] | None = None,
    unset: tuple[str, ...] = (),
    **options: Any,
) -> Done:
    """Run an interpreter in a process of its own, with options of `subprocess.run`."""
    variables = {**os.environ, **(environment or {})}
    for name in unset:
        variables.pop(name, None)
    done = subprocess.run(
        [sys.executable, *arguments],
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **{"cwd": REPOSITORY, **options},
    )
    return Done(done.returncode, done.stdout, done.stderr)


def run_program(*arguments: str | os.PathLike[str], **options: Any) -> Done:
    """Run `python -m orchestrator`, as `run_python` does."""
    return run_python("-m", "orchestrator", *arguments, **options)


def damage(path: Path) -> None:
    """Flip the last bit of a file."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.fixture
def small_set(tmp_path: Path) -> Path:
    """An archive of a few compute pipelines of the sample set, with all that they refer to."""
    path = tmp_path / "small.foz"
    write_small_set(path, 0, 16)
    return path


@pytest.fixture(scope="session")
def compiled_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache directory of a compile of the small set on the simulated device, for copies."""
    folder = tmp_path_factory.mktemp("compiled")
    write_small_set(folder / "small.foz", 0, 16)
    options = ("-d", "simulated", "--in-process", "-q", "--cache-dir", str(folder / "cache"))
    assert main(["compile", str(folder / "small.foz"), *options]) == 0
    return folder / "cache"


@pytest.fixture(scope="session")
def packed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack that a compile of the small set for the simulated device made, for copies."""
    folder = tmp_path_factory.mktemp("packed")
    write_small_set(folder / "small.foz", 0, 16)
    options = ("-d", "simulated", "-q", "--out", str(folder / "pack"))
    assert main(["compile", str(folder / "small.foz"), *options]) == 0
    return folder / "pack"


@pytest.fixture
def small_pack(packed_folder: Path, tmp_path: Path) -> Path:
    """A pack of the small set for the simulated device."""
    return Path(shutil.copytree(packed_folder, tmp_path / "pack"))


@pytest.fixture
def cache_file(compiled_folder: Path, small_set: Path, tmp_path: Path) -> Path:
    """A cache file that the simulated device saved, of the small set."""
    shutil.copytree(compiled_folder, tmp_path / "cache")
    (path,) = (tmp_path / "cache").glob("*.pipeline-cache")
    return path


@pytest.fixture
def damaged_set(small_set: Path) -> tuple[Path, int]:
    """The small set with one bit of one compute pipeline's payload flipped, and that pipeline's key."""
    with Archive.open(small_set) as archive:
        key = archive.keys(RecordTag.COMPUTE_PIPELINE)[1]
        offset = archive.offset(RecordTag.COMPUTE_PIPELINE, key)
    content = bytearray(small_set.read_bytes())
    content[offset + RECORD_SIZE + 3] ^= 0x10
    path = small_set.with_name("damaged.foz")
    path.write_bytes(content)
    return path, key


@pytest.fixture
def cut_set(small_set: Path) -> Path:
    """The small set, cut in the middle of a record."""
    path = small_set.with_name("cut.foz")
    with Archive.open(small_set) as archive:
        offset = archive.offset(RecordTag.COMPUTE_PIPELINE, archive.keys(RecordTag.COMPUTE_PIPELINE)[8])
    path.write_bytes(small_set.read_bytes()[: offset + RECORD_SIZE + 3])
    return path


@pytest.fixture(scope="session")
def other_mesa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another build of Mesa, unpacked from its package and not installed."""
    folder = tmp_path_factory.mktemp("mesa")
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        missing("apt-get and dpkg-deb, for another build of Mesa")
    listed = subprocess.run(
        ["apt-cache", "madison", "mesa-vulkan-drivers"], capture_output=True, text=True, check=False
    )
    versions = [line.split("|")[1].strip() for line in listed.stdout.splitlines()]
    get = ["apt-get", "download", f"mesa-vulkan-drivers={versions[-1] if versions else ''}"]
    if len(versions) < 2 or subprocess.run(get, cwd=folder, capture_output=True, check=False).returncode:
        missing("another build of mesa-vulkan-drivers in the lists of apt")
    (package,) = folder.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", package, folder / "root"], check=True)
    return folder / "root"
