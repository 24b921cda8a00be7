"""`python -m orchestrator.registry.codegen [--check]`: the registry tables as text.

It is compact, and its diffs between versions of the registry are readable: each line has one member, enum
value or extension, and fields with their default are left out. The text decodes to an equal Registry.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
from vulkan_object import get_vulkan_object

from orchestrator.registry.codegen.build import build, capability_numbers
from orchestrator.registry.codegen.output import generator_main
from orchestrator.registry.tables import EnumType, Registry, Struct

TARGET = Path(__file__).parent.parent / "registry.json"


def main(arguments: list[str] | None = None) -> int:
    """Write registry.json; see `generator_main`."""
    return generator_main(
        "orchestrator.registry.codegen",
        TARGET,
        lambda: _render(build(get_vulkan_object(), capability_numbers())),
        arguments,
    )


def _render(tables: Registry) -> str:
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


if __name__ == "__main__":
    sys.exit(main())
