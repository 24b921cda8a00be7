from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli.errors import ExitCode
from tests.cli.conftest import Call
from tests.drivers import driver_manifest


def test_the_simulated_device(call: Call) -> None:
    done = call("devices", "--device", "simulated", "--json")
    assert done.code == ExitCode.OK
    (device,) = done.document["devices"]
    assert device["selector"] == "simulated"
    assert device["device_name"] == "simulated device"
    assert len(bytes.fromhex(device["pipeline_cache_uuid"])) == 16
    assert device["api_version"].startswith("1.")
    assert device["problem"] is None
    assert device["features"]["externally_synchronized_caches"] is True


def test_for_people(call: Call) -> None:
    done = call("devices", "-d", "simulated")
    assert done.code == ExitCode.OK
    assert "externally synchronized caches" in done.out
    assert "--device radv:navi21" in done.out
    assert "--device simulated" in done.out
    assert "\x1b" not in done.out


def test_without_a_loader_the_package_is_named(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_VULKAN_LIBRARY", str(tmp_path / "libvulkan.so.1"))
    done = call("devices", "--json")
    assert done.code == ExitCode.NO_DEVICE
    assert done.document["error"]["kind"] == "no_device"
    assert "simulated" in done.err
    assert "Traceback" not in done.err


def test_what_leaves_no_driver_is_named(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "none.json"
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        monkeypatch.setenv(name, str(folder))
    done = call("devices")
    assert done.code == ExitCode.NO_DEVICE
    assert f"VK_DRIVER_FILES={folder} names no file that is there" in done.err
    assert "mesa-vulkan-drivers" in done.err
    lost = tmp_path / "lost.json"
    icd = {"library_path": "./gone/libvulkan_radeon.so", "api_version": "1.4.305"}
    lost.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))
    monkeypatch.setenv("VK_DRIVER_FILES", str(lost))
    done = call("devices")
    assert done.code == ExitCode.NO_DEVICE
    assert f"{lost} names the library ./gone/libvulkan_radeon.so, which is not there" in done.err
    manifest = tmp_path / "broken.json"
    manifest.write_text("{")
    monkeypatch.setenv("VK_DRIVER_FILES", str(manifest))
    monkeypatch.delenv("VK_ICD_FILENAMES")
    done = call("devices")
    assert done.code == ExitCode.NO_DEVICE
    assert f"{manifest}: it is no manifest of a driver" in done.err


def test_variables_that_hide_a_driver_are_named(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    driver_manifest("lavapipe")
    monkeypatch.setenv("VK_LOADER_DRIVERS_DISABLE", "*lvp*")
    done = call("devices", "-d", "lavapipe")
    assert done.code == ExitCode.NO_DEVICE
    assert "VK_LOADER_DRIVERS_DISABLE=*lvp* leaves" in done.err
    assert "VK_LOADER_DEBUG=all" in done.err


def test_a_pattern_lists_families_and_opens_none(call: Call) -> None:
    driver_manifest("radv:navi21")
    done = call("devices", "--device", "radv:navi3[13]", "--json")
    assert done.code == ExitCode.OK
    first, second = done.document["families"]
    assert first == {"selector": "radv:navi31", "family": "navi31", "device_id": 0x744C}
    assert second["selector"] == "radv:navi33"
    assert "radv:navi31  0x744c" in call("devices", "-d", "radv:navi31*").out
    none = call("devices", "-d", "radv:voodoo*")
    assert none.code == ExitCode.NO_DEVICE
    assert "no family 'voodoo*'" in none.err
