"""Private permissions for what tests of the stores create, since the stores refuse what others may write."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _private_files() -> Iterator[None]:
    """A umask under which nobody else may write, whatever that of the machine is."""
    before = os.umask(0o077)
    yield
    os.umask(before)
