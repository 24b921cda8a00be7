"""The tests of a device or a folder run in a process of its own, and report here as if they had run here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children.test_children import is_gone, until
from tests.drivers import REPOSITORY, driver_manifest
from tests.isolation import ENTRY_VARIABLE, REPORTS_VARIABLE

MODULE = """
import os, signal
import pytest
from tests.drivers import each_device

# The session's own process imports this first; the others inherit what it notes.
SESSION = int(os.environ.setdefault("SESSION_PID", str(os.getpid())))

@each_device
def test_target(selector):
    assert os.getpid() != SESSION
    if selector.startswith("radv:"):
        assert os.environ["RADV_FORCE_FAMILY"] == selector.partition(":")[2]

@each_device
def test_fails_on_lavapipe(selector):
    print("said on", selector)
    assert selector != "lavapipe"

@pytest.mark.driver("radv:navi31")
def test_kills_its_process():
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.driver("radv:navi31")
def test_comes_after():
    pass

def test_needs_no_device():
    assert (os.getpid() == SESSION) == bool(os.environ.get("ALONE"))
"""


ENDLESS = """
import os, pathlib, signal, time
import pytest

NOTE = pathlib.Path(os.environ["NOTE"])

@pytest.mark.driver("radv:navi31")
def test_never_ends():
    NOTE.with_suffix(".new").write_text(str(os.getpid()))
    NOTE.with_suffix(".new").rename(NOTE)
    signal.pause()

@pytest.mark.driver("lavapipe")
def test_fails_while_the_other_runs():
    while not NOTE.exists():
        time.sleep(0.01)
    assert False
"""


def run(folder: Path, *arguments: str, module: str = MODULE, **environment: str) -> str:
    """Output of a session over a module, in a process of its own."""
    path = folder / "test_module.py"
    path.write_text(module, "utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    inherited = os.environ.keys() - {ENTRY_VARIABLE, REPORTS_VARIABLE}
    done = subprocess.run(
        [*command, "-c", "pyproject.toml", str(path), *arguments],
        cwd=REPOSITORY,
        env={name: os.environ[name] for name in inherited} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


@pytest.fixture(autouse=True)
def all_drivers() -> None:
    """Skip, or fail in CI, where a driver is missing that the module above is about."""
    driver_manifest("radv:navi31")
    driver_manifest("lavapipe")


@pytest.mark.driver
def test_each_target_has_its_process_and_reports_come_back(tmp_path: Path) -> None:
    output = run(tmp_path)
    assert "3 failed, 8 passed" in output
    assert "said on lavapipe" in output
    assert "the process for radv:navi31 ended with -9 in this test" in output
    assert "the process for radv:navi31 ended with -9 before this test" in output


@pytest.mark.driver
def test_nothing_is_relayed_inside_an_entry_or_of_one_folder_alone(tmp_path: Path) -> None:
    inside = run(tmp_path, "-k", "fails_on_lavapipe", **{ENTRY_VARIABLE: "lavapipe"})
    assert "1 failed, 3 passed, 7 deselected" in inside
    assert "1 passed, 10 deselected" in run(tmp_path, "-k", "needs_no_device", ALONE="yes")


def test_a_session_that_is_stopped_leaves_no_process(tmp_path: Path) -> None:
    note = tmp_path / "note"
    output = run(tmp_path, "-x", module=ENDLESS, NOTE=str(note))
    assert "stopping after 1 failures" in output
    process = int(note.read_text())
    until(lambda: is_gone(process))
