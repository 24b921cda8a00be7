"""Families of RADV's null hardware: those that the installed driver takes."""

from __future__ import annotations

import pytest

from orchestrator.devices.families import Family, expand, is_pattern, require_family
from orchestrator.errors import NoDeviceError
from tests.drivers import driver_manifest, has_null_hardware, run_on_device


@pytest.fixture(scope="module")
def families() -> tuple[Family, ...]:
    driver_manifest("radv:navi21")
    return expand("radv:*")


def _opens(selector: str) -> tuple[str, int]:
    from orchestrator.devices.opening import open_device, own_process

    own_process(selector)
    device = open_device(selector)
    try:
        return device.identity.device_name, device.identity.device_id
    finally:
        device.close()


def test_the_installed_driver_has_its_families(families: tuple[Family, ...]) -> None:
    ids = {each.name: each.device_id for each in families}
    # Five generations that every Mesa with pipeline binaries has.
    assert {"vega10", "navi10", "navi21", "navi31", "gfx1201"} <= set(ids)
    assert len(ids) == len(families) >= (40 if has_null_hardware() else 20)
    # By the device itself, opened in the usual way, in a process of its own.
    name, device_id = run_on_device("radv:navi31", f"{__name__}:_opens", "radv:navi31")
    assert "RADV NAVI31" in name
    assert device_id == ids["navi31"]
    assert [each.selector for each in expand("RADV:Navi3[13]")] == ["radv:navi31", "radv:navi33"]


def test_a_family_that_the_driver_does_not_take_is_refused(families: tuple[Family, ...]) -> None:
    for selector in ("radv", "RADV:NAVI21", "radv:gfx1201", "lavapipe", "0", "", "simulated"):
        require_family(selector)
    for each in families[:3]:
        require_family(each.selector.upper())
    # Also of a name that is on no list the driver itself is asked, in a process that it may end.
    with pytest.raises(NoDeviceError, match="no family 'abgr'"):
        require_family("radv:abgr")
    with pytest.raises(NoDeviceError, match=r"no family 'navi999': near to it are navi\d\d"):
        require_family("radv:navi999")
    with pytest.raises(NoDeviceError, match=r"no family 'navi9\*'"):
        expand("radv:navi9*")
    with pytest.raises(NoDeviceError, match="stands for several devices"):
        require_family("radv:navi2?")


def test_without_the_driver_a_reason_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    driver_manifest("radv:navi21")
    monkeypatch.setenv("ORCHESTRATOR_VULKAN_LIBRARY", "libno-such-vulkan.so")
    with pytest.raises(NoDeviceError, match="libno-such-vulkan"):
        expand("radv:navi21")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("radv:*", True), ("radv:navi3?", True), ("radv:gfx1[12]*", True), ("radv:navi21", False), ("*", False)],
)
def test_what_is_a_pattern(text: str, expected: bool) -> None:
    assert is_pattern(text) is expected
