"""Where and how the command line writes: results to stdout, everything else to stderr.

Guarantees: with --json stdout holds one JSON document and nothing else. Where a stream is no terminal, no
control code is written to it. Words from archives, drivers and file names cannot move a terminal's cursor. A
stderr that cannot be written costs its text alone; a stdout that cannot be written raises OutputError, once;
where a reader went away, BrokenPipeError is raised. No text is too much for the encoding of a stream.
Assumptions: one call of the program at a time in a process. rich is loaded when something is shown.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, Literal, TextIO, TypeVar, cast

import msgspec

from orchestrator.errors import OrchestratorError
from orchestrator.process import flush_c_streams

if TYPE_CHECKING:
    from msgspec import Struct
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from orchestrator.devices.device import DeviceIdentity
    from orchestrator.run.records import DamageRecord, DeviceRecord, Progress
    from orchestrator.sets.archive.record_proof import Verified

_T = TypeVar("_T")

_STDOUT, _STDERR = 1, 2
_SLOW_S = 2.0
_KEYS_SHOWN = 3
_NAMES_SHOWN = 4
COLORS = ("auto", "always", "never")
OPTIONS = {
    "--color": "When to colour the output.",
    "--no-progress": "Show no progress.",
    "--verbose": "Show lists in full.",
    "--quiet": "Show nothing but errors.",
}
"""The long names, with what completions say of them."""


class Display:
    """What the user said of the output, and the command line itself."""

    color = "auto"  # colours a terminal, unless NO_COLOR is set
    progress = True
    verbose = False  # lists that are cut are shown in full
    quiet = False  # nothing but errors is shown
    command: tuple[str, ...] = ()


display = Display()
"""That of this call."""


def take_display(tokens: Sequence[str]) -> list[str]:
    """Take these options out of the command line, and set `display` anew."""
    display.color, display.progress, display.verbose, display.quiet = "auto", True, False, False
    display.command = tuple(tokens)
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


def _is_plain(stream: IO[str]) -> bool:
    return not stream.isatty() or os.environ.get("TERM", "").lower() in ("dumb", "unknown")


class OutputError(OrchestratorError):
    """stdout, or a file that is written beside the work, cannot be written, such as on a full disk."""


class Stream:
    """stdout, or stderr, which drops what cannot be written.

    Attributes:
        written: Whether anything was written to it.
        is_closed: Whether the caller closed it: then what is shown leads nowhere.
    """

    written = False

    def __init__(self, inner: TextIO, *, drops: bool = False, is_closed: bool = False) -> None:
        self._inner, self._drops, self.is_closed = inner, drops, is_closed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, text: str) -> int:
        """Write text."""
        self.written = self.written or bool(text)
        encoding = self._inner.encoding or "utf-8"
        self._try(lambda: self._inner.write(text.encode(encoding, "backslashreplace").decode(encoding)))
        return len(text)

    def flush(self) -> None:
        """Write what is held back; raises as `write` does."""
        self._try(self._inner.flush)

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (OSError, ValueError) as error:
            if isinstance(error, BrokenPipeError) and not self._drops:
                raise
            discard(self._inner)
            if not self._drops:
                raise OutputError(f"stdout cannot be written: {getattr(error, 'strerror', error)}") from error


@contextmanager
def own_streams(*, json: bool = False) -> Iterator[Stream]:
    """stdout and stderr as above, for the block; for one that the caller closed (`>&-`), one to nowhere."""
    before = sys.stdout, sys.stderr
    out, err = (
        open(os.devnull, "w", encoding="utf-8") if each is None else each  # noqa: SIM115, PTH123
        for each in before
    )
    with _apart(out) if json else nullcontext(out) as inner:
        results = Stream(inner, is_closed=before[0] is None)
        sys.stdout, sys.stderr = cast("TextIO", results), cast("TextIO", Stream(err, drops=True))
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


def names_text(names: Sequence[str]) -> str:
    """Names of targets, or the first of them and their number where they are many."""
    most = len(names) if display.verbose else _NAMES_SHOWN
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left:,} more" if left > 0 else "")


def counts_text(progress: Progress) -> str:
    """Compiled, hits, skipped and failed."""
    return (
        f"{progress.compiled:,} compiled · {progress.hits:,} cache hits · {progress.skipped:,} skipped · "
        f"{progress.failed:,} failed"
    )


def to_go_text(seconds: float) -> str:
    """A time to go, which is an estimate: ``12 s``, ``4 min 05 s``, ``12 min``, ``2 h 20 min``."""
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = round(whole / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def share_text(progress: Progress) -> str:
    """The share of the time that is over, and the time to go; "" where all is done."""
    if progress.done >= progress.total:
        return ""
    if progress.eta_s is None:
        return "time to go not known yet"
    over = progress.elapsed_s / max(progress.elapsed_s + progress.eta_s, 1e-9)
    return f"{min(99, int(100 * over))} %, {to_go_text(progress.eta_s)} to go"


def slow_text(progress: Progress) -> str:
    """What has been in the driver the longest, once that is long; "" before."""
    slow = progress.slowest
    if slow is None or slow.age_s < _SLOW_S:
        return ""
    among = f" (one of {slow.pipelines})" if slow.pipelines > 1 else ""
    kind = slow.kind.value.replace("_", " ")
    return f"longest in the driver: {kind} {key_text(slow.key)}{among}, {seconds_text(slow.age_s)}"


Style = Literal["", "good", "bad", "warn", "dim", "head"]


class Output:
    """Both streams of one run of the program; `json` if stdout carries a JSON document."""

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
        return display.progress and not _is_plain(self._streams[1])

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
        """Write a line of results; it is not folded, so that it can be searched and copied."""
        self.out.print(_joined(parts), soft_wrap=True)

    def show(self, made: Table) -> None:
        """Write a table, from `table`."""
        from orchestrator.cli.console import write_table

        write_table(self.out, made)

    def facts(self, pairs: Iterable[tuple[str, str | Text]]) -> None:
        """Write names and values, one pair a line."""
        rows = list(pairs)
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.line(styled(f"{name:{width}}  ", "dim"), value)

    def message(self, *parts: str | Text) -> None:
        """Write a line to stderr."""
        self.err.print(_joined(parts), soft_wrap=True)

    def problem(self, *parts: str | Text) -> None:
        """Write a line that says what went wrong: among the results, or with --quiet to stderr."""
        (self.message if display.quiet and not self.json else self.line)(*parts)

    def some(self, items: Sequence[_T], usual: int, show: Callable[[_T], object], noun: str = "") -> None:
        """Write what `show` says of items, or of the first of them and how many more there are."""
        for each in items[: self.most(usual)]:
            show(each)
        if (left := len(items) - usual) > 0 and self.most(1):
            more = plural(left, f"more {noun}") if noun else f"{left:,} more"
            self.line(styled(f"  ... and {more}, see --verbose", "dim"))

    def keys(self, keys: Sequence[int]) -> str:
        """Keys of pipelines, or the first of them and how many more there are."""
        shown = keys[: self.most(_KEYS_SHOWN)]
        left = len(keys) - len(shown)
        return ", ".join(map(key_text, shown)) + (f", ... {left:,} more" if left else "")

    def verdict(self, rule: str, message: str, *, broken: bool) -> None:
        """Write what became of a rule of `--fail-on`; of a broken one also with --quiet."""
        words = styled("broken", "bad") if broken else styled("kept  ", "good")
        (self.problem if broken else self.line)(words, f"  {rule}: {message}")


def console_on(stream: IO[str]) -> Console:
    """A console on a stream, as plain as the stream asks for, and coloured as the user said."""
    from orchestrator.cli.console import make_console

    return make_console(stream, display.color, plain=_is_plain(stream))


def write_json(value: dict[str, Any] | bytes) -> None:
    """Write a document to stdout, indented."""
    encoded = value if isinstance(value, bytes) else msgspec.json.encode(value)
    write_document(msgspec.json.format(encoded, indent=2))


def write_document(encoded: bytes) -> None:
    """Write a document to stdout; what the stream lacks or is not printable is escaped."""
    if getattr(sys.stdout, "is_closed", False):
        raise OutputError("stdout cannot be written: it is closed")
    is_utf = str(sys.stdout.encoding).lower().startswith("utf")

    def written(found: re.Match[str]) -> str:
        each = found[0]
        return each if is_utf and each.isprintable() else json.dumps(each)[1:-1]

    text = encoded.decode()
    sys.stdout.write(text if text.isascii() else re.sub(r"[^\x00-\x7f]", written, text))
    sys.stdout.write("\n")
    sys.stdout.flush()


def styled(text: object, style: Style = "") -> Text:
    """Words with a style; what is not printable is escaped."""
    from rich.text import Text

    return Text(printable(str(text)), style=style)


def table(*columns: str, numbers: Iterable[int] = ()) -> Table:
    """An empty table; `numbers` are the columns that stand to the right."""
    from orchestrator.cli.console import make_table

    return make_table(columns, numbers)


def _joined(parts: Sequence[str | Text]) -> Text:
    from rich.text import Text

    return Text.assemble(*(each if isinstance(each, Text) else styled(each) for each in parts))


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
