"""Opening the loader library, finding commands, and what is said where one is not there."""

from __future__ import annotations

import pytest

from orchestrator.devices.vulkan.instance import (
    LIBRARY_NAME,
    LIBRARY_VARIABLE,
    check,
    open_library,
)
from orchestrator.errors import DriverError, NoDeviceError


@pytest.mark.parametrize("path", ["/nowhere/libvulkan.so.1", "libc.so.6"])
def test_a_library_that_is_none(path: str) -> None:
    with pytest.raises(NoDeviceError, match=LIBRARY_VARIABLE) as caught:
        open_library({LIBRARY_VARIABLE: path})
    assert path in str(caught.value)
    assert "libvulkan1" not in str(caught.value)  # another path is the cure, not a package


def test_no_library_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"/nowhere/{LIBRARY_NAME}"
    monkeypatch.setattr("orchestrator.devices.vulkan.instance.LIBRARY_NAME", name)
    with pytest.raises(NoDeviceError) as caught:
        open_library({})
    for part in ("libvulkan1", "mesa-vulkan-drivers", name):
        assert part in str(caught.value)


def test_results() -> None:
    assert check("vkGetPipelineCacheData", 0) == 0
    assert check("vkGetPipelineCacheData", 5) == 5
    with pytest.raises(DriverError, match=r"vkCreateDevice returned VK_ERROR_DEVICE_LOST \(-4\)") as caught:
        check("vkCreateDevice", -4)
    assert (caught.value.command, caught.value.result) == ("vkCreateDevice", -4)
