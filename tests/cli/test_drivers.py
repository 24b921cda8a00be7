"""The command line on RADV and lavapipe.

The main job through the command line on a real driver, each call in a process of its own.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.cli.errors import ExitCode
from orchestrator.version import VERSION
from tests.cli.conftest import Call, Done, run_program
from tests.cli.test_compile import check_outcomes, handed_over
from tests.drivers import driver_environment, driver_manifest, unsupported
from tests.stores.packs import make_pack

pytestmark = pytest.mark.driver
UNSET = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "RADV_FORCE_FAMILY")


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the choice of drivers to the selector."""
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)


def program(device: str, *arguments: str | Path) -> Done:
    driver_manifest(device)
    return run_program(*arguments, "--device", device, "--json", unset=UNSET)


def test_devices() -> None:
    done = program("radv:navi21", "devices")
    assert done.code == ExitCode.OK, done.err
    (device,) = done.document["devices"]
    assert "NAVI21" in device["device_name"]
    assert device["features"]["externally_synchronized_caches"] is True
    assert device["features"]["driver_caches"].startswith("disabled")


def test_what_radv_says_of_the_machine_is_not_shown(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    program("radv:navi21", "compile", "sample", "--shard", "1/50", "--cache-dir", cache)
    (file,) = cache.glob("*.pipeline-cache")
    for arguments in (
        ("devices",),
        ("inspect", file),
        ("merge", file, "-o", tmp_path / "merged"),
    ):
        done = program("radv:navi21", *arguments)
        assert (done.code, done.err) == (ExitCode.OK, ""), arguments


def test_doctor_tells_the_versions_of_the_program_the_loader_and_mesa(tmp_path: Path) -> None:
    done = program("radv:navi21", "doctor", "--cache-dir", tmp_path)
    told = {each["subject"]: each["detail"] for each in done.document["findings"]}
    assert f"orchestrator {VERSION}" in told["program"]
    assert re.fullmatch(r"version 1\.\d+\.\d+", told["Vulkan loader"])
    assert re.search(r"radv Mesa \d+\.\d+", told["device radv:navi21"])


@pytest.mark.parametrize("device", ["radv:navi21", "lavapipe"])
def test_doctor_misses_no_feature_that_devices_lists(device: str, tmp_path: Path) -> None:
    (listed,) = program(device, "devices").document["devices"]
    findings = program(device, "doctor", "--cache-dir", tmp_path).document["findings"]
    missed = {each["subject"] for each in findings if each["detail"] == "not available"}
    merges = listed["features"]["internally_synchronized_merge"]
    assert any("VK_KHR_maintenance8" in each for each in missed) is not merges
    binaries = listed["features"]["pipeline_binaries"]
    assert any("VK_KHR_pipeline_binary" in each for each in missed) is not binaries


def test_devices_without_a_selector_lists_what_the_loader_finds() -> None:
    done = run_program("devices", "--json", environment=driver_environment("lavapipe"))
    assert done.code == ExitCode.OK, done.err
    assert "llvmpipe" in done.document["devices"][0]["device_name"]
    assert done.document["devices"][0]["selector"] == "0"


def test_many_workers_of_which_few_take_hits_find_all_and_compile_what_is_new(tmp_path: Path) -> None:
    arguments = ("sample", "--workers", "8", "--cache-dir", tmp_path / "cache")
    some = program("radv:navi21", "compile", *arguments, "--shard", "1/2").document
    found = program("radv:navi21", "compile", *arguments, "--shard", "1/2").document
    made = some["outcomes"]["compiled"] + some["outcomes"]["cache_hits"]
    assert (found["outcomes"]["compiled"], found["outcomes"]["cache_hits"]) == (0, made)
    # What the cache lacks is compiled beside what it holds, and then all is there.
    done = program("radv:navi21", "compile", *arguments).document
    assert done["outcomes"]["compiled"] > 0
    assert done["outcomes"]["cache_hits"] >= found["outcomes"]["cache_hits"]
    again = program("radv:navi21", "compile", *arguments).document
    assert (again["outcomes"]["compiled"], again["outcomes"]["failed"]) == (0, 0)
    assert again["outcomes"]["cache_hits"] == handed_over(done)


def test_the_second_run_of_the_sample_has_hits_only(tmp_path: Path) -> None:
    arguments = ("sample", "--mode", "shared", "--workers", "2", "--cache-dir", tmp_path / "cache")
    first = program("radv:navi21", "compile", *arguments)
    assert first.code == ExitCode.OK, first.err
    check_outcomes(first.document)
    assert first.document["outcomes"]["compiled"] > 0
    assert first.document["outcomes"]["failed"] == 0
    second = program("radv:navi21", "compile", *arguments)
    assert second.code == ExitCode.OK, second.err
    check_outcomes(second.document)
    assert second.document["cache_file"]["load_status"] == "LOADED"
    assert second.document["outcomes"]["compiled"] == 0
    assert second.document["outcomes"]["cache_hits"] == handed_over(first.document)


VERBS_WITH_A_DEVICE = {
    "devices": (),
    "compile": ("sample",),
    "bench": ("sample", "-o", "results"),
    "calibrate": (),
    "doctor": (),
    "doctor --keys": (),
    "inspect": ("game.foz",),
    "merge": ("a.pipeline-cache", "b.pipeline-cache", "-o", "merged"),
    "install": ("pack", "--unsigned"),
}
VERBS_WITH_SEVERAL_DEVICES = ("devices", "compile")
"""Those take a pattern, which stands for several."""


def refusal(call: Call, verb: str, device: str, folder: Path) -> str:
    """What a verb says as it ends because of its device; no driver is loaded into this process."""
    make_pack(folder / "pack")
    ours = ("results", "merged", "pack")
    places = [str(folder / each) if each in ours else each for each in VERBS_WITH_A_DEVICE[verb]]
    done = call(*verb.split(), *places, "-d", device, "--json")
    assert done.code == ExitCode.NO_DEVICE, done.err
    told = done.document
    if "error" in told:
        return str(told["error"]["message"])
    return " ".join(each["detail"] for each in told["findings"])


@pytest.mark.parametrize("verb", VERBS_WITH_A_DEVICE)
def test_a_family_that_mesa_does_not_know_ends_nobody(
    call: Call, unset: None, verb: str, tmp_path: Path
) -> None:
    driver_manifest("radv:navi21")
    assert "no family 'navi999': near to it are navi" in refusal(call, verb, "radv:navi999", tmp_path)


@pytest.mark.parametrize("verb", sorted(VERBS_WITH_A_DEVICE.keys() - set(VERBS_WITH_SEVERAL_DEVICES)))
def test_a_pattern_where_one_device_is_expected_ends_nobody(
    call: Call, unset: None, verb: str, tmp_path: Path
) -> None:
    driver_manifest("radv:navi21")
    assert "'radv:navi2*' stands for several devices" in refusal(call, verb, "radv:navi2*", tmp_path)


def test_radv_without_a_gpu_says_what_needs_none() -> None:
    driver_manifest("radv:navi21")
    if Path("/dev/dri").exists():
        unsupported("this machine may have a GPU that RADV is for")
    done = run_program("devices", "-d", "radv", "--json", unset=UNSET)
    assert done.code == ExitCode.NO_DEVICE
    assert "radv:navi21 needs no GPU" in done.document["error"]["message"]
    assert "install " not in done.document["error"]["message"]
