"""The command line of `compile`, parsed in a process of its own beside the imports of this one.

    this process ── fork ──> cyclopts, the verb's options, the words ──> arguments, by a pipe ──┐
         └── numpy, trio and what else compiles ────────────────────────────────────────────> work

To import and ask the library of the command line takes as long as to import what compiles, and neither needs
the other. The other process says nothing to anybody else and waits for nothing, so it ends within a tenth of
a second also where this one is killed.

Guarantees: where it does not give arguments, whatever the reason (they are wrong, help is asked for, it was
killed), there are none, and the command line is parsed here as if nothing had been.
Assumptions: this process is the program's own and has one thread.
"""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, Self, cast

from orchestrator.cli.streams import take_display
from orchestrator.process import end_process, may_fork

if TYPE_CHECKING:
    from orchestrator.cli.compile_arguments import CompileArguments

_VERB: Final = "compile"
_ENDS_AT_ONCE: Final = frozenset({"--help", "-h", "--version"})
_NEEDED: Final = (
    "msgspec",
    "numpy",
    "trio",
    "orchestrator.run.options",
    "orchestrator.run.compile_service",
    "orchestrator.cli.compiling",
)
"""What a compile imports before it starts a process, in parts between which somebody looks whether there will
be one."""
_NEEDED_LATER: Final = "orchestrator.run.supervisor"
"""What it imports beside that process, unless it has to wait anyway."""
_READ_SIZE: Final = 1 << 16
_PATH: Final = 1  # MessagePack has types of one's own, by number


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
        """What was parsed; imports what a compile needs meanwhile. None where there is nothing."""
        os.set_blocking(self._answer, False)
        with _without_searching():
            for name in _NEEDED:
                if self._has_ended() and not self._held:
                    break
                importlib.import_module(name)
        if not self._has_ended():
            importlib.import_module(_NEEDED_LATER)
        os.set_blocking(self._answer, True)
        self._has_ended()  # it waits in the read
        os.close(self._answer)
        _, status = os.waitpid(self._process_id, 0)
        return None if status or not self._held else _decode(self._held)

    def _has_ended(self) -> bool:
        """Whether all that comes is held; reads what is there."""
        with suppress(BlockingIOError):
            while data := os.read(self._answer, _READ_SIZE):
                self._held += data
            return True
        return False


@contextmanager
def _without_searching() -> Iterator[None]:
    """Say at once what trio asks when it is imported: which library names threads.

    Python would start a program for it that lists all libraries of the system. What is said is a name of the
    GNU C library; where there is no such library, threads have no names.
    """
    import ctypes.util

    search = ctypes.util.find_library
    ctypes.util.find_library = lambda name: "libpthread.so.0" if name == "pthread" else search(name)
    try:
        yield
    finally:
        ctypes.util.find_library = search


def _parse(tokens: Sequence[str], told: int) -> NoReturn:
    """Be the process that parses."""
    code = 1
    try:
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if callable(signal.getsignal(each)):
                signal.signal(each, signal.SIG_DFL)
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
