# Purpose: what a selector means, and that a process keeps to one target.
"""Device selectors."""

from __future__ import annotations

import pytest

from orchestrator.devices.vulkan.selection import Selection
from orchestrator.errors import NoDeviceError
from tests.drivers import run_on_device


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("radv:navi21", Selection("radv:navi21", driver="radv", family="navi21")),
        ("RADV:NAVI31", Selection("RADV:NAVI31", driver="radv", family="navi31")),
        ("radv", Selection("radv", driver="radv")),
        ("lavapipe", Selection("lavapipe", driver="lavapipe")),
        ("0", Selection("0", index=0)),
        ("", Selection("")),
        ("GeForce", Selection("GeForce", name="geforce")),
        ("lavapipe:navi21", Selection("lavapipe:navi21", name="lavapipe:navi21")),
    ],
)
def test_selectors(text: str, expected: Selection) -> None:
    assert Selection.parse(text) == expected


def test_a_driver_that_is_not_installed_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VK_DRIVER_FILES", raising=False)
    monkeypatch.delenv("VK_ICD_FILENAMES", raising=False)
    monkeypatch.setattr("orchestrator.devices.vulkan.selection._MANIFEST_FOLDERS", ())
    with pytest.raises(NoDeviceError, match="mesa-vulkan-drivers"):
        Selection.parse("radv:navi21").environment()


_SECOND_TARGET = """
from orchestrator.devices import open_device
from orchestrator.errors import NoDeviceError
def main():
    device = open_device("radv:navi21")
    name = device.identity.device_name
    device.close()
    open_device("radv:navi21").close()
    try:
        open_device("radv:navi31")
    except NoDeviceError as error:
        return [name, str(error)]
"""


@pytest.mark.driver("radv:navi21")
def test_a_second_target_in_one_process_is_refused_by_name() -> None:
    name, message = run_on_device("radv:navi21", _SECOND_TARGET)
    assert "NAVI21" in name
    assert "'radv:navi21'" in message
    assert "process of its own" in message


_UNKNOWN = """
from orchestrator.devices import open_device
from orchestrator.errors import NoDeviceError
def main():
    try:
        open_device("no such device")
    except NoDeviceError as error:
        return str(error)
"""


@pytest.mark.driver("radv:navi21")
def test_a_name_that_nothing_answers_to_lists_what_there_is() -> None:
    message = run_on_device("radv:navi21", _UNKNOWN)
    assert "no such device" in message
    assert "0: Null hardware (RADV NAVI21)" in message
