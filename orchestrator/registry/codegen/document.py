"""The registry tables as text: compact, and with readable diffs between versions of the registry.

Each line has one member, enum value or extension; fields with their default are left out. Deterministic; the
text decodes to an equal Registry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from orchestrator.registry.tables import EnumType, Registry, Struct


def render(tables: Registry) -> str:
    """Text of registry.json for some tables."""
    parts = [f'"version": {_compact(tables.version)}']
    parts.append(_section("structs", {name: _struct(each) for name, each in tables.structs.items()}))
    parts.append(_section("aliases", {name: _compact(each) for name, each in tables.aliases.items()}))
    parts.append(_section("enums", {name: _enum(each) for name, each in tables.enums.items()}))
    for field in ("extensions", "dynamic_states", "spirv_capabilities", "spirv_extensions", "formats"):
        table = getattr(tables, field)
        parts.append(_section(field, {str(key): _compact(_sparse(each)) for key, each in table.items()}))
    parts.append(_section("constants", {name: _compact(each) for name, each in tables.constants.items()}))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _section(name: str, entries: Mapping[str, str]) -> str:
    if not entries:
        return f"{_compact(name)}: {{}}"
    lines = ",\n".join(f" {_compact(key)}: {text}" for key, text in entries.items())
    return f"{_compact(name)}: {{\n{lines}\n}}"


def _struct(each: Struct) -> str:
    head = _sparse(each)
    del head["members"]
    members = ",\n".join("  " + _compact(_sparse(member)) for member in each.members)
    return f'{_compact(head)[:-1]}, "members": [\n{members}]}}'


def _enum(each: EnumType) -> str:
    head = _sparse(each)
    del head["values"]
    values = ",\n".join(f'  "{number}": {_compact(_sparse(value))}' for number, value in each.values.items())
    return f'{_compact(head)[:-1]}, "values": {{' + (f"\n{values}" if values else "") + "}}"


def _sparse(each: msgspec.Struct) -> dict[str, object]:
    sparse: dict[str, object] = msgspec.to_builtins(each, str_keys=True)
    return sparse


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=True)
