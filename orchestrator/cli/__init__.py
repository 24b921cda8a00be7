"""The command line: one module a verb. Nothing else of the package imports it, cyclopts or rich."""

from __future__ import annotations

import sys
from typing import NoReturn

from orchestrator.process import end_process, interrupted_by_signals, own_interpreter


def main() -> NoReturn:
    """Be the program: this process is its own, and ends here."""
    with interrupted_by_signals(held=True):  # until there is somebody to say so
        own_interpreter()
        from orchestrator.cli.program import EarlyParse
        from orchestrator.cli.program import main as run

        end_process(run(parsing=EarlyParse.begin(sys.argv[1:])))
