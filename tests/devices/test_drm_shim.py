"""RADV without null hardware: Mesa's drm-shim stands for its GPU, in processes that are started for it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.devices import families, selectors
from orchestrator.devices.selectors import (
    environment_of,
    gpus_of,
    lacks_null_hardware,
    shim_at_hand,
    starts_with,
)
from orchestrator.devices.vulkan.manifests import driver_library
from orchestrator.errors import NoDeviceError
from tests.cli.conftest import Done, run_program
from tests.drivers import driver_manifest, missing, run_on_device
from tests.run.small_sets import write_small_set

HAS = b"Null hardware\0"
REMOVED = b"radv: RADV_FORCE_FAMILY=<family> has been removed. Please use AMDGPU drm-shim now.\0"


@pytest.fixture
def without_null_hardware(tmp_path: Path) -> dict[str, str]:
    """An environment whose RADV says as newer releases do that it has no null hardware."""
    if shim_at_hand({}) is None:
        missing("Mesa's drm-shim; `make setup` as root installs mesa-drm-shim")
    installed = driver_library({"VK_DRIVER_FILES": str(driver_manifest("radv:navi21"))})
    assert installed is not None
    content = installed.read_bytes()
    return named(tmp_path, content.replace(HAS, b"No hardware\0\0\0") + REMOVED)


def named(folder: Path, content: bytes) -> dict[str, str]:
    """An environment whose only driver is a library with this content."""
    library = folder / "libvulkan_radeon.so"
    library.write_bytes(content)
    manifest = folder / "radeon_icd.json"
    icd = {"library_path": str(library), "api_version": "1.4.305"}
    manifest.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))
    return {"VK_DRIVER_FILES": str(manifest), "VK_ICD_FILENAMES": str(manifest)}


def test_the_environment_names_the_shim_only_where_radv_needs_it(
    without_null_hardware: dict[str, str], tmp_path: Path
) -> None:
    shim = shim_at_hand({})
    needed = environment_of("radv:navi21", base=without_null_hardware, driver_caches=True)
    assert needed == {"LD_PRELOAD": shim, "AMDGPU_GPU_ID": "navi21"}
    others = without_null_hardware | {"LD_PRELOAD": "/lib/other.so"}
    assert environment_of("radv:navi21", base=others)["LD_PRELOAD"] == f"{shim}:/lib/other.so"
    there = without_null_hardware | needed
    assert environment_of("radv:navi21", base=there, driver_caches=True) == {}
    assert environment_of("radv:vega10", base=there, driver_caches=True) == {"AMDGPU_GPU_ID": "vega10"}
    found = there | {"LD_PRELOAD": "libamdgpu_noop_drm_shim.so"}  # ld.so looks for it itself
    assert environment_of("radv:navi21", base=found, driver_caches=True) == {}
    assert starts_with(there) == needed
    (tmp_path / "earlier").mkdir()
    earlier = named(tmp_path / "earlier", (tmp_path / "libvulkan_radeon.so").read_bytes() + HAS)
    usual = environment_of("radv:navi21", base=earlier)
    assert usual["RADV_FORCE_FAMILY"] == "navi21"
    assert not starts_with(usual)


_WISHES = """
from orchestrator import HostWishes, NoDeviceError, open_device
def main():
    try:
        open_device("radv:navi21", wishes=HostWishes(queue_family=77))
    except NoDeviceError as error:
        return str(error)
"""


def test_what_a_gpu_of_the_shim_lacks_is_named(without_null_hardware: dict[str, str]) -> None:
    needed = environment_of("radv:navi21", base=without_null_hardware)
    said = run_on_device(None, _WISHES, environment=without_null_hardware | needed)
    assert "no queue family 77" in said


def test_without_a_shim_the_package_is_named(
    without_null_hardware: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in without_null_hardware.items():
        monkeypatch.setenv(name, value)
    assert lacks_null_hardware(os.environ)
    monkeypatch.setattr(selectors, "shim_at_hand", lambda _: None)
    with pytest.raises(NoDeviceError, match=r"no null hardware.*install mesa-drm-shim"):
        families.expand("radv:navi21")


def test_no_shim_is_taken_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LD_PRELOAD takes a name without a folder from the system's folders alone (ld.so(8))."""
    (tmp_path / "libamdgpu_noop_drm_shim.so").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert shim_at_hand({}) != "libamdgpu_noop_drm_shim.so"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert shim_at_hand({}) == str(tmp_path / "libamdgpu_noop_drm_shim.so")


def test_the_gpus_of_a_shim_are_those_in_its_row(tmp_path: Path) -> None:
    shim = tmp_path / "shim.so"
    shim.write_bytes(b"\0amdgpu\0renoir\0raven2\0gfx1150\0\0shim\0")
    assert gpus_of(str(shim)) == ("renoir", "raven2", "gfx1150")
    shim.write_bytes(b"\0amdgpu\0")
    assert gpus_of(str(shim)) == gpus_of(str(tmp_path / "none.so")) == ()


def run(environment: dict[str, str], *arguments: str) -> Done:
    return run_program(*arguments, "--json", environment=environment, unset=("RADV_FORCE_FAMILY",))


def compiled(environment: dict[str, str], *arguments: str) -> dict[str, Any]:
    done = run(environment, "compile", *arguments)
    assert done.code == 0, done.err
    return done.document


def test_compiles_start_with_the_shim(without_null_hardware: dict[str, str], tmp_path: Path) -> None:
    """In a child, which this program cannot fork; in several, and in a program that starts itself again."""
    keys = write_small_set(tmp_path / "small.foz", 0, 8)
    kept = (str(tmp_path / "small.foz"), "--cache-dir", str(tmp_path / "kept"))
    both = compiled(without_null_hardware, *kept, "--device", "radv:navi3*", "--device", "radv:navi21")
    names = [each["report"]["device"]["device_name"] for each in both["targets"]]
    assert len(names) >= 2
    assert all("hardware" not in each for each in names)
    assert [each for each in names if "NAVI21" in each] == [names[-1]]
    for more in (), ("--in-process",):
        again = compiled(without_null_hardware, *kept, "--device", "radv:navi21", *more)
        assert again["device"]["device_name"] == names[-1]
        assert again["outcomes"]["compiled"] == 0
        assert again["outcomes"]["cache_hits"] == len(keys)


def test_a_program_does_not_start_again_with_a_gpu_that_the_shim_lacks(
    without_null_hardware: dict[str, str],
) -> None:
    refused = run(without_null_hardware, "calibrate", "--device", "radv:navi999")
    assert refused.code == 3, refused.err
    assert "no family 'navi999'" in refused.document["error"]["message"]


def test_the_gpus_of_the_shim_are_the_families(without_null_hardware: dict[str, str]) -> None:
    listed = run(without_null_hardware, "devices", "--device", "radv:navi[23]*").document
    found = {each["family"]: each["device_id"] for each in listed["families"]}
    assert {"navi21": 0x73BF, "navi31": 0x744C}.items() <= found.items()
    refused = run(without_null_hardware, "devices", "--device", "radv:navi22")
    assert refused.code == 3
    assert "no family 'navi22': near to it are navi21" in refused.document["error"]["message"]
