"""Translates the names of enum values and bits to numbers, by the registry's tables.

Guarantees: a full name (VK_FORMAT_R8G8B8A8_UNORM) and its short form (r8g8b8a8_unorm) give the same number; a
number stays as it is; an unknown name is a ManifestError with the most similar names.
Assumptions: values begin with their type's name, and bits end in _BIT, both before the author's tag (style
guide).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache, reduce
from operator import or_

from orchestrator.errors import ManifestError, shown
from orchestrator.registry.tables import EnumType, registry

_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_AUTHORS = "AMDX?|ANDROID|ARM|EXT|FUCHSIA|GGP|GOOGLE|HUAWEI|IMG|INTEL|KHR|MESA|MSFT|NVX?|QCOM|QNX|SEC|VALVE"
_AUTHOR = re.compile(f"_({_AUTHORS})$")
_TYPE_AUTHOR = re.compile(f"({_AUTHORS})$")


def snake_case(name: str) -> str:
    """A member name of the specification in snake case: ``depthBiasClamp`` gives ``depth_bias_clamp``."""
    return _BOUNDARY.sub("_", name).lower()


def unknown(where: str, what: str, name: object, known: Iterable[str]) -> ManifestError:
    """The error for an unknown name, with the names that may have been meant."""
    choices = sorted(known)
    close = difflib.get_close_matches(str(name).lower(), choices, n=3, cutoff=0.6)
    if close:
        hint = f"; did you mean {', '.join(close)}?"
    elif len(choices) <= 24:
        hint = f"; there is {', '.join(choices)}" if choices else ""
    else:
        hint = ""
    return ManifestError(f"{where}: unknown {what} {shown(repr(name))}{hint}")


def enum_number(type_name: str, value: object, where: str) -> int:
    """Number of one enum value or bit."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ManifestError(f"{where}: a {type_name} is a name or a number, not {value!r}")
    if isinstance(value, int):
        return value
    table = _numbers(type_name)
    number = table.get(value, table.get(value.lower()))
    if number is None:
        raise unknown(where, type_name, value, (name for name in table if not name.startswith("VK_")))
    return number


def flags_number(type_name: str, value: object, where: str) -> int:
    """Number of a combination of bits: a name, names joined by ``|``, a list of those, or a number."""
    if isinstance(value, str):
        if not value.strip():
            return 0
        if "|" in value:
            value = [part.strip() for part in value.split("|")]
        elif len(value) > 1 and type_name.startswith("VkColorComponent") and not value.lower().strip("rgba"):
            value = list(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return reduce(or_, (flags_number(type_name, each, where) for each in value), 0)
    number, most = enum_number(type_name, value, where), (1 << _enum_type(type_name).bits) - 1
    if not 0 <= number <= most:
        raise ManifestError(f"{where}: {number} is outside 0..{most}")
    return number


@lru_cache(maxsize=256)
def _numbers(type_name: str) -> dict[str, int]:
    enum_type = _enum_type(type_name)
    prefix = _prefix(type_name)
    table: dict[str, int] = {}
    # Full names first and shortest forms last, so that a core value keeps a short form that an extension's
    # value shares with it.
    shorts: list[tuple[str, int]] = []
    bare: list[tuple[str, int]] = []
    for number, value in enum_type.values.items():
        table[value.name] = number
        short = (
            value.name.removeprefix(prefix)
            if value.name.startswith(prefix)
            else value.name.removeprefix("VK_")
        )
        author = _AUTHOR.search(short)
        stem = short[: author.start()] if author else short
        if enum_type.bitmask:
            stem = stem.removesuffix("_BIT")
        shorts.append(((stem + (author.group() if author else "")).lower(), number))
        bare.append((stem.lower(), number))
    for name, number in (*shorts, *bare):
        table.setdefault(name, number)
    return table


def _enum_type(type_name: str) -> EnumType:
    enums = registry().enums
    for candidate in (
        type_name,
        type_name.replace("Flags", "FlagBits"),
        type_name.replace("FlagBits", "Flags"),
    ):
        if candidate in enums:
            return enums[candidate]
    # Flags types with only reserved bits have no values; only zero can be written.
    return EnumType(bits=32, bitmask=True, values={})


def _prefix(type_name: str) -> str:
    stem = _TYPE_AUTHOR.sub("", type_name.removeprefix("Vk"))
    stem = re.sub(r"Flag(?:Bit)?s(\d?)$", r"\1", stem)
    parts = _BOUNDARY.sub("_", stem)
    parts = re.sub(r"(?<=[A-Za-z])(\d)$", r"_\1", parts)
    return f"VK_{parts.upper()}_"
