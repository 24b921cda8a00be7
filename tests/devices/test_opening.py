"""Device selectors, and the environment of a process, which is its program's to set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.devices.modes import DRIVER_CACHES_OFF
from orchestrator.devices.selectors import DeviceSelector, environment_of, needed_at_start, variables_of
from orchestrator.devices.vulkan.manifests import library_folders
from orchestrator.errors import NoDeviceError
from tests.drivers import driver_manifest, has_null_hardware, run_on_device


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("radv:navi21", DeviceSelector("radv:navi21", driver="radv", family="navi21")),
        ("RADV:NAVI31", DeviceSelector("RADV:NAVI31", driver="radv", family="navi31")),
        ("radv", DeviceSelector("radv", driver="radv")),
        ("lavapipe", DeviceSelector("lavapipe", driver="lavapipe")),
        ("0", DeviceSelector("0", index=0)),
        ("", DeviceSelector("")),
        ("GeForce", DeviceSelector("GeForce", name="GeForce")),
        ("lavapipe:navi21", DeviceSelector("lavapipe:navi21", name="lavapipe:navi21")),
    ],
)
def test_selectors(text: str, expected: DeviceSelector) -> None:
    assert DeviceSelector.parse(text) == expected


def test_a_driver_that_is_not_installed_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.devices.vulkan.manifests._installed", lambda *_: [])
    with pytest.raises(NoDeviceError, match="mesa-vulkan-drivers"):
        environment_of("radv:navi21", base={})


def manifest(path: Path, library: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"file_format_version": "1.0.1", "ICD": {"library_path": library, "api_version": "1.3.0"}})
    )
    return str(path)


def test_manifests_that_a_user_names_stay_in_force(tmp_path: Path) -> None:
    own = manifest(tmp_path / "own" / "mine.json", "/opt/mesa/libvulkan_radeon.so")
    unusual = manifest(tmp_path / "unusual.json", "/opt/mesa/my_build.so")
    other = manifest(tmp_path / "other.json", "libvulkan_lvp.so")
    for named in (own, unusual, str(tmp_path / "own"), f"{own}:{tmp_path}/missing.json"):
        assert "VK_DRIVER_FILES" not in environment_of("radv", base={"VK_DRIVER_FILES": named}), named
    of_two = environment_of("radv", base={"VK_ICD_FILENAMES": f"{other}:{own}"})
    assert of_two["VK_DRIVER_FILES"] == of_two["VK_ICD_FILENAMES"] == own


def test_manifests_are_looked_for_where_the_loader_looks(tmp_path: Path) -> None:
    found = manifest(tmp_path / "b" / "vulkan" / "icd.d" / "x.json", "libvulkan_radeon.so")
    base = {
        "XDG_DATA_DIRS": f"{tmp_path}/a:{tmp_path}/b",
        "XDG_CONFIG_DIRS": str(tmp_path),
        "HOME": str(tmp_path),
    }
    in_etc = [
        *Path("/etc/vulkan").glob("icd.d/*radeon*"),
        *Path("/usr/local/etc/vulkan").glob("icd.d/*radeon*"),
    ]
    if not in_etc:
        assert environment_of("radv", base=base)["VK_DRIVER_FILES"] == found
    first = manifest(tmp_path / "vulkan" / "icd.d" / "x.json", "libvulkan_radeon.so")
    assert environment_of("radv", base=base)["VK_DRIVER_FILES"] == first


_ANOTHER = """
from orchestrator import NoDeviceError, open_device
def main():
    try:
        open_device("radv")
    except NoDeviceError as error:
        return str(error)
"""


def test_a_selector_gets_no_device_of_another_driver(tmp_path: Path) -> None:
    library = json.loads(driver_manifest("lavapipe").read_text())["ICD"]["library_path"]
    renamed = tmp_path / "a_build_of_mine.so"
    places = [library, *(f"{each}/{library}" for each in library_folders())]
    renamed.symlink_to(next(each for each in places if Path(each).is_file()))
    named = manifest(tmp_path / "mine.json", str(renamed))
    said = run_on_device(None, _ANOTHER, environment={"VK_DRIVER_FILES": named, **DRIVER_CACHES_OFF})
    assert "no device answers to 'radv'; the loader found llvmpipe" in said
    assert named in said


def test_a_process_sets_what_its_environment_lacks() -> None:
    radv, lavapipe = str(driver_manifest("radv:navi21")), str(driver_manifest("lavapipe"))
    needed = environment_of("radv:navi21", base={})
    assert needed.pop("VK_ICD_FILENAMES") == needed["VK_DRIVER_FILES"]
    assert needed.pop("VK_DRIVER_FILES") == radv
    off = {"MESA_SHADER_CACHE_DISABLE": "true", "__GL_SHADER_DISK_CACHE": "0"}
    family = variables_of("navi21", {"VK_DRIVER_FILES": radv})
    assert needed == {**family, **off}
    # What the user chose stays, as long as it is this driver and no other.
    theirs = {"VK_DRIVER_FILES": radv, "RADV_FORCE_FAMILY": "navi31"}
    assert environment_of("radv:navi21", base=theirs, driver_caches=True) == family
    assert environment_of("radv", base=theirs, driver_caches=True) == {}
    mixed = {"VK_DRIVER_FILES": f"{radv}:{lavapipe}"}
    assert environment_of("radv", base=mixed, driver_caches=True)["VK_DRIVER_FILES"] == radv
    assert environment_of("0", base={}) == off
    assert environment_of("simulated", base={}) == {}


_OWNED = """
import os
from orchestrator import NoDeviceError, list_devices, own_process
def main():
    before = dict(os.environ)
    try:
        own_process("radv:navi999")
    except NoDeviceError as error:
        return [str(error), before == os.environ, len(list_devices())]
"""


def test_a_family_that_is_none_is_refused_before_the_driver_ends_the_process() -> None:
    driver_manifest("radv:navi21")
    said, unchanged, devices = run_on_device(None, _OWNED)
    assert "no family 'navi999': near to it are navi" in said
    assert unchanged
    assert devices >= 1


_UNSET = {
    "VK_DRIVER_FILES": "",
    "VK_ICD_FILENAMES": "",
    "RADV_FORCE_FAMILY": "",
    "MESA_SHADER_CACHE_DISABLE": "",
}
_SNAPSHOT = """
import locale, os, signal, threading
from orchestrator import HostWishes, NoDeviceError, adopt_device, list_devices, open_device
def state():
    umask = os.umask(0o077)
    os.umask(umask)
    handlers = {each: signal.getsignal(each) for each in signal.valid_signals()}
    with open("/proc/self/status") as file:
        masks = [line for line in file if line.startswith("Sig") and not line.startswith("SigQ")]
    with open("/proc/self/environ", "rb") as file:
        began_with = file.read()
    return [dict(os.environ), dict(os.environb), os.getcwd(), umask, locale.setlocale(locale.LC_ALL),
        handlers, masks, began_with, signal.pthread_sigmask(signal.SIG_BLOCK, []),
        os.getpriority(os.PRIO_PROCESS, 0), threading.excepthook]
def adopted(device):
    of = device.handles
    return adopt_device(instance=of.instance, physical_device=of.physical_device, device=of.device,
        get_instance_proc_addr=of.get_instance_proc_addr, api_version=device.capabilities.api_version)
def main(selectors):
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    os.umask(0o027)
    signal.signal(signal.SIGTERM, lambda *_: None)
    first = threading.Thread(target=os.getpid)  # with which the C library takes a signal of its own
    first.start()
    first.join()
    answers = []
    for selector in selectors:
        before = state()
        try:
            device = open_device(selector, wishes=HostWishes(device_extensions=["VK_KHR_swapchain"]))
            assert state() == before
            guest = adopted(device)
            answers.append([device.identity.device_name, device.features.driver_caches])
            guest.close()
            device.close()
            list_devices(selector)
        except NoDeviceError as error:
            answers.append(str(error))
        assert state() == before
    return answers
"""


@pytest.mark.driver("radv:navi21")
def test_opening_and_adopting_change_nothing_in_the_process() -> None:
    (name, caches), refused = run_on_device("radv:navi21", _SNAPSHOT, ["radv:navi21", "lavapipe"])
    assert "NAVI21" in name
    assert "environment MESA_SHADER_CACHE_DISABLE=true" in caches
    assert "'lavapipe'" in refused
    assert f"VK_DRIVER_FILES={driver_manifest('lavapipe')}" in refused


def test_a_process_without_the_environment_is_told_what_to_set() -> None:
    (refused,) = run_on_device(None, _SNAPSHOT, ["radv:navi31"], environment=_UNSET)
    assert "VK_DRIVER_FILES=" in refused
    name = "RADV_FORCE_FAMILY" if has_null_hardware() else "AMDGPU_GPU_ID"
    assert f"{name}=navi31" in refused
    # A library that must be there from the start is no program's to load.
    assert ("orchestrator.own_process('radv:navi31')" in refused) == has_null_hardware()


@pytest.mark.driver("lavapipe")
def test_driver_caches_that_nothing_turns_off_are_said_to_be_on() -> None:
    (opened,) = run_on_device(
        "lavapipe", _SNAPSHOT, ["lavapipe"], environment={"MESA_SHADER_CACHE_DISABLE": ""}
    )
    assert opened[1] == "enabled"


_OWNER = """
from orchestrator import NoDeviceError, open_device, own_process
def main():
    own_process("radv:navi21")
    own_process("radv:navi21")
    device = open_device("radv:navi21")
    answers = [device.identity.device_name, device.features.driver_caches]
    device.close()
    try:
        own_process("radv:navi31")
    except NoDeviceError as error:
        return [*answers, str(error)]
"""


def test_a_program_that_owns_its_process_sets_its_environment_once() -> None:
    driver_manifest("radv:navi21")
    name, caches, message = run_on_device(None, _OWNER, environment=_UNSET | needed_at_start("radv:navi21"))
    assert "NAVI21" in name
    assert caches.startswith("disabled: ")
    assert "'radv:navi21'" in message
    assert "process of its own" in message


_TWO_ARCHITECTURES = """
import os
from orchestrator.devices.opening import open_device, own_process
def main():
    own_process("radv:navi21")
    device = open_device("radv:navi21")
    device.close()
    return device.identity.device_name, os.environ["VK_DRIVER_FILES"].split(":")
"""


def test_a_driver_that_is_installed_for_32_bits_too_is_opened(tmp_path: Path) -> None:
    usual = json.loads(driver_manifest("radv:navi21").read_text("utf-8"))
    elf = bytearray(64)
    elf[:8] = b"\x7fELF\x01\x01\x01\x00"  # the fifth byte: 32 bits
    library = tmp_path / "libvulkan_radeon.so"
    library.write_bytes(elf)
    folder = tmp_path / "vulkan" / "icd.d"
    folder.mkdir(parents=True)
    for name, content in (
        ("radeon_icd.i686.json", usual | {"ICD": usual["ICD"] | {"library_path": str(library)}}),
        ("radeon_icd.x86_64.json", usual),
    ):
        (folder / name).write_text(json.dumps(content))
    environment = _UNSET | needed_at_start("radv:navi21") | {"XDG_CONFIG_HOME": str(tmp_path)}
    name, named = run_on_device(None, _TWO_ARCHITECTURES, environment=environment)
    assert "NAVI21" in name
    assert len(named) == 2


_LAYERS = """
from orchestrator.devices.opening import list_layers
def main():
    return [list_layers(), list_layers("simulated")]
"""


def test_layers_are_those_that_the_loader_finds(tmp_path: Path) -> None:
    driver_manifest("radv:navi21")
    names = ["VK_LAYER_TEST_second", "VK_LAYER_TEST_first"]
    for name in names:
        layer = {
            "name": name,
            "type": "GLOBAL",
            "library_path": str(tmp_path / "libnone.so"),
            "api_version": "1.3.0",
            "implementation_version": "1",
            "description": "A layer that is never loaded",
        }
        manifest = {"file_format_version": "1.2.0", "layer": layer}
        (tmp_path / f"{name}.json").write_text(json.dumps(manifest))
    (tmp_path / "libnone.so").write_bytes(b"")
    found, none = run_on_device("radv:navi21", _LAYERS, environment={"VK_LAYER_PATH": str(tmp_path)})
    assert [each for each in found if each in names] == sorted(names)
    assert found == sorted(found)
    assert none == []


_UNKNOWN = """
from orchestrator.devices.opening import open_device
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
    assert "(RADV NAVI21) as device 0" in message
