"""The bindings lay structures out as a C compiler does; `make lint` asks whether they are the generator's."""

from __future__ import annotations

from pathlib import Path

from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.codegen import declarations
from orchestrator.registry.tables import registry
from tests.registry.c_layouts import compiled_layouts


def test_layouts_agree_with_the_compiler(tmp_path: Path) -> None:
    tables = registry()
    wanted = {name: [member.name for member in each.members] for name, each in tables.structs.items()}
    for name, layout in compiled_layouts(tmp_path, declarations(), wanted).items():
        each = tables.structs[name]
        assert (layout.size, layout.alignment) == (each.size, each.alignment), name
        assert (ffi.sizeof(name), ffi.alignof(name)) == (each.size, each.alignment), name
        for member in each.members:
            assert layout.members[member.name] == (member.offset, member.size), (name, member.name)
            assert ffi.offsetof(name, member.name) == member.offset, (name, member.name)
