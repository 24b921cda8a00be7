"""Requirement expressions of the registry: names joined by "+" (and), "," (or) and parentheses. Pure.

As vk.xml defines them, both operators bind equally and from the left. The tables hold the normal form, with
parentheses wherever the operators mix, so that it means the same under any precedence. Every function raises
ValueError for a malformed expression.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

import msgspec

_TOKEN = re.compile(r"\s*(?:([A-Za-z_][A-Za-z0-9_:]*)|([+,()]))")


class _Operation(msgspec.Struct, frozen=True):
    operator: str
    operands: tuple[_Operation | str, ...]


def evaluate(expression: str, provides: Callable[[str], bool]) -> bool:
    """Whether an expression, such as "VK_VERSION_1_3,VK_KHR_dynamic_rendering", holds; "" always holds.

    `provides` tells whether a version, an extension, or a feature
    ("VkPhysicalDeviceVulkan12Features::descriptorIndexing") is available.
    """
    if not expression:
        return True
    if expression.isascii() and expression.isidentifier():  # most are one name; a device asks for hundreds
        return provides(expression)
    return _holds(_parse(expression), provides)


def names(expression: str) -> tuple[str, ...]:
    """The names in an expression, in order, each once; none for ""."""
    if not expression:
        return ()
    return tuple(dict.fromkeys(_names(_parse(expression))))


def lacking(expression: str, provides: Callable[[str], bool]) -> tuple[str, ...]:
    """The names without which an expression does not hold, each once; none where it holds.

    All alternatives of what does not hold are named, and none of what does.
    """
    return tuple(dict.fromkeys(_lacking(_parse(expression), provides))) if expression else ()


def normal_form(expression: str) -> str:
    """The same expression with parentheses exactly where the operators mix; "" stays ""."""
    return _text(_parse(expression)) if expression else ""


def any_of(alternatives: Iterable[str]) -> str:
    """The normal form of "one of these"; "" if one of them always holds, or there are none."""
    parsed = [_parse(each) if each else None for each in alternatives]
    known = [each for each in parsed if each is not None]
    if not known or len(known) < len(parsed):
        return ""
    return _text(_join(",", known))


def all_of(conditions: Iterable[str]) -> str:
    """The normal form of "all of these"; "" where all of them always hold."""
    known = [_parse(each) for each in conditions if each]
    return _text(_join("+", known)) if known else ""


def _join(operator: str, operands: Iterable[_Operation | str]) -> _Operation | str:
    flat: dict[_Operation | str, None] = {}  # keeps the order and drops repetitions
    for each in operands:
        if isinstance(each, _Operation) and each.operator == operator:
            flat.update(dict.fromkeys(each.operands))
        else:
            flat[each] = None
    parts = tuple(flat)
    return parts[0] if len(parts) == 1 else _Operation(operator, parts)


def _holds(node: _Operation | str, provides: Callable[[str], bool]) -> bool:
    if isinstance(node, str):
        return provides(node)
    combine = all if node.operator == "+" else any
    return combine(_holds(each, provides) for each in node.operands)


def _names(node: _Operation | str) -> list[str]:
    if isinstance(node, str):
        return [node]
    return [name for each in node.operands for name in _names(each)]


def _lacking(node: _Operation | str, provides: Callable[[str], bool]) -> list[str]:
    if _holds(node, provides):
        return []
    if isinstance(node, str):
        return [node]
    return [name for each in node.operands for name in _lacking(each, provides)]


def _text(node: _Operation | str, *, outermost: bool = True) -> str:
    if isinstance(node, str):
        return node
    text = node.operator.join(_text(each, outermost=False) for each in node.operands)
    return text if outermost else f"({text})"


@lru_cache(maxsize=4096)
def _parse(expression: str) -> _Operation | str:
    tokens: list[str] = []
    expression = expression.rstrip()
    position = 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None:
            raise ValueError(f"requirement {expression!r}: unexpected text at character {position}")
        tokens.append(match[1] or match[2])
        position = match.end()
    node, end = _parse_sequence(tokens, 0, expression)
    if end != len(tokens):
        raise ValueError(f"requirement {expression!r}: unexpected {tokens[end]!r}")
    return node


def _parse_sequence(tokens: list[str], index: int, expression: str) -> tuple[_Operation | str, int]:
    node, index = _parse_operand(tokens, index, expression)
    while index < len(tokens) and tokens[index] in "+,":
        operator = tokens[index]
        operand, index = _parse_operand(tokens, index + 1, expression)
        node = _join(operator, [node, operand])
    return node, index


def _parse_operand(tokens: list[str], index: int, expression: str) -> tuple[_Operation | str, int]:
    if index >= len(tokens):
        raise ValueError(f"requirement {expression!r}: ends where a name is expected")
    if tokens[index] == "(":
        node, index = _parse_sequence(tokens, index + 1, expression)
        if index >= len(tokens) or tokens[index] != ")":
            raise ValueError(f"requirement {expression!r}: a parenthesis is not closed")
        return node, index + 1
    if tokens[index] in "+,)":
        raise ValueError(f"requirement {expression!r}: {tokens[index]!r} where a name is expected")
    return tokens[index], index + 1
