"""Private permissions for what tests of the stores create, since the stores refuse what others may write.

And a directory that is fast.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _private_files() -> Iterator[None]:
    """A umask under which nobody else may write, whatever that of the machine is."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """A directory in memory where the system has one: no storage device is killed or fails here."""
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    yield directory
    shutil.rmtree(directory)
