"""The one way in and out of the command line.

Guarantees:
- A user's mistake ends in a message and exit code 2, a missing device in 3; never in a traceback. A bug shows
  its traceback, because it is what a report needs, and has an exit code of its own.
- A reader that goes away (`orchestrator list x | head`) ends the program quietly. A stdout that cannot be
  written is exit code 2; a stderr that cannot be written changes nothing.
- A signal that asks it to end before a verb has begun, or a verb that saves nothing, ends it with 130
  and, with --json, a document. More of them, such as Ctrl-C twice, change nothing.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

from orchestrator.cli.errors import ExitCode, Failure, UsageError, explain, explain_system, report
from orchestrator.cli.output import OutputError, Stream, discard, own_streams, take_display
from orchestrator.errors import ExternalSynchronizationError, OrchestratorError
from orchestrator.process import hold_signals, let_through


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit code.

    Without arguments, those of the process are taken, and the process ends.
    """
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    problem = ""
    try:
        tokens = take_display(tokens)
    except ValueError as error:
        problem = str(error)
    options = tokens[: tokens.index("--")] if "--" in tokens else tokens
    json = "--json" in options
    with own_streams(json=json) as results:
        try:
            if problem:
                usage = "`orchestrator --help` shows what there is"
                return report(Failure("usage", problem, usage), json=json)
            try:
                code = _run(tokens, results, json=json)
                results.flush()
            finally:
                if arguments is None:
                    hold_signals()  # from here on nothing changes how it ends
        except Exception as error:  # noqa: BLE001 - shown, as what it is
            return _ended_by(error, results, json=json)
        except KeyboardInterrupt as error:
            # A verb that can say what was done has ended by itself: this one had not begun, or cannot.
            interrupted = str(error) or "interrupted before it was done"
            failure = Failure("interrupted", interrupted, exit_code=ExitCode.INTERRUPTED)
            return _last_words(failure, results, json=json)
    return code


def _ended_by(error: Exception, results: Stream, *, json: bool) -> int:
    if isinstance(error, BrokenPipeError):
        # What is left in the stream's buffer must go somewhere when the interpreter flushes it.
        discard(sys.stdout)
        return ExitCode.BROKEN_PIPE
    if isinstance(error, OutputError):
        return report(explain(error), json=False)
    failure = explain_system(error)
    if failure is None:
        traceback.print_exception(error)
        message = f"a bug of this program: {type(error).__name__}: {error}"
        failure = Failure("bug", message, "please report it with the lines above", ExitCode.BUG)
    return _last_words(failure, results, json=json)


def _last_words(failure: Failure, results: Stream, *, json: bool) -> int:
    try:
        return report(failure, json=json and not results.written)
    except (OutputError, BrokenPipeError):
        discard(sys.stdout)
        return failure.exit_code


def _run(tokens: Sequence[str], results: Stream, *, json: bool) -> int:
    from orchestrator.cli.application import help_step, parse

    try:
        command, bound = parse(tokens)
        let_through()
        result = command(*bound.args, **bound.kwargs)
    except (ExternalSynchronizationError, OutputError):
        raise  # a bug of this program, or what its streams do
    except OrchestratorError as error:
        if isinstance(error, UsageError) and not error.next_step:
            error.next_step = help_step(tokens)
        return _last_words(explain(error), results, json=json)
    return result if isinstance(result, int) else ExitCode.OK
