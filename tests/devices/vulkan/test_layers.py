"""Which layers are too old for pipeline keys, and that a driver without any is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.devices.vulkan.instance import PIPELINE_BINARY_VERSION, Layer, keys_withheld
from tests.conftest import OpenDriverDevice
from tests.drivers import run_on_device

OLD = Layer("VK_LAYER_KHRONOS_validation", 1 << 22 | 3 << 12 | 239)
FIRST = Layer("VK_LAYER_first", PIPELINE_BINARY_VERSION)
NEW = Layer("VK_LAYER_new", 1 << 22 | 4 << 12)


def test_a_layer_is_called_by_its_name_and_the_vulkan_that_it_knows() -> None:
    assert [str(each) for each in (OLD, FIRST, NEW)] == [
        "VK_LAYER_KHRONOS_validation 1.3.239",
        "VK_LAYER_first 1.3.294",
        "VK_LAYER_new 1.4.0",
    ]


def test_keys_are_withheld_where_a_layer_is_older_than_the_command() -> None:
    assert keys_withheld([]) == keys_withheld([FIRST, NEW]) == ""
    assert keys_withheld([NEW, OLD]).startswith(
        "VK_LAYER_KHRONOS_validation 1.3.239 is active and older than"
    )
    two = keys_withheld([OLD, Layer("VK_LAYER_other", 1 << 22)])
    assert two.startswith(
        "VK_LAYER_KHRONOS_validation 1.3.239, VK_LAYER_other 1.0.0 are active and older than"
    )


@pytest.mark.driver("radv:navi21")
def test_without_such_a_layer_nothing_is_withheld(open_driver_device: OpenDriverDevice) -> None:
    features = open_driver_device("radv:navi21").features
    assert features.pipeline_binaries
    assert features.keys_withheld == ""
    assert not any("validation" in each for each in features.layers)


_FEATURES = """
from contextlib import closing
from orchestrator import open_device
def main():
    with closing(open_device("radv:navi21")) as device:
        return device.features.layers, device.features.keys_withheld, device.features.pipeline_binaries
"""


@pytest.mark.driver("radv:navi21")
def test_a_layer_that_does_nothing_is_not_active(tmp_path: Path) -> None:
    """Its library is no library or no layer's, or it only names others, as what vkconfig writes does."""
    (tmp_path / "broken.so").write_text("no library")
    members: dict[str, dict[str, object]] = {
        "missing": {"library_path": "/no such/library.so"},
        "unfound": {"library_path": "none.so"},
        "broken": {"library_path": "./broken.so"},
        "without_entry": {"library_path": "libm.so.6"},
        "meta": {"component_layers": ["VK_LAYER_TEST_without_entry"]},
    }
    for name, own in members.items():
        layer = {"name": f"VK_LAYER_TEST_{name}", "type": "GLOBAL", **own}
        layer |= {"api_version": "1.2.100", "implementation_version": "1", "description": name}
        manifest = {"file_format_version": "1.2.0", "layer": layer}
        (tmp_path / f"{name}.json").write_text(json.dumps(manifest))
    asked_for = ":".join(f"VK_LAYER_TEST_{each}" for each in members)
    environment = {"VK_LAYER_PATH": str(tmp_path), "VK_INSTANCE_LAYERS": asked_for}
    layers, withheld, has_binaries = run_on_device("radv:navi21", _FEATURES, environment=environment)
    assert not any("TEST" in each for each in layers)
    assert (withheld, has_binaries) == ("", True)
