"""Writes the tables of what --json, --progress and --control give and take, from the types that are encoded.

`python -m tests.run.report_page` writes them behind the heads of docs/report.md, documents.md and control.md.
"""

from __future__ import annotations

import ast
import inspect
import re
import types
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import msgspec
import numpy as np

from orchestrator.cli.documents import DOCUMENTS
from orchestrator.cli.events import EVENTS
from orchestrator.run.commands import COMMANDS
from orchestrator.run.records import ApiVersion, CompileReport, Hash, Nanoseconds
from tests.drivers import REPOSITORY

_FIELD = re.compile(r"^    (\w+): .*?(?:  # (.*))?$")
_ATTRIBUTE = re.compile(r"^    (\w+): ((?:.|\n(?!    \w+: ))*)", re.MULTILINE)
_NAMES: dict[Any, str] = {
    Hash: "16 hex digits",
    ApiVersion: "version",
    Nanoseconds: "seconds",
    type(None): "null",
    Path: "path",
    int: "integer",
    str: "text",
    float: "number",
    bool: "true or false",
    bytes: "base64",
    CompileReport: "[CompileReport](report.md#compilereport)",
}


@cache
def _classes(file: str) -> dict[str, str]:
    """Source of each class of a file: `inspect.getsource` parses the file again for each."""
    text = Path(file).read_text("utf-8")
    lines = text.splitlines()
    nodes = [each for each in ast.parse(text).body if isinstance(each, ast.ClassDef)]
    return {each.name: "\n".join(lines[each.lineno - 1 : each.end_lineno]) for each in nodes}


def parts_of(kind: type) -> tuple[str, dict[str, str]]:
    """The words of a class, and those of its fields: comments beside or above them, or a section of it."""
    words, _, section = (inspect.getdoc(kind) or "").partition("\nAttributes:\n")
    found: dict[str, str] = {}
    for base in filter(is_documented, kind.__bases__):
        found |= parts_of(base)[1]
    found |= {name: " ".join(text.split()) for name, text in _ATTRIBUTE.findall(section)}
    above: list[str] = []
    for line in _classes(inspect.getfile(kind))[kind.__name__].splitlines():
        field = _FIELD.match(line)
        if field and (text := " ".join([*above, field[2] or ""]).strip()):
            found[field[1]] = text
        above = [*above, line.strip("# ")] if line.startswith("    # ") else []
    return words.strip(), found


def fields_of(kind: Any) -> list[tuple[str, str, Any]]:
    """Attribute, name in the encoding, and type of each field."""
    hints = typing.get_type_hints(kind)
    if issubclass(kind, msgspec.Struct):
        return [(each.name, each.encode_name, hints[each.name]) for each in msgspec.structs.fields(kind)]
    return [(each.name, each.name, hints[each.name]) for each in attrs.fields(kind)]


def is_documented(kind: Any) -> bool:
    is_struct = inspect.isclass(kind) and issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct
    return is_struct or (inspect.isclass(kind) and attrs.has(kind))


def reachable(kind: type, seen: dict[type, None] | None = None) -> dict[type, None]:
    """All types with fields that a type's encoding holds, itself first."""
    seen = {} if seen is None else seen
    if kind not in seen:
        seen[kind] = None
        for _, _, hint in fields_of(kind):
            for each in filter(is_documented, leaves(hint)):
                reachable(each, seen)
    return seen


def leaves(hint: Any) -> Iterator[Any]:
    arguments = () if typing.get_origin(hint) is np.ndarray else typing.get_args(hint)
    if not arguments:
        yield hint
    for each in arguments:
        yield from leaves(each)


def type_text(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hasattr(origin, "__value__"):  # numpy.typing.NDArray is an alias of its own kind from numpy 2.5 on
        return type_text(origin.__value__[arguments])
    if origin is np.ndarray:
        return f"column of {np.dtype(typing.get_args(arguments[1])[0]).name}"
    if origin in (types.UnionType, typing.Union):
        kinds = [type_text(each) for each in arguments if each is not msgspec.UnsetType]
        return " or ".join(kinds) + (", or not there" if msgspec.UnsetType in arguments else "")
    if origin is typing.Literal:
        return " or ".join(f"`{getattr(each, 'value', each)}`" for each in arguments)
    if origin is typing.Annotated:
        return type_text(arguments[0])
    if origin is tuple:
        return "list of " + ", ".join(type_text(each) for each in arguments if each is not Ellipsis)
    if origin is dict:
        return f"object of {type_text(arguments[1])} by {type_text(arguments[0])}"
    if hint in _NAMES:
        return _NAMES[hint]
    if is_documented(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return " or ".join(f'"{each.value}"' for each in hint)


def section(kind: type, heading: str) -> list[str]:
    words, described = parts_of(kind)
    lines = ["", f"## {heading}", "", words, "", "| field | type | |", "|---|---|---|"]
    for name, encoded, hint in fields_of(kind):
        lines.append(f"| `{encoded}` | {type_text(hint)} | {described.get(name, '')} |")
    return lines


def headings(page: str) -> dict[type, str]:
    if page == "report":
        return {kind: kind.__name__ for kind in reachable(CompileReport)}
    roots = EVENTS if page == "control" else tuple(DOCUMENTS.values())
    seen: dict[type, None] = {CompileReport: None}  # has a page of its own
    for kind in roots:
        reachable(kind, seen)
    del seen[CompileReport]
    if page == "documents":
        return {kind: kind.__name__ for kind in seen}
    tagged: dict[type, str] = {each: f"Command `{each.__struct_config__.tag}`" for each in COMMANDS}
    tagged |= {each: f"Event `{each.__struct_config__.tag}`" for each in EVENTS}
    return tagged | {kind: kind.__name__ for kind in seen if kind not in tagged}


def page(name: str) -> str:
    """A page: what it has before its first section, and the sections of the types."""
    head = (REPOSITORY / "docs" / f"{name}.md").read_text("utf-8").partition("\n## ")[0].rstrip("\n")
    lines = [line for kind, heading in headings(name).items() for line in section(kind, heading)]
    return "\n".join([head, *lines, ""])


if __name__ == "__main__":
    for name in ("report", "documents", "control"):
        (REPOSITORY / "docs" / f"{name}.md").write_text(page(name), "utf-8")
