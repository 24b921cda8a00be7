# Purpose: the text of registry.json: compact, yet such that a new version of the registry is a readable diff
# (one member, one enum value, one extension a line; fields that have their default are left out).
# Guarantees: deterministic; what it writes decodes to an equal Registry.
"""The registry tables as text."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec
from msgspec.structs import fields

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
    """A table's entry as JSON values, without the fields that have their default."""
    result: dict[str, object] = {}
    for field in fields(each):
        value = getattr(each, field.name)
        if field.default is msgspec.NODEFAULT or value != field.default:
            result[field.encode_name] = _value(value)
    return result


def _value(value: object) -> object:
    if isinstance(value, msgspec.Struct):
        return _sparse(value)
    if isinstance(value, (tuple, list)):
        return [_value(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _value(each) for key, each in value.items()}
    return value


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=True)
