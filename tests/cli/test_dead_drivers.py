"""Drivers that end the process that asks them: told with their name, and the others are listed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from orchestrator.cli.errors import ExitCode
from tests.cli.conftest import Call
from tests.drivers import driver_manifest, require_tool

Driver = Callable[[str], Path]


_ENDING = """
#include <stdlib.h>
#include <unistd.h>
int vk_icdNegotiateLoaderICDInterfaceVersion(unsigned *version) { DOES; return 0; }
void *vk_icdGetInstanceProcAddr(void *instance, const char *name) { return 0; }
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """The manifest of a driver of this code, built once."""

    @cache
    def manifest(code: str) -> Path:
        folder = tmp_path_factory.mktemp("driver")
        source, library, path = (folder / each for each in ("driver.c", "libdriver.so", "driver.json"))
        source.write_text(code)
        subprocess.run([require_tool("gcc"), "-shared", "-fPIC", "-o", library, source], check=True)
        icd = {"library_path": str(library), "api_version": "1.3.0"}
        path.write_text(json.dumps({"file_format_version": "1.0.1", "ICD": icd}))
        return path

    return manifest


@pytest.fixture
def driver(built: Driver, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The manifest of a driver that does something as soon as it is asked."""
    for name in ("VK_ICD_FILENAMES", "RADV_FORCE_FAMILY"):
        monkeypatch.delenv(name, raising=False)
    return lambda does: built(_ENDING.replace("DOES", does))


def test_a_driver_that_ends_its_process_is_named_and_others_are_listed(
    call: Call, monkeypatch: pytest.MonkeyPatch, driver: Driver
) -> None:
    # Not exit(0): loaders lock what they destroy then.
    other, dead = driver_manifest("lavapipe"), driver("_exit(0)")
    monkeypatch.setenv("VK_DRIVER_FILES", f"{dead}:{other}")
    done = call("devices", "--json")
    assert done.code == ExitCode.NO_DEVICE
    (device,) = done.document["devices"]
    assert "llvmpipe" in device["device_name"]
    (told,) = done.document["dead_drivers"]
    assert told["manifest"] == str(dead)
    assert "exit code 0" in told["problem"]
    assert done.document["driver_files"] == str(other)
    assert f"dead driver  {dead}" in done.err


_REFUSING = """
#include <string.h>
int vk_icdNegotiateLoaderICDInterfaceVersion(unsigned *version) { *version = 5; return 0; }
static long memory[64] = {0x01CDC0DE};
static int create(const void *info, const void *callbacks, void **out) { *out = memory; return 0; }
static int count(const char *layer, unsigned *count, void *out) { *count = 0; return 0; }
static int refuse(void *instance, unsigned *count, void *out) { return -3; }
static void none(void) {}
void *vk_icdGetInstanceProcAddr(void *instance, const char *name) {
    if (!strcmp(name, "vkCreateInstance")) return create;
    if (!strcmp(name, "vkEnumerateInstanceExtensionProperties")) return count;
    if (!strcmp(name, "vkEnumeratePhysicalDevices")) return refuse;
    return strncmp(name, "vkEnumerate", 11) ? none : 0;
}
"""


@pytest.mark.parametrize("kind", ["an error at the enumeration", "no JSON"])
def test_a_driver_that_lists_no_devices_hides_no_others(
    call: Call, monkeypatch: pytest.MonkeyPatch, built: Driver, tmp_path: Path, kind: str
) -> None:
    other, bad = driver_manifest("lavapipe"), tmp_path / "bad.json"
    if kind == "no JSON":
        bad.write_text("{")
    else:
        bad = built(_REFUSING)
    monkeypatch.delenv("VK_ICD_FILENAMES", raising=False)
    monkeypatch.setenv("VK_DRIVER_FILES", f"{bad}:{other}")
    done = call("devices", "--json")
    (device,) = done.document["devices"]
    assert "llvmpipe" in device["device_name"]
    assert {each["manifest"] for each in done.document["dead_drivers"]} <= {str(bad)}


@pytest.mark.parametrize("verb", ["devices", "merge", "doctor"])
def test_verbs_that_open_a_device_tell_which_driver_ended(
    call: Call, monkeypatch: pytest.MonkeyPatch, driver: Driver, tmp_path: Path, verb: str
) -> None:
    dead = driver("_exit(0)")
    file = tmp_path / "file"
    file.write_bytes(b"")
    arguments = (file, "-o", tmp_path / "out") if verb == "merge" else ()
    monkeypatch.setenv("VK_DRIVER_FILES", str(dead))
    done = call(verb, *arguments, "--device", "0", "--json")
    assert done.code == ExitCode.NO_DEVICE, done.err
    told = done.out
    assert f"opening '0': the driver {dead} ended its process with exit code 0" in told


def test_all_drivers_may_end_a_process(call: Call, monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    dead = driver("abort()")
    monkeypatch.setenv("VK_DRIVER_FILES", str(dead))
    done = call("devices")
    assert done.code == ExitCode.NO_DEVICE
    assert done.out == ""
    assert f"dead driver  {dead}: it ended its process with signal 6" in done.err
    assert "update or remove the driver" in done.err
    doctor = call("doctor", "--json")
    assert doctor.code == ExitCode.NO_DEVICE
    assert any(each["subject"] == f"driver {dead}" for each in doctor.document["findings"])


def test_ignored_drivers_are_not_tried(call: Call, monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    """Where VK_DRIVER_FILES names drivers, the loader ignores VK_ADD_DRIVER_FILES."""
    monkeypatch.setenv("VK_DRIVER_FILES", str(driver("abort()")))
    monkeypatch.setenv("VK_ADD_DRIVER_FILES", str(driver_manifest("lavapipe")))
    done = call("devices", "--json")
    assert (done.document["devices"], done.document["driver_files"]) == ([], "")
