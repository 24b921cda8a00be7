"""Writes the lists of what --json, --progress and --control give and take, from the types that are encoded.

`python -m tests.run.report_page` writes them behind the heads of docs/report.md, documents.md and control.md.
"""

from __future__ import annotations

import ast
import inspect
import re
import types
import typing
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import msgspec
import numpy as np

from orchestrator.cli import documents
from orchestrator.cli.documents import Document
from orchestrator.cli.events import EVENTS, Event
from orchestrator.run.commands import COMMANDS
from orchestrator.run.records import ApiVersion, CompileReport, Hash, Nanoseconds, Record
from tests.drivers import REPOSITORY

DOCUMENTS = [
    each for name, each in vars(documents).items() if name.endswith("Document") and each is not Document
]
"""The type of each verb's document, except that of `compile`; its first words name the verb."""

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
        return str(hint.__name__)
    return " or ".join(f'"{each.value}"' for each in hint)


@attrs.frozen
class Sections:
    """The sections of a page: a type that one field alone has is described below that field.

    What another page describes is named by a link to it.
    """

    headings: dict[type, str]
    elsewhere: frozenset[type]

    @classmethod
    def of(cls, page: str) -> Sections:
        """Those of a page."""
        report = reachable(CompileReport)
        if page == "report":
            return cls(_sections({CompileReport: "CompileReport"}, report), frozenset())
        roots = {kind: kind.__name__ for kind in DOCUMENTS}
        if page == "control":
            roots = {each: f"Command `{each.__struct_config__.tag}`" for each in COMMANDS}
            roots |= {each: f"Event `{each.__struct_config__.tag}`" for each in EVENTS}
        kinds: dict[type, None] = {}
        for kind in roots:
            reachable(kind, kinds)
        return cls(_sections(roots, {each: None for each in kinds if each not in report}), frozenset(report))

    def lines(self) -> Iterator[str]:
        """All sections."""
        for kind, heading in self.headings.items():
            yield from ("", f"## {heading}", "", parts_of(kind)[0], "", *self._fields(kind, ""))

    def _fields(self, kind: type, indent: str) -> Iterator[str]:
        described, inherited = parts_of(kind)[1], set[str]()
        for base in kind.__bases__:
            if base in self.elsewhere or (base in self.headings and base not in _ROOTS):
                inherited |= {name for name, _, _ in fields_of(base)}
                yield f"{indent}- All fields of {self._link(base)}."
        for name, encoded, hint in fields_of(kind):
            if name in inherited or (name == "version" and issubclass(kind, Document)):
                continue
            text = type_text(hint)
            nested = [each for each in leaves(hint) if is_documented(each)]
            below = [each for each in nested if each not in self.headings and each not in self.elsewhere]
            for each in nested:
                shown = (
                    f"object{'s' if text.startswith('list of') else ''}"
                    if each in below
                    else self._link(each)
                )
                text = re.sub(rf"\b{each.__name__}\b", shown.replace("\\", ""), text)
            words = described.get(name, "") or (parts_of(below[0])[0].split("\n")[0] if below else "")
            yield f"{indent}- `{encoded}`: {text}{f'. {words}' if words else ''}"
            for each in below:
                yield from self._fields(each, indent + "    ")

    def _link(self, kind: type) -> str:
        anchor = self.headings.get(kind, kind.__name__).lower().replace("`", "").replace(" ", "-")
        if kind not in self.elsewhere:
            return f"[{kind.__name__}](#{anchor})"
        own = Sections.of("report").headings
        return f"[{kind.__name__}](report.md{f'#{anchor}' if kind in own else ''})"


_ROOTS = frozenset({Document, Record, Event})


def _sections(roots: dict[type, str], kinds: dict[type, None]) -> dict[type, str]:
    """The types with a section of their own: the roots, and what several fields or types have in common."""
    used: Counter[type] = Counter()
    for kind in kinds:
        used.update(
            each for _, _, hint in fields_of(kind) for each in set(leaves(hint)) if is_documented(each)
        )
        used.update(dict.fromkeys(kind.__bases__, 2))
    several = {kind: kind.__name__ for kind in kinds if used[kind] > 1 and kind not in _ROOTS}
    return roots | {kind: name for kind, name in several.items() if kind not in roots}


def page(name: str) -> str:
    """A page: what it has before its first section, and the sections of the types."""
    head = (REPOSITORY / "docs" / f"{name}.md").read_text("utf-8").partition("\n## ")[0].rstrip("\n")
    return "\n".join([head, *Sections.of(name).lines(), ""])


if __name__ == "__main__":
    for name in ("report", "documents", "control"):
        (REPOSITORY / "docs" / f"{name}.md").write_text(page(name), "utf-8")
