"""The command line, with one module per verb. No other part of the package imports it, cyclopts or rich."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import NoReturn

from orchestrator.process import (
    end_process,
    hold_signals,
    interrupted_by_signals,
    own_interpreter,
    stopped_with_children,
)
from orchestrator.supervise.starting import server_ahead

_NO_SERVER = frozenset({"--help", "-h", "--version", "--in-process"})


def main() -> NoReturn:
    """Run the program. It owns this process and ends it."""
    hold_signals()  # until a verb can handle the interruption
    own_interpreter()
    compiles = sys.argv[1:2] == ["compile"] and _NO_SERVER.isdisjoint(sys.argv)
    with interrupted_by_signals(), stopped_with_children(), server_ahead() if compiles else nullcontext():
        from orchestrator.cli.program import main as run

        code = run()
    end_process(code)
