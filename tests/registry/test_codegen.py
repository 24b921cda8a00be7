"""What the generator of the tables cannot make right it refuses; `make lint` asks whether they are its."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vulkan_object import get_vulkan_object

from orchestrator.registry.codegen.build import RegistryError, build, capability_numbers
from orchestrator.registry.codegen.output import write_or_check


def test_a_capability_without_a_number_is_refused() -> None:
    numbers = {name: number for name, number in capability_numbers().items() if name != "Geometry"}
    with pytest.raises(RegistryError, match="capability Geometry"):
        build(get_vulkan_object(), numbers)


def test_a_bit_field_is_refused() -> None:
    vk = get_vulkan_object()
    # The same registry, except that one member has a width.
    struct = vk.structs["VkBaseInStructure"]
    members = [_copy(struct.members[0], bitFieldWidth=8), *struct.members[1:]]
    structs = {**vk.structs, struct.name: _copy(struct, members=members)}
    with pytest.raises(RegistryError, match="VkBaseInStructure::sType: bit fields"):
        build(_copy(vk, structs=structs), capability_numbers())


def test_a_root_that_is_gone_is_refused() -> None:
    vk = get_vulkan_object()
    structs = {name: each for name, each in vk.structs.items() if name != "VkSamplerCreateInfo"}
    with pytest.raises(RegistryError, match="root VkSamplerCreateInfo"):
        build(_copy(vk, structs=structs), capability_numbers())


def test_check_shows_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "file.json"
    assert write_or_check(target, "one\ntwo\n", check=True) == 1
    assert write_or_check(target, "one\ntwo\n", check=False) == 0
    assert write_or_check(target, "one\ntwo\n", check=True) == 0
    capsys.readouterr()
    assert write_or_check(target, "one\nthree\n", check=True) == 1
    shown = capsys.readouterr()
    assert "-two" in shown.out
    assert "+three" in shown.out
    assert "differs" in shown.err
    assert target.read_text("utf-8") == "one\ntwo\n"


def _copy(source: Any, **changes: Any) -> Any:
    return SimpleNamespace(**{**vars(source), **changes})
