"""Starts a child: a new interpreter that serves this one. Imports little, so that a program may begin so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from orchestrator.errors import OrchestratorError
from orchestrator.process import signals_held, started_group

ENTRY = "orchestrator.children"
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120


class ChildrenRefusedError(OrchestratorError):
    """The system does not let this process end a child, or learn how it ended."""

    next_step = (
        "allow kill and waitid, such as in the container's seccomp profile; `--in-process` needs neither"
    )

    def __init__(self, reason: str) -> None:
        super().__init__(f"this system does not let a process end those that it starts: {reason}")


def start_service(
    service: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    program: str = sys.executable,
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a child in a session and a process group of its own, with a pipe at each standard stream.

    It is over with `process.kill_group`. For `arguments` see `serving.main`, for the others `parent.Child`.
    It inherits `descriptors`, too.

    Raises:
        OSError: It cannot be started.
        ChildrenRefusedError: It could not be ended.
    """
    with signals_held():  # until it ignores them
        process = subprocess.Popen(
            # -P: does not import modules from the working directory, unless this process does.
            [program, "-P", "-m", ENTRY, service, *arguments],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**(os.environ if environment is None else environment), "PYTHONPATH": _import_path()},
            start_new_session=True,
            pass_fds=descriptors,
        )
    try:
        os.killpg(process.pid, 0)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except OSError as error:
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()  # it ends when its pipe is closed
        raise ChildrenRefusedError(str(error)) from error
    started_group(process)
    return process


def _import_path() -> str:
    """This process's import path, so that a child finds the same modules, this package among them."""
    paths = [path for each in sys.path if os.path.exists(path := os.path.abspath(each))]  # noqa: PTH100, PTH110
    return os.pathsep.join(paths if _ROOT in paths else [_ROOT, *paths])
