"""The command line, with one module per verb. No other part of the package imports it, cyclopts or rich."""

from __future__ import annotations

import sys
from typing import NoReturn

from orchestrator.process import end_process, interrupted_by_signals, own_interpreter


def main() -> NoReturn:
    """Run the program. It owns this process and ends it."""
    with interrupted_by_signals(held=True):  # until a verb can handle the interruption
        own_interpreter()
        from orchestrator.cli.program import EarlyParse
        from orchestrator.cli.program import main as run

        end_process(run(parsing=EarlyParse.begin(sys.argv[1:])))
