"""The committed bindings are what the generator makes, and lay structures out as a C compiler does."""

from __future__ import annotations

from pathlib import Path

import pytest
from vulkan_object import get_vulkan_object

from orchestrator.devices.vulkan._generated import COMMANDS, ffi
from orchestrator.devices.vulkan.codegen import command_table, declarations, main
from orchestrator.registry.expressions import normal_form
from orchestrator.registry.tables import registry
from tests.registry.c_layouts import compiled_layouts


def test_the_committed_file_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    assert "up to date" in capsys.readouterr().out


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


def test_pointers_and_arrays_are_declared_as_such() -> None:
    for name, each in registry().structs.items():
        fields = dict(ffi.typeof(name).fields)
        assert list(fields) == [member.name for member in each.members]
        for member in each.members:
            kind = fields[member.name].type.kind
            assert (kind == "array") == bool(member.array)
            if member.pointer:
                assert kind == ("function" if member.category == "function" else "pointer"), (
                    name,
                    member.name,
                )
            elif member.category != "handle":  # a dispatchable handle is a pointer too
                assert kind != "pointer", (name, member.name)


def test_commands() -> None:
    assert command_table(get_vulkan_object()) == COMMANDS
    for name, (level, pointer_type, names, requires) in COMMANDS.items():
        assert level in ("global", "instance", "device")
        assert ffi.typeof(pointer_type).kind == "function"
        assert names[0] == name
        assert normal_form(requires) == requires
    create = ffi.typeof(COMMANDS["vkCreateGraphicsPipelines"][1])
    assert [argument.cname for argument in create.args] == [
        "struct VkDevice_T *",
        "uint64_t",
        "uint32_t",
        "struct VkGraphicsPipelineCreateInfo *",
        "struct VkAllocationCallbacks *",
        "uint64_t *",
    ]
