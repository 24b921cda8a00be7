"""Machines that lack something: what is found out before anything is compiled, and what is said of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.drivers import REPOSITORY, unsupported


def compiled_under(mount: str, *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    """Exit code and document of a compile on the simulated device, in a mount namespace of its own."""
    enter = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*enter, mount], capture_output=True, check=False).returncode:
        unsupported("no file system can be mounted here (unshare --map-root-user --mount)")
    program = [sys.executable, "-m", "orchestrator", "compile", "-d", "simulated", "--json", *arguments]
    command = [*enter, f'{mount} && exec "$@"', "sh", *program]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def test_without_proc_and_dev_pipelines_compile_and_what_needs_them_is_an_error(
    small_set: Path, tmp_path: Path
) -> None:
    mount = "mount -t tmpfs none /proc && mount -t tmpfs none /dev"
    code, document = compiled_under(mount, small_set, "--cache-dir", tmp_path / "cache")
    assert (code, document["outcomes"]["compiled"]) == (0, 16)
    code, document = compiled_under(mount, small_set, "--cache-dir", tmp_path / "cache", "--memory", "600M")
    assert (code, document["error"]["path"]) == (2, "/proc/self/statm")
