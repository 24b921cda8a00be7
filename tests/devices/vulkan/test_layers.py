"""Which layers are too old for pipeline keys, and that a driver without any is asked."""

from __future__ import annotations

import pytest

from orchestrator.devices.vulkan.instance import PIPELINE_BINARY_VERSION, Layer, keys_withheld
from tests.conftest import OpenDriverDevice

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
