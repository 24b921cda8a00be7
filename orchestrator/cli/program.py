"""The one way in and out of the command line; that of `compile` is parsed beside the imports of its work.

    this process ── fork ──> cyclopts, the verb's options, the words ──> arguments, by a pipe ──┐
         └── numpy, trio and what else compiles ────────────────────────────────────────────> work

To import and ask the library of the command line takes as long as to import what compiles, and neither needs
the other. The other process says nothing to anybody else and waits for nothing, so it ends within a tenth of
a second also where this one is killed.

Guarantees:
- A user's mistake ends in a message and exit code 2, a missing device in 3; never in a traceback. A bug shows
  its traceback, because it is what a report needs, and has an exit code of its own.
- A reader that goes away (`orchestrator list x | head`) ends the program quietly. A stdout that cannot be
  written is exit code 2; a stderr that cannot be written changes nothing.
- A signal that asks it to end before a verb has begun, or a verb that saves nothing, ends it with 130
  and, with --json, a document. More of them, such as Ctrl-C twice, change nothing.
- Where the other process does not give arguments, whatever the reason (they are wrong, help is asked for, it
  was killed), there are none, and the command line is parsed here as if nothing had been.
Assumptions: where a process is begun to parse, this one is the program's own and has one thread.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, Self, cast

from orchestrator import process
from orchestrator.bytecode import keep_module_code
from orchestrator.cli.errors import ExitCode, Failure, UsageError, explain, explain_system, report
from orchestrator.cli.output import OutputError, Results, discard, own_streams, take_display
from orchestrator.errors import ExternalSynchronizationError, OrchestratorError
from orchestrator.process import (
    address_space_limit,
    end_process,
    has_room,
    let_through,
    may_fork,
    reset_signals,
    without_extensions,
    without_searching,
)

if TYPE_CHECKING:
    from orchestrator.cli.compile_arguments import CompileArguments

_VERB: Final = "compile"
_ENDS_AT_ONCE: Final = frozenset({"--help", "-h", "--version"})
_DECODES: Final = ("numpy", "orchestrator.cli.compiling", "orchestrator.run.options")
_COMPILES: Final = "orchestrator.supervise.service"
"""What a compile imports before it starts a process: what begins to decode, and what the process needs, as it
needs trio."""
_SUPERVISES: Final = "orchestrator.supervise.supervisor"
"""What it imports beside that process, unless it has to wait anyway."""
_LIBRARIES: Final = 96 << 20
"""Address space that any verb needs, bytes. Where numpy's library of linear algebra gets too little, it ends
the process, with exit code 1."""
_READ_SIZE: Final = 1 << 16
_PATH: Final = 1  # MessagePack has types of one's own, by number


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
    with own_streams(json=json) as results:
        try:
            if problem:
                usage = "`orchestrator --help` shows what there is"
                return report(Failure("usage", problem, usage, ExitCode.BAD_INPUT, {}), json=json)
            try:
                code = _run(tokens, results, parsing, json=json)
                results.flush()
            finally:
                # It ends in any case, so from here on nothing changes how.
                process.signals_held = True
        except BrokenPipeError:
            # What is left in the stream's buffer must go somewhere when the interpreter flushes it at its
            # end.
            discard(sys.stdout)
            return ExitCode.BROKEN_PIPE
        except OutputError as error:
            return report(explain(error), json=False)
        except KeyboardInterrupt as error:
            # A verb that can say what was done has ended by itself: this one had not begun, or cannot.
            interrupted = str(error) or "interrupted before it was done"
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
    if address_space_limit() and not (has_room(_LIBRARIES) or _ENDS_AT_ONCE.intersection(tokens)):
        raise MemoryError
    try:
        parsed = None if parsing is None else parsing.arguments()
        if parsed is not None:
            from orchestrator.cli.compiling import compile_sets
            from orchestrator.sets.shared_set import closing_shared_sets

            with closing_shared_sets():
                let_through()
                return compile_sets(parsed.sets, parsed.arguments, json=parsed.json)
        from orchestrator.cli.application import parse

        command, bound = parse(tokens)
        let_through()
        result = command(*bound.args, **bound.kwargs)
    except ExternalSynchronizationError:
        raise  # the caller's bug, and here the caller is this program
    except OutputError:
        raise
    except OrchestratorError as error:
        if isinstance(error, UsageError) and not error.next_step:
            from orchestrator.cli.application import help_step

            error.next_step = help_step(tokens)
        return _last_words(explain(error), results, json=json)
    return result if isinstance(result, int) else ExitCode.OK


class ParsedCompile(NamedTuple):
    """Arguments of `compile_verb`."""

    sets: list[str]
    arguments: CompileArguments
    json: bool


class EarlyParse:
    """A process that parses. One thread; `arguments` ends it."""

    def __init__(self, process_id: int, answer: int) -> None:
        self._process_id, self._answer = process_id, answer
        self._held = b""
        self._has_ended = False
        self._parsed: ParsedCompile | None = None

    @classmethod
    def begin(cls, tokens: list[str]) -> Self | None:
        """Begin to parse; None where the command line is not for a compile, or no process more would help."""
        if tokens[:1] != [_VERB] or _ENDS_AT_ONCE.intersection(tokens):
            return None
        if not may_fork() or len(os.sched_getaffinity(0)) == 1:
            return None
        answer, told = os.pipe()
        try:
            process_id = os.fork()
        except OSError:
            process_id = -1
        if process_id == 0:
            _parse(tokens, told)
        os.close(told)
        if process_id < 0:
            os.close(answer)
            return None
        return cls(process_id, answer)

    def arguments(self) -> ParsedCompile | None:
        """What was parsed, or None; meanwhile imports what a compile needs, and begins to decode."""
        os.set_blocking(self._answer, False)
        keep_module_code("compile")
        with without_extensions():
            importlib.import_module("msgspec")
        for name in _DECODES:
            if self._look() and self._parsed is None:
                return None
            importlib.import_module(name)
        is_early = self._look()
        if is_early:
            self._decode()
        with without_searching():
            importlib.import_module("trio")
        importlib.import_module(_COMPILES)
        if not self._look():
            importlib.import_module(_SUPERVISES)
            os.set_blocking(self._answer, True)
            self._look()  # it waits in the read
        if not is_early:
            self._decode()
        return self._parsed

    def _decode(self) -> None:
        """Begin to decode what was parsed, if that pays."""
        if self._parsed is not None:
            from orchestrator.cli.compiling import decode_ahead

            decode_ahead(self._parsed.sets, self._parsed.arguments)

    def _look(self) -> bool:
        """Read what is there; whether the process has ended, and with it the answer."""
        while not self._has_ended:
            try:
                data = os.read(self._answer, _READ_SIZE)
            except BlockingIOError:
                break
            self._held += data
            if not data:
                self._has_ended = True
                os.close(self._answer)
                _, status = os.waitpid(self._process_id, 0)
                self._parsed = None if status or not self._held else _decode(self._held)
        return self._has_ended


def _parse(tokens: Sequence[str], told: int) -> NoReturn:
    """Be the process that parses."""
    code = 1
    try:
        reset_signals()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        from orchestrator.cli.application import parse

        _, bound = parse(take_display(tokens))
        bound.apply_defaults()
        left = memoryview(_encode(ParsedCompile(**bound.arguments)))
        while left:
            left = left[os.write(told, left) :]
        code = 0
    finally:
        end_process(code)


def _encode(parsed: ParsedCompile) -> bytes:
    import msgspec
    from attrs import asdict

    def extended(value: object) -> object:
        if not isinstance(value, Path):
            raise TypeError(f"no argument of a compile is a {type(value).__name__}")
        return msgspec.msgpack.Ext(_PATH, os.fsencode(value))

    fields = asdict(parsed.arguments, recurse=False)
    return msgspec.msgpack.encode((parsed.sets, fields, parsed.json), enc_hook=extended)


def _decode(data: bytes) -> ParsedCompile:
    import msgspec

    sets, fields, json = msgspec.msgpack.decode(data, ext_hook=lambda _, path: Path(os.fsdecode(bytes(path))))
    # The class itself names the library of the command line in its fields.
    return ParsedCompile(sets, cast("CompileArguments", SimpleNamespace(**fields)), json)
