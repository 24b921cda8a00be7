"""Writes the pages of what --json, --progress and --control give and take, from the types that are encoded.

python -m tests.run.report_page > docs/report.md
python -m tests.run.report_page documents > docs/documents.md
python -m tests.run.report_page control > docs/control.md
"""

from __future__ import annotations

import enum
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import msgspec
import numpy as np

from orchestrator.cli.documents import DOCUMENTS
from orchestrator.cli.events import EVENTS
from orchestrator.cli.events import VERSION as EVENTS_VERSION
from orchestrator.run.commands import COMMANDS
from orchestrator.run.records import FORMAT, ApiVersion, CompileReport, Hash, Nanoseconds

HEAD = f"""# The report of `compile`

`compile --json` writes one JSON document, version {FORMAT}: the encoding of a `CompileReport`
(`orchestrator.run.records`). In Python, `decode_json(document, CompileReport)` gives the report back. New
fields may appear without a new `version`; it changes if a field changes its meaning or is removed.

A column is an array in base64 with little-endian elements: read it with
`numpy.frombuffer(base64.b64decode(text), "<u8")`. Keys are hashes of pipelines in their set, 16 hex digits.

Version 1 had no `version` field. Since then the lists `skipped` and `failed` are ordered by kind and key
instead of by place in the set, and their rows have a `status`. `version`, `pipelines`, `runs`, `stages` and
`inspected` are new, and so are some fields of `timing`, `set` and `merge`. No field was removed.

This page is made from the docstrings of the types: `python -m tests.run.report_page > docs/report.md`.
"""

DOCUMENTS_HEAD = """# The JSON of the other verbs

Each verb writes one JSON document with `--json`; its type is described here. `version` is the version of the
document. New fields may appear without a new version; it changes if a field changes its meaning or is
removed. Fields with the type *or not there* may be missing. After an error the document is another one:
[Command line](cli.md#how-every-verb-behaves). [The report](report.md) is the document of `compile`.

Hashes are 16 hex digits, versions of Vulkan are text such as `1.4.335`, times are seconds, sizes are bytes.

This page is made from the docstrings of the types:
`python -m tests.run.report_page documents > docs/documents.md`.
"""

CONTROL_HEAD = f"""# Steering a compile from another program

A launcher, an editor or a game may run `orchestrator compile` to fill a cache in the background. The compile
writes *events* about its progress. The other program sends *commands*: which pipelines come first, which are
cancelled, and how much time work may take. Both are JSON objects, one per line, version {EVENTS_VERSION}.
This writes events to descriptor 3 (the default of `--progress jsonl`):

    orchestrator compile game.foz --device radv:navi21 --quiet --progress jsonl:3 3>progress.jsonl

`--control 4` reads commands from descriptor 4; the answers are events:

    orchestrator compile game.foz --device radv:navi21 --quiet \\
      --progress jsonl:3 --control 4 3>progress.jsonl 4<commands.jsonl

A line of `commands.jsonl` is, for example, `{{"command":"promote","id":1,"pipelines":["d1fed62ec276cf7f"]}}`.
One socket may serve as both descriptors.

[steer.c](examples/steer.c) is a launcher in C, run by the tests. It pauses the compile, lets the pipelines of
one level come first, and then lets the rest go on.

**Events.** New fields and events may be added within a version; a reader must ignore those that it does not
know. A slow reader loses `progress` events, and others only if it does not read for five seconds. The compile
goes on without a reader.

**Commands.** They take effect in their order. Commands that are there when the program begins apply from the
first pipeline on. A command applies to the rest of the compile: to all targets, to later groups of the set,
and after a crash of the driver. Each is answered once, when it has taken effect. A line that is not a valid
command causes only an `error` event. When the descriptor is closed, a budget ends, because nobody could give
another one, and the compile goes on to its end. In Python, use `compile_set(...,
stop=Steering(steered=True))` or `compile_supervised`.

All pipelines begin with the same priority, the longest first; `promote` raises some of them. With
`--control`, batches take about 20 ms, so an urgent pipeline waits that long, or for one pipeline, until a
worker is free. A budget counts from the moment when pipelines can begin, after opening the device. It lets at
least one pipeline begin if nothing else is in the driver, so a pipeline that takes longer than a frame gets
its turn. After a crash of the driver, what is left of it holds for the next process; to find the culprit
needs no budget. Cancelled pipelines are not run, and do not change the exit code; the next run compiles them.

This page is made from the docstrings of the types:
`python -m tests.run.report_page control > docs/control.md`.
"""

_ATTRIBUTE = re.compile(r"^(\w+): ((?:.|\n(?!\w+: ))*)", re.MULTILINE)


def parts_of(kind: type) -> tuple[str, dict[str, str]]:
    """The words of a class before its attributes, and its attributes with theirs."""
    words, _, attributes = (inspect.getdoc(kind) or "").partition("\nAttributes:\n")
    found = _ATTRIBUTE.findall(textwrap.dedent(attributes))
    inherited: dict[str, str] = {}
    for base in kind.__bases__:
        if is_documented(base):
            inherited |= parts_of(base)[1]
    return words.strip(), inherited | {name: " ".join(text.split()) for name, text in found}


def fields_of(kind: Any) -> list[tuple[str, str, Any]]:
    """Attribute, name in the encoding, and type of each field."""
    hints = typing.get_type_hints(kind)
    if issubclass(kind, msgspec.Struct):
        return [(each.name, each.encode_name, hints[each.name]) for each in msgspec.structs.fields(kind)]
    return [(each.name, each.name, hints[each.name]) for each in attrs.fields(kind)]


def is_documented(kind: Any) -> bool:
    """Whether a type has fields that are encoded."""
    return inspect.isclass(kind) and (issubclass(kind, msgspec.Struct) or attrs.has(kind))


def reachable(kind: type, seen: dict[type, None] | None = None) -> dict[type, None]:
    """All types with fields that a type's encoding holds, itself first."""
    seen = {} if seen is None else seen
    if kind not in seen:
        seen[kind] = None
        for _, _, hint in fields_of(kind):
            for each in leaves(hint):
                if is_documented(each):
                    reachable(each, seen)
    return seen


def leaves(hint: Any) -> Iterator[Any]:
    """The types that a hint is made of."""
    arguments = () if typing.get_origin(hint) is np.ndarray else typing.get_args(hint)
    if not arguments:
        yield hint
    for each in arguments:
        yield from leaves(each)


def type_text(hint: Any) -> str:
    """A type as the page says it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hasattr(origin, "__value__"):  # numpy.typing.NDArray is an alias of its own kind from numpy 2.5 on
        return type_text(origin.__value__[arguments])
    if origin is np.ndarray:
        return f"column of {np.dtype(typing.get_args(arguments[1])[0]).name}"
    if origin in (types.UnionType, typing.Union):
        absent = any(each is msgspec.UnsetType for each in arguments)
        kinds = [type_text(each) for each in arguments if each is not msgspec.UnsetType]
        return " or ".join(kinds) + (", or not there" if absent else "")
    if origin is typing.Literal:
        return " or ".join(f"`{getattr(each, 'value', each)}`" for each in arguments)
    if origin is typing.Annotated:
        return type_text(arguments[0])
    if origin is tuple:
        several = [each for each in arguments if each is not Ellipsis]
        return "list of " + ", ".join(map(type_text, several))
    if origin is dict:
        return f"object of {type_text(arguments[1])} by {type_text(arguments[0])}"
    if hint is CompileReport:
        return "[CompileReport](report.md#compilereport)"
    if is_documented(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    if issubclass(hint, enum.Enum):
        return " or ".join(f'"{each.value}"' for each in hint)
    names = {
        Hash: "16 hex digits",
        ApiVersion: "version",
        Nanoseconds: "seconds",
        type(None): "null",
        Path: "path",
    }
    plain = {int: "integer", str: "text", float: "number", bool: "true or false", bytes: "base64"}
    return {**names, **plain}[hint]


def section(kind: type, heading: str) -> list[str]:
    """The lines about a type."""
    words, attributes = parts_of(kind)
    lines = [f"## {heading}", "", words, "", "| field | type | |", "|---|---|---|"]
    for name, encoded, hint in fields_of(kind):
        lines.append(f"| `{encoded}` | {type_text(hint)} | {attributes.get(name, '')} |")
    return [*lines, ""]


def page() -> str:
    """The page of the report of `compile`."""
    lines = [HEAD]
    for kind in reachable(CompileReport):
        lines += section(kind, kind.__name__)
    return "\n".join(lines)


def documents_page() -> str:
    """The page of the other verbs' documents."""
    seen: dict[type, None] = {CompileReport: None}  # has a page of its own
    for kind in DOCUMENTS.values():
        reachable(kind, seen)
    del seen[CompileReport]
    lines = [DOCUMENTS_HEAD]
    for kind in seen:
        lines += section(kind, kind.__name__)
    return "\n".join(lines)


def control_page() -> str:
    """The page of what a compile and a program beside it say to each other."""
    lines = [CONTROL_HEAD]
    for command in COMMANDS:
        lines += section(command, f"Command `{command.__struct_config__.tag}`")
    told: dict[type, None] = {}
    for event in EVENTS:
        lines += section(event, f"Event `{event.__struct_config__.tag}`")
        reachable(event, told)
    for kind in [each for each in told if each not in EVENTS]:
        lines += section(kind, kind.__name__)
    return "\n".join(lines)


PAGES = {"documents": documents_page, "control": control_page, "report": page}

if __name__ == "__main__":
    print(PAGES[sys.argv[1] if sys.argv[1:] else "report"](), end="")
