"""The command-line application: its verbs, and the one way in and out of it.

Guarantees:
- Only the verb that is called is loaded, and it imports what it needs for its work when it works: asking for
  help opens no driver and loads no numpy.
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

from cyclopts import App, CycloptsError, Parameter

from orchestrator.cli.display import take_display
from orchestrator.cli.errors import ExitCode, Failure, explain, explain_system, report
from orchestrator.cli.signals import let_through
from orchestrator.cli.streams import OutputError, Results, discard, own_streams
from orchestrator.errors import ExternalSynchronizationError, OrchestratorError
from orchestrator.version import VERSION

app = App(
    name="orchestrator",
    help="""Compile Vulkan pipeline sets in parallel, and know what it costs.

Start with `orchestrator devices`, then `orchestrator compile sample`.

Every verb takes --color auto|always|never, --no-progress, -v (--verbose): lists
in full, where they are cut otherwise, and -q (--quiet): nothing but errors.

Exit codes:
  0    all good
  1    the work was done, and some of it failed: pipelines, cells of bench;
       compare: something is slower
  2    bad input or usage, or nothing could be saved
  3    no device
  70   a bug of this program
  75   the time limit was reached; running again goes on
  130  stopped by Ctrl-C or SIGTERM; what was done is kept
  141  whoever read the output went away
""",
    help_format="plaintext",
    default_parameter=Parameter(negative=""),
    version=VERSION,
)
VERBS = {
    "devices": "devices:devices_verb",
    "list": "list_set:list_verb",
    "compile": "compile:compile_verb",
    "bench": "bench:bench_verb",
    "compare": "compare:compare_verb",
    "calibrate": "calibrate:calibrate_verb",
    "inspect": "inspect:inspect_verb",
    "export": "export:export_verb",
    "pack": "pack:pack_verb",
    "verify": "verify:verify_verb",
    "binaries": "binaries:binaries_verb",
    "merge": "merge:merge_verb",
    "install": "install:install_verb",
    "prune": "prune:prune_verb",
    "quarantine": "quarantine:quarantine_verb",
    "doctor": "doctor:doctor_verb",
    "completion": "completion:completion_verb",
}
for _name, _function in VERBS.items():
    # Loaded when it is called. Markdown needs a parser of its own: a verb's help has examples to set apart,
    # the list of verbs has not.
    app.command(f"orchestrator.cli.{_function}", name=_name, help_format="markdown")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: What stands behind the program's name; those of the process where not given.

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
            code = _run(tokens, results, json=json)
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
            return _last_words(_INTERRUPTED, results, json=json)
        except Exception as error:  # noqa: BLE001 - shown whole, and not passed off as a result
            if isinstance(error, OSError) and (refused := explain_system(error)) is not None:
                return _last_words(refused, results, json=json)
            traceback.print_exc()
            message = f"a bug of this program: {type(error).__name__}: {error}"
            failure = Failure("bug", message, "please report it with the lines above", ExitCode.BUG, {})
            return _last_words(failure, results, json=json)
    return code


_INTERRUPTED = Failure("interrupted", "interrupted before it was done", "", ExitCode.INTERRUPTED, {})


def _last_words(failure: Failure, results: Results, *, json: bool) -> int:
    """Report a failure; on a stdout that holds a document, or cannot be written, not there."""
    try:
        return report(failure, json=json and not results.written)
    except (OutputError, BrokenPipeError):
        discard(sys.stdout)
        return failure.exit_code


def _run(tokens: Sequence[str], results: Results, *, json: bool) -> int:
    try:
        if not any(each in VERBS for each in tokens) and "--version" not in tokens:
            for name in VERBS:
                app[name]  # loads it: the list of verbs has a line of each
        command, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
        result = command(*bound.args, **bound.kwargs)
    except CycloptsError as error:
        return report(_usage(error, tokens), json=json)
    except ExternalSynchronizationError:
        raise  # the caller's bug, and here the caller is this program
    except OutputError:
        raise
    except OrchestratorError as error:
        return _last_words(explain(error), results, json=json)
    return result if isinstance(result, int) else ExitCode.OK


def _usage(error: CycloptsError, tokens: Sequence[str]) -> Failure:
    verb = next((each for each in tokens if each in VERBS), "")
    help_call = f"`orchestrator {verb} --help`" if verb else "`orchestrator --help`"
    message = " ".join(str(error).split())
    return Failure("usage", message, f"{help_call} shows what there is", ExitCode.BAD_INPUT, {})
