"""Writes docs/report.md and docs/documents.md, the pages of what --json gives, from the types that are encoded.

python -m tests.run.report_page > docs/report.md
python -m tests.run.report_page documents > docs/documents.md
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

Each verb writes one JSON document with `--json`, of the type that stands here. `version` says which one it is;
fields may be added, and one that changes its meaning or goes counts it up. A field of which it says *not there*
may be missing. An error is a document of its own: [Command line](cli.md#how-every-verb-behaves).
What `compile` writes is [the report](report.md).

Hashes are 16 hex digits, versions of Vulkan are text such as `1.4.335`, times are seconds, sizes bytes.

This page is made from the docstrings of the types: `python -m tests.run.report_page documents > docs/documents.md`.
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


if __name__ == "__main__":
    print(documents_page() if sys.argv[1:] == ["documents"] else page(), end="")
