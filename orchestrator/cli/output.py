"""Where and how the command line writes: results to stdout, everything else to stderr.

Guarantees:
- With --json stdout holds one JSON document and nothing else. Its names are those of the values (Vulkan's
  words in snake_case), keys of pipelines are 16 hex digits, versions of the API are text, times are seconds.
- Where a stream is no terminal, or TERM says dumb, no control code is written to it; NO_COLOR takes colours
  and styles away and leaves the live display.
- Words from archives, drivers and file names are written as text: never as markup, and so that they cannot
  move a terminal's cursor.
- A reader that goes away raises BrokenPipeError, which `main` turns into a quiet end.

Assumptions: loaded with every verb, for its help too, and where there is nothing but a document, so it
imports rich when something is shown.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.cli.streams import display, is_plain

if TYPE_CHECKING:
    from msgspec import Struct
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from orchestrator.devices.device import DeviceIdentity
    from orchestrator.devices.image import PipelineKind
    from orchestrator.run.records import DamageRecord, DeviceRecord


def printable(text: str) -> str:
    """Text with everything that is not printable escaped; line breaks too."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def path_text(path: str | os.PathLike[str]) -> str:
    """A path as text that UTF-8 can carry: bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


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
        """Take the process's streams as they are now."""
        self.json = json
        self._streams = sys.stdout, sys.stderr

    @cached_property
    def out(self) -> Console:
        """Results for people; silent with --json and --quiet."""
        from orchestrator.cli.console import make_console

        console = make_console(self._streams[0])
        console.quiet = self.json or display.quiet
        return console

    @cached_property
    def err(self) -> Console:
        """Progress and messages."""
        from orchestrator.cli.console import make_console

        return make_console(self._streams[1])

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
        self._write(self.err, _joined(parts))

    @staticmethod
    def _write(console: Console, text: Text, indent: int | None = None) -> None:
        from orchestrator.cli.console import write_text

        write_text(console, text, indent)


def write_json(value: dict[str, Any] | bytes) -> None:
    """Write a document to stdout, indented."""
    import msgspec

    encoded = value if isinstance(value, bytes) else msgspec.json.encode(value)
    text = msgspec.json.format(encoded, indent=2).decode()
    if not str(sys.stdout.encoding).lower().startswith("utf"):
        text = re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], text)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def styled(text: object, style: Style = "") -> Text:
    """Words with a style; what is not printable is escaped."""
    from rich.text import Text

    return Text(printable(str(text)), style=style)


def table(*columns: str, numbers: Iterable[int] = (), title: str | None = None) -> Table:
    """An empty table.

    Args:
        columns: Headings.
        numbers: Which columns hold numbers and stand to the right.
        title: A line above it.
    """
    from rich import box
    from rich.table import Table

    right = set(numbers)
    made = Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="head",
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
