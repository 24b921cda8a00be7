"""The command line: one module a verb. Nothing else of the package imports it, cyclopts or rich."""

from __future__ import annotations

from typing import NoReturn

from orchestrator.process import end_process, own_interpreter

_INTERRUPTED = 130  # ExitCode.INTERRUPTED, which may not be loaded yet


def main() -> NoReturn:
    """Be the program: this process is its own, and ends here."""
    own_interpreter()
    from orchestrator.cli.signals import interrupted_by_signals

    with interrupted_by_signals():
        try:
            from orchestrator.cli.application import main as run
        except KeyboardInterrupt:  # while the program was being loaded
            end_process(_INTERRUPTED)
        end_process(run())
