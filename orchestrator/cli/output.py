"""Where and how the command line writes: results to stdout, everything else to stderr.

How it looks whatever the verb (colours, progress, how much of a list) is said once a call, before or behind
the verb.

Guarantees:
- With --json stdout holds one JSON document and nothing else. Its names are those of the values (Vulkan's
  words in snake_case), keys of pipelines are 16 hex digits, versions of the API are text, times are seconds.
- Where a stream is no terminal, or TERM says dumb, no control code is written to it; NO_COLOR takes colours
  and styles away and leaves the live display.
- Words from archives, drivers and file names are written as text: never as markup, and so that they cannot
  move a terminal's cursor.
- A stderr that cannot be written (a full disk) costs its text and nothing else. A stdout that cannot be
  written raises OutputError, once; a reader that went away raises BrokenPipeError, which `main` turns into a
  quiet end. What a stream could not write is dropped, so that nothing tries again at the end of the process.
  No text is too much for the encoding of a stream.

Assumptions: one call of the program at a time in a process. Loaded with every verb, for its help too, and
where there is nothing but a document, so it imports rich when something is shown.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, Literal, TextIO, cast

from orchestrator.errors import OrchestratorError
from orchestrator.process import flush_c_streams

if TYPE_CHECKING:
    from msgspec import Struct
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from orchestrator.devices.device import DeviceIdentity
    from orchestrator.devices.image import PipelineKind
    from orchestrator.run.records import DamageRecord, DeviceRecord
    from orchestrator.sets.archive.record_proof import Verified

_STDOUT, _STDERR = 1, 2
COLORS = ("auto", "always", "never")
OPTIONS = {
    "--color": "When to colour the output.",
    "--no-progress": "Show no progress.",
    "--verbose": "Show lists in full.",
    "--quiet": "Show nothing but errors.",
}
"""The long names, with what completions say of them."""


class Display:
    """What the user said.

    Attributes:
        color: `auto` colours a terminal, unless NO_COLOR is set.
        progress: Whether progress is shown.
        verbose: Whether lists that are cut are shown in full.
        quiet: Whether nothing but errors is shown.
    """

    color = "auto"
    progress = True
    verbose = False
    quiet = False


display = Display()
"""That of this call."""


def take_display(tokens: Sequence[str]) -> list[str]:
    """Take these options out of the command line, and set `display` anew.

    Raises:
        ValueError: `--color` has no value, or another one.
    """
    display.color, display.progress, display.verbose, display.quiet = "auto", True, False, False
    left: list[str] = []
    rest = iter(tokens)
    for token in rest:
        name, equals, value = token.partition("=")
        if name in ("--color", "--colour"):
            display.color = value if equals else next(rest, "")
            if display.color not in COLORS:
                raise ValueError(f"--color {display.color!r}: expected is one of {', '.join(COLORS)}")
        elif token == "--no-progress":
            display.progress = False
        elif token in ("-v", "--verbose"):
            display.verbose = True
        elif token in ("-q", "--quiet"):
            display.progress, display.quiet = False, True
        else:
            left.append(token)
            if token == "--":
                break
    return [*left, *rest]


def is_plain(stream: IO[str]) -> bool:
    """Whether a stream can show no line that changes."""
    return not stream.isatty() or os.environ.get("TERM", "").lower() in ("dumb", "unknown")


class OutputError(OrchestratorError):
    """stdout, or a file that is written beside the work, cannot be written, such as on a full disk."""


class _Stream:
    def __init__(self, inner: TextIO) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._inner)

    def _put(self, text: str) -> int:
        try:
            return self._inner.write(text)
        except UnicodeEncodeError as error:
            known = error.encoding
            return self._inner.write(text.encode(known, "backslashreplace").decode(known))


class Results(_Stream):
    """stdout.

    Attributes:
        written: Whether anything was written to it.
        is_closed: Whether the caller closed it: then what is shown leads nowhere.
    """

    written = False
    is_closed = False

    def write(self, text: str) -> int:
        """Write text.

        Raises:
            OutputError: It cannot be written.
            BrokenPipeError: Its reader went away.
        """
        self.written = self.written or bool(text)
        self._do(lambda: self._put(text))
        return len(text)

    def flush(self) -> None:
        """Write what is held back; raises as `write` does."""
        self._do(self._inner.flush)

    def _do(self, call: Callable[[], object]) -> None:
        try:
            call()
        except BrokenPipeError:
            raise
        except OSError as error:
            discard(self._inner)
            raise OutputError(f"stdout cannot be written: {error.strerror or error}") from error


class Messages(_Stream):
    """stderr: what cannot be written is dropped."""

    def write(self, text: str) -> int:
        """Write text, or drop it."""
        try:
            return self._put(text)
        except (OSError, ValueError):
            discard(self._inner)
            return len(text)

    def flush(self) -> None:
        """Write what is held back, or drop it."""
        try:
            self._inner.flush()
        except (OSError, ValueError):
            discard(self._inner)


@contextmanager
def own_streams(*, json: bool = False) -> Iterator[Results]:
    """stdout and stderr as above, for the block; for one that the caller closed (`>&-`), one to nowhere."""
    before = sys.stdout, sys.stderr
    out, err = (
        open(os.devnull, "w", encoding="utf-8") if each is None else each  # noqa: SIM115, PTH123
        for each in before
    )
    with _apart(out) if json else nullcontext(out) as inner:
        results = Results(inner)
        results.is_closed = before[0] is None
        sys.stdout, sys.stderr = cast("TextIO", results), cast("TextIO", Messages(err))
        try:
            yield results
        finally:
            sys.stdout, sys.stderr = out, err


@contextmanager
def _apart(stream: TextIO) -> Iterator[TextIO]:
    # What C libraries print to stdout goes to stderr: drivers and layers do, the validation layer by default.
    try:
        is_stdout = stream.fileno() == _STDOUT
    except (OSError, ValueError):
        is_stdout = False  # it has no descriptor: in this process another one stands for it
    if not is_stdout:
        yield stream
        return
    stream.flush()
    with open(os.dup(_STDOUT), "w", encoding=stream.encoding, errors=stream.errors) as own:  # noqa: PTH123
        os.dup2(_STDERR, _STDOUT)
        try:
            yield own
        finally:
            flush_c_streams()
            os.dup2(own.fileno(), _STDOUT)


def discard(stream: TextIO) -> None:
    """Let a stream's descriptor lead nowhere: what it holds back must go somewhere when the process ends."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return  # it has none
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, descriptor)
    os.close(devnull)


def printable(text: str) -> str:
    """Text with everything that is not printable escaped; line breaks too."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def path_text(path: str | os.PathLike[str]) -> str:
    """A path as text that UTF-8 can carry: bytes that are not UTF-8 are escaped."""
    # Not os.fsencode: a name that a record brings need not fit the encoding of this machine's file system.
    return os.fspath(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def byte_text(count: int) -> str:
    """A number of bytes, such as ``1.4 MiB``."""
    if abs(count) < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if abs(size) < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def seconds_text(seconds: float) -> str:
    """A time, such as ``12.3 ms`` or ``4 min 05 s``."""
    size = abs(seconds)
    if size >= 3600:
        minutes = round(seconds / 60)
        return f"{minutes // 60} h {minutes % 60:02} min"
    if size >= 99.95:
        whole = round(seconds)
        return f"{whole // 60} min {whole % 60:02} s"
    if size >= 0.9995:
        return f"{seconds:.2f} s"
    if size >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.0f} µs"


def key_text(key: int) -> str:
    """A hash of a set, as archives and other programs write it: 16 hex digits."""
    return f"{key:016x}"


def version_text(version: int) -> str:
    """A Vulkan version number (VK_MAKE_API_VERSION), such as ``1.4.335``."""
    return f"{version >> 22 & 0x7F}.{version >> 12 & 0x3FF}.{version & 0xFFF}"


def driver_text(device: DeviceIdentity | DeviceRecord) -> str:
    """A driver's name and what it says of itself; "" where it says nothing."""
    return " ".join(each for each in (device.driver_name, device.driver_info) if each)


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun: ``1 pipeline``, ``2 pipelines``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


Style = Literal["", "good", "bad", "warn", "dim", "head"]


class Output:
    """Both streams of one run of the program.

    Attributes:
        json: Whether stdout carries a JSON document.
    """

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self._streams = sys.stdout, sys.stderr

    @cached_property
    def out(self) -> Console:
        """Results for people; silent with --json and --quiet."""
        console = console_on(self._streams[0])
        console.quiet = self.json or display.quiet
        return console

    @cached_property
    def err(self) -> Console:
        """Progress and messages."""
        return console_on(self._streams[1])

    @property
    def live(self) -> bool:
        """Whether stderr can show a line that changes, and shall."""
        return display.progress and not is_plain(self._streams[1])

    @property
    def tells(self) -> bool:
        """Whether lines say how far it is, where no line can change."""
        return not self.json and display.progress

    def most(self, count: int) -> int | None:
        """How much of a list is shown where so many are usual: all with --verbose (None)."""
        return None if display.verbose else count

    def document(self, make: Callable[[], Struct]) -> None:
        """Write the JSON document that a function makes; does nothing without --json."""
        if self.json:
            from orchestrator.run.records import encode_json

            write_json(encode_json(make()))

    def line(self, *parts: str | Text) -> None:
        """Write a line of results; off a terminal it is not folded, so that it can be searched."""
        self._write(self.out, _joined(parts))

    def verbatim(self, text: str) -> None:
        """Write a line as it is: our own, for another program."""
        from rich.text import Text

        self.out.print(Text(text), soft_wrap=True)

    def show(self, made: Table, *, keys: int = 1) -> None:
        """Write a table; one that is wider than the terminal becomes several, so that no number is cut.

        Args:
            made: From `table`.
            keys: Its first columns, which tell its rows apart and stand in each part.
        """
        from orchestrator.cli.console import parts_of

        for number, part in enumerate(parts_of(made, self.out, keys)):
            if number:
                self.out.print()
            self.out.print(part)

    def facts(self, pairs: Iterable[tuple[str, str | Text]]) -> None:
        """Write names and values, one pair a line."""
        rows = list(pairs)
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            label = styled(f"{name:{width}}  ", "dim")
            self._write(self.out, _joined((label, value)), indent=width + 2)

    def message(self, *parts: str | Text) -> None:
        """Write a line to stderr."""
        stream = self._streams[1]
        if stream.isatty() or not all(isinstance(each, str) for each in parts):
            self._write(self.err, _joined(parts))
        else:  # neither colored nor folded, so nothing is loaded for it
            stream.write("".join(printable(str(each)) for each in parts) + "\n")
            stream.flush()

    def problem(self, *parts: str | Text) -> None:
        """Write a line that says what went wrong: among the results, or with --quiet to stderr."""
        (self.message if display.quiet and not self.json else self.line)(*parts)

    @staticmethod
    def _write(console: Console, text: Text, indent: int | None = None) -> None:
        from orchestrator.cli.console import write_text

        write_text(console, text, indent)


def console_on(stream: IO[str]) -> Console:
    """A console on a stream, as plain as the stream asks for, and coloured as the user said."""
    from orchestrator.cli.console import make_console

    return make_console(stream, display.color, plain=is_plain(stream))


def write_json(value: dict[str, Any] | bytes) -> None:
    """Write a document to stdout, indented."""
    import msgspec

    encoded = value if isinstance(value, bytes) else msgspec.json.encode(value)
    write_document([msgspec.json.format(encoded, indent=2)])


def write_document(parts: Iterable[bytes]) -> None:
    """Write a document to stdout, in parts; what the stream lacks or is not printable is escaped.

    Raises:
        OutputError: stdout is closed, or cannot be written.
    """
    if getattr(sys.stdout, "is_closed", False):
        raise OutputError("stdout cannot be written: it is closed")
    is_utf = str(sys.stdout.encoding).lower().startswith("utf")

    def written(found: re.Match[str]) -> str:
        import json  # few documents need it

        each = found[0]
        return each if is_utf and each.isprintable() else json.dumps(each)[1:-1]

    for part in (*parts, b"\n"):
        text = part.decode()
        sys.stdout.write(text if text.isascii() else re.sub(r"[^\x00-\x7f]", written, text))
    sys.stdout.flush()


def styled(text: object, style: Style = "") -> Text:
    """Words with a style; what is not printable is escaped."""
    from rich.text import Text

    return Text(printable(str(text)), style=style)


def table(*columns: str, numbers: Iterable[int] = ()) -> Table:
    """An empty table; `numbers` are the columns that stand to the right."""
    from rich import box
    from rich.table import Table

    right = set(numbers)
    made = Table(
        box=box.SIMPLE_HEAD,
        header_style="head",
        pad_edge=False,
        show_edge=False,
    )
    for number, heading in enumerate(columns):
        # A number that is folded is another one: words give way first, then the terminal folds the whole
        # line.
        number_like = number in right
        made.add_column(
            heading, justify="right" if number_like else "left", overflow="fold", no_wrap=number_like
        )
    return made


def _joined(parts: Sequence[str | Text]) -> Text:
    from rich.text import Text

    return Text.assemble(*(each if isinstance(each, Text) else styled(each) for each in parts))


def counts_by_kind(counts: Mapping[PipelineKind, int]) -> dict[PipelineKind, int]:
    """Pipelines by kind; every kind has an entry."""
    from orchestrator.devices.image import PipelineKind

    return {kind: counts.get(kind, 0) for kind in PipelineKind}


def not_checked_text(found: Verified) -> str:
    """How many records the rules of today do not prove, and the first of them."""
    (tag, key), count = found.not_checked[0], len(found.not_checked)
    more = f" and {count - 1:,} more" if count > 1 else ""
    return f"{plural(count, 'key')} not checked: {tag_name(tag)} {key_text(key)}{more}"


def damage_text(damage: DamageRecord) -> str:
    """Where something in a set is damaged, what it is, and why."""
    offset = "" if damage.offset is None else f"at byte {damage.offset}"
    key = "" if damage.key is None else key_text(damage.key)
    place = " ".join(each for each in (offset, damage.tag, key) if each)
    return f"{place}: {damage.reason}" if place else damage.reason


def tag_name(tag: int) -> str:
    """Name of a record tag, such as ``shader_module``; its number where it is not known."""
    from orchestrator.sets.records import RecordTag

    try:
        return RecordTag(tag).name.lower()
    except ValueError:
        return str(tag)
