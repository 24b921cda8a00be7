"""Set-up by hand of root in somebody's checkout (`sudo make setup`): what it made is theirs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.drivers import REPOSITORY

# No apt-get among them: nothing is installed here.
TOOLS = (
    "bash",
    "cat",
    "chown",
    "cksum",
    "dirname",
    "find",
    "flock",
    "grep",
    "id",
    "mkdir",
    "rm",
    "sed",
    "stat",
)
SOMEBODY = 65534


def test_what_root_makes_in_a_checkout_belongs_to_its_owner(tmp_path: Path) -> None:
    tools, checkout = tmp_path / "bin", tmp_path / "checkout"
    tools.mkdir()
    for each in TOOLS:
        found = shutil.which(each)
        assert found is not None, each
        (tools / each).symlink_to(found)
    (checkout / ".ci").mkdir(parents=True)
    (checkout / ".venv" / "bin").mkdir(parents=True)
    for name in (".ci/setup.sh", ".ci/owned.sh", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, checkout / name)
    # As after a set-up: nothing is left to do.
    (checkout / ".venv" / "bin" / "python").symlink_to(sys.executable)
    environment = {"PATH": str(tools)}
    key = 'echo "$(cat pyproject.toml .ci/setup.sh | cksum) $PWD" > .venv/setup-demo'
    subprocess.run(["bash", "-c", key], cwd=checkout, env=environment, timeout=60, check=True)
    owner = SOMEBODY if os.geteuid() == 0 else os.geteuid()
    if owner == SOMEBODY:
        os.chown(checkout, owner, owner)
    done = subprocess.run(
        ["bash", ".ci/setup.sh", "demo"],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.lstat().st_uid for path in checkout.rglob("*")} == {owner}
    assert (checkout / "build" / "setup.log").exists()


def test_what_root_runs_in_a_checkout_leaves_nothing_of_root_s(tmp_path: Path) -> None:
    """`sudo make demo`: a folder of mode 0700, which its owner could not enter, and a command that fails."""
    checkout = tmp_path / "checkout"
    (checkout / ".ci").mkdir(parents=True)
    shutil.copy(REPOSITORY / ".ci/owned.sh", checkout / ".ci/owned.sh")
    owner = SOMEBODY if os.geteuid() == 0 else os.geteuid()
    if owner == SOMEBODY:
        os.chown(checkout, owner, owner)
    command = "mkdir -m 700 closed; touch closed/file; exit 7"
    done = subprocess.run(
        ["bash", checkout / ".ci/owned.sh", "bash", "-c", command], cwd="/", timeout=60, check=False
    )
    assert done.returncode == 7
    assert {path.lstat().st_uid for path in checkout.rglob("*")} == {owner}
    assert (checkout / "closed" / "file").exists()


def test_every_target_that_makes_files_gives_them_to_the_owner() -> None:
    makefile = (REPOSITORY / "Makefile").read_text("utf-8")
    commands = re.findall(r"^\t@(?!sed|rm|find)(.*)$", makefile, flags=re.MULTILINE)
    assert len(commands) >= 9
    assert [each for each in commands if not each.startswith(("$(OWNED) ", "bash .ci/setup.sh "))] == []
