"""The command line, with one module per verb. No other part of the package imports it, cyclopts or rich."""

from __future__ import annotations

import sys

from orchestrator.cli.early import compiles_much, is_program
from orchestrator.malloc import restart_for_compiling

TYPE_CHECKING = False  # as in early.py
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the program. It owns this process and ends it."""
    if is_program() and compiles_much(sys.argv[1:]):
        restart_for_compiling()
    from orchestrator.bytecode import keep_module_code, leave_module_code

    keep_module_code("start")
    from orchestrator.process import end_process, interrupted_by_signals, own_interpreter

    with interrupted_by_signals(held=True):  # until a verb can handle the interruption
        own_interpreter()
        from orchestrator.cli.program import EarlyParse
        from orchestrator.cli.program import main as run

        leave_module_code()
        end_process(run(parsing=EarlyParse.begin(sys.argv[1:])))
