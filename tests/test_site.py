"""The pages are a site: links lead somewhere, each page is in the navigation, docstrings can be read."""

from __future__ import annotations

import runpy
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


def test_the_picture_is_the_one_that_its_script_draws() -> None:
    drawn = runpy.run_path(str(REPOSITORY / "docs" / "picture.py"))["picture"]()
    assert (REPOSITORY / "docs" / "picture.svg").read_text("utf-8") == drawn
