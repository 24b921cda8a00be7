"""The pages are a site: links lead somewhere, each page is in the navigation, docstrings can be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.drivers import REPOSITORY


def test_sphinx_has_nothing_to_warn_of(tmp_path: Path) -> None:
    """With a builder that resolves everything and writes nothing."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "dummy"]
    done = subprocess.run(
        [*command, "-d", tmp_path / "doctrees", REPOSITORY / "docs", tmp_path / "site"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
