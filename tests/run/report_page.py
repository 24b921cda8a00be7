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
from orchestrator.cli.events import COMMANDS, EVENTS
from orchestrator.cli.events import VERSION as EVENTS_VERSION
from orchestrator.run.records import FORMAT, ApiVersion, CompileReport, Hash, Nanoseconds

HEAD = f"""# The report of `compile`

`compile --json` writes one JSON document: the encoding of a `CompileReport` (`orchestrator.run.records`),
version {FORMAT}. `decode_json(document, CompileReport)` gives the report back. Fields may be added; one that
changes its meaning or goes counts up `version`.

A column is an array as base64 of little-endian elements, such as `numpy.frombuffer(base64.b64decode(text),
"<u8")`.

Version 1 did not say its version. Since then the lists `skipped` and `failed` go by kind and key instead of
by place in the set, and their rows have a `status`; `version`, `pipelines`, `runs`, `stages` and `inspected`
are new, and so are some fields of `timing`, `set` and `merge`. No key went away.

Reports of parts add up: `first + second`, or `CompileReport.total(parts)`. What a field of a sum is, is said
here.

This page is made from the docstrings of the types: `python -m tests.run.report_page > docs/report.md`.
"""

DOCUMENTS_HEAD = """# The JSON of the other verbs

Each verb writes one JSON document with `--json`, of the type that stands here. `version` says which one it
is; fields may be added, and one that changes its meaning or goes counts it up. A field of which it says
*not there* may be missing. An error is a document of its own: [Command line](cli.md#how-every-verb-behaves).
What `compile` writes is [the report](report.md).

Hashes are 16 hex digits, versions of Vulkan are text such as `1.4.335`, times are seconds, sizes bytes.

This page is made from the docstrings of the types:
`python -m tests.run.report_page documents > docs/documents.md`.
"""

CONTROL_HEAD = f"""# Steering a compile from another program

A launcher, an editor or a game may let `orchestrator compile` fill the cache beside it. It hears how far that
is, and says what comes first, what is left out, and how much time work may take. Both are JSON objects, one a
line, version {EVENTS_VERSION}:

    orchestrator compile game.foz --device radv:navi21 --quiet --progress jsonl:3 3>progress.jsonl

writes events to descriptor 3; `--progress jsonl` does, too. `--control 4` takes commands from descriptor 4,
whose answers are events:

    orchestrator compile game.foz --device radv:navi21 --quiet \\
      --progress jsonl:3 --control 4 3>progress.jsonl 4<commands.jsonl

where a line of `commands.jsonl` is such as `{{"command":"promote","id":1,"pipelines":["43210c2d62f9536c"]}}`.
A socket may be both.

[steer.c](examples/steer.c) is a launcher in C, run by the tests: it holds the compile, lets the pipelines of
one level come first, and then lets the rest go on.

**Events.** Fields and events may be added within a version, and a reader passes over what it does not know. A
reader that is slow loses `progress` and nothing else; what it does not take in five seconds is dropped. One
that goes away ends nothing.

**Commands.** They take effect in their order. What was there when the program began holds from the first
pipeline on, and what was said holds for the rest of the compile: for all targets, for the groups of the set
that come later, and after a driver ended its process. Each is answered once, when it has taken effect. A line
that is no command is an `error` event, and nothing else comes of it. When the descriptor is closed a budget
is lifted, since nobody would give another one, and the compile goes on to its end. The same may be said in
Python: `compile_set(..., stop=Steering(steered=True))` and `compile_supervised`.

All pipelines begin with one urgency, the longest first; `promote` lifts some above the others. Batches are of
about 20 ms where there is a `--control`: that, or one pipeline, is what an urgent one waits for a worker. A
budget counts from when pipelines can begin: opening the device is not of it. It lets at least one pipeline
begin where nothing else is in the driver, so that one that takes longer than a frame gets its turn. What was
cancelled is not run, and the exit code is 0 if all else is well; the next run compiles it.

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
