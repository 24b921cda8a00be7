"""The one way in and out of the command line.

Guarantees:
- A user's mistake ends in a message and exit code 2, a missing device in 3; never in a traceback. A bug shows
  its traceback, because it is what a report needs, and has an exit code of its own.
- A reader that goes away (`orchestrator list x | head`) ends the program quietly. A stdout that cannot be
  written is exit code 2; a stderr that cannot be written changes nothing.
- A signal that asks it to end before a verb has begun, or a verb that saves nothing, ends it with 130
  and, with --json, a document.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.cli.errors import ExitCode, Failure, explain, explain_system, report
from orchestrator.cli.streams import OutputError, Results, discard, own_streams, take_display
from orchestrator.errors import ExternalSynchronizationError, OrchestratorError
from orchestrator.process import let_through

if TYPE_CHECKING:
    from orchestrator.cli.parsing import EarlyParse


def main(arguments: Sequence[str] | None = None, parsing: EarlyParse | None = None) -> int:
    """Run the program.

    Args:
        arguments: What stands behind the program's name; those of the process where not given.
        parsing: What was begun to parse them.

    Returns:
        The exit code.
    """
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    problem = ""
    try:
        tokens = take_display(tokens)
    except ValueError as error:
        problem = str(error)
    options = tokens[: tokens.index("--")] if "--" in tokens else tokens
    json = "--json" in options
    with own_streams() as results:
        try:
            let_through()
            if problem:
                usage = "`orchestrator --help` shows what there is"
                return report(Failure("usage", problem, usage, ExitCode.BAD_INPUT, {}), json=json)
            code = _run(tokens, results, parsing, json=json)
            results.flush()
        except BrokenPipeError:
            # What is left in the stream's buffer must go somewhere when the interpreter flushes it at its
            # end.
            discard(sys.stdout)
            return ExitCode.BROKEN_PIPE
        except OutputError as error:
            return report(explain(error), json=False)
        except KeyboardInterrupt:
            # A verb that can say what was done has ended by itself: this one had not begun, or cannot.
            interrupted = "interrupted before it was done"
            failure = Failure("interrupted", interrupted, "", ExitCode.INTERRUPTED, {})
            return _last_words(failure, results, json=json)
        except Exception as error:  # noqa: BLE001 - shown whole, and not passed off as a result
            if (refused := explain_system(error)) is not None:
                return _last_words(refused, results, json=json)
            traceback.print_exc()
            message = f"a bug of this program: {type(error).__name__}: {error}"
            failure = Failure("bug", message, "please report it with the lines above", ExitCode.BUG, {})
            return _last_words(failure, results, json=json)
    return code


def _last_words(failure: Failure, results: Results, *, json: bool) -> int:
    """Report a failure; on a stdout that holds a document, or cannot be written, not there."""
    try:
        return report(failure, json=json and not results.written)
    except (OutputError, BrokenPipeError):
        discard(sys.stdout)
        return failure.exit_code


def _run(tokens: Sequence[str], results: Results, parsing: EarlyParse | None, *, json: bool) -> int:
    try:
        parsed = None if parsing is None else parsing.arguments()
        if parsed is not None:
            from orchestrator.cli.compiling import compile_sets

            return compile_sets(parsed.sets, parsed.arguments, json=parsed.json)
        from orchestrator.cli.application import parse

        command, bound = parse(tokens)
        result = command(*bound.args, **bound.kwargs)
    except ExternalSynchronizationError:
        raise  # the caller's bug, and here the caller is this program
    except OutputError:
        raise
    except OrchestratorError as error:
        return _last_words(explain(error), results, json=json)
    return result if isinstance(result, int) else ExitCode.OK
