"""The command line on RADV and lavapipe.

The main job through the command line on a real driver, each call in a process of its own.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from orchestrator.cli.errors import ExitCode
from orchestrator.version import VERSION
from tests.cli.conftest import Call, Done, run_program
from tests.cli.test_compile import check_outcomes
from tests.drivers import driver_environment, driver_manifest, unsupported
from tests.stores.packs import make_pack

pytestmark = pytest.mark.driver
UNSET = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "RADV_FORCE_FAMILY")


def program(device: str, *arguments: str | Path) -> Done:
    driver_manifest(device)
    return run_program(*arguments, "--device", device, "--json", unset=UNSET)


def test_what_radv_says_of_the_machine_is_not_shown(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    program("radv:navi21", "compile", "sample", "--shard", "1/50", "--cache-dir", cache)
    (file,) = cache.glob("*.pipeline-cache")
    for arguments in (("inspect", file), ("merge", file, "-o", tmp_path / "merged")):
        done = program("radv:navi21", *arguments)
        assert (done.code, done.err) == (ExitCode.OK, ""), arguments


def test_a_locale_with_another_i_is_no_matter_to_a_driver(tmp_path: Path) -> None:
    """RADV compares names of families in LC_CTYPE, and ends the process over one that it does not know."""
    driver_manifest("radv:navi21")
    locales = tmp_path / "locales"
    locales.mkdir()
    made = subprocess.run(
        ["localedef", "-i", "tr_TR", "-f", "UTF-8", locales / "tr_TR.UTF-8"], capture_output=True, check=False
    )
    if made.returncode:
        unsupported(f"the sources of locales, which Debian has in `locales`: {made.stderr.decode()[:200]}")
    for how in ((), ("--in-process",)):
        done = run_program(
            *("compile", "sample", "-d", "radv:navi21", "--shard", "1/50", "--mode", "none", *how),
            environment={"LOCPATH": str(locales), "LC_ALL": "tr_TR.UTF-8"},
            unset=UNSET,
        )
        assert done.code == ExitCode.OK, done.err


@pytest.mark.parametrize("device", ["radv:navi21", "lavapipe"])
def test_doctor_misses_no_feature_that_devices_lists(device: str, tmp_path: Path) -> None:
    done = program(device, "devices")
    assert (done.code, done.err) == (ExitCode.OK, "")
    (listed,) = done.document["devices"]
    findings = program(device, "doctor", "--cache-dir", tmp_path).document["findings"]
    told = {each["subject"]: each["detail"] for each in findings}
    assert f"orchestrator {VERSION}" in told["program"]
    assert re.fullmatch(r"version 1\.\d+\.\d+", told["Vulkan loader"])
    if device == "radv:navi21":
        assert "NAVI21" in listed["device_name"]
        assert listed["features"]["externally_synchronized_caches"] is True
        assert listed["features"]["driver_caches"].startswith("disabled")
        assert re.search(r"radv Mesa \d+\.\d+", told["device radv:navi21"])
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
    check_outcomes(some)
    found = program("radv:navi21", "compile", *arguments, "--shard", "1/2").document
    made = some["outcomes"]["compiled"] + some["outcomes"]["cache_hits"]
    assert (found["outcomes"]["compiled"], found["outcomes"]["cache_hits"]) == (0, made)
    # What the cache lacks is compiled beside what it holds.
    done = program("radv:navi21", "compile", *arguments).document
    check_outcomes(done)
    assert done["outcomes"]["compiled"] > 0
    assert done["outcomes"]["cache_hits"] >= found["outcomes"]["cache_hits"]


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
    if verb == "calibrate":  # it owns its process, which has one target then
        done = run_program(verb, "-d", device, "--json", unset=UNSET)
        return str(done.document["error"]["message"])
    ours = ("results", "merged", "pack")
    places = [str(folder / each) if each in ours else each for each in VERBS_WITH_A_DEVICE[verb]]
    done = call(*verb.split(), *places, "-d", device, "--json")
    assert done.code == ExitCode.NO_DEVICE, done.err
    told = done.document
    if "error" in told:
        return str(told["error"]["message"])
    return " ".join(each["detail"] for each in told["findings"])


@pytest.mark.parametrize("verb", VERBS_WITH_A_DEVICE)
def test_neither_an_unknown_family_nor_a_pattern_where_one_device_is_expected_ends_anybody(
    call: Call, monkeypatch: pytest.MonkeyPatch, verb: str, tmp_path: Path
) -> None:
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)
    driver_manifest("radv:navi21")
    make_pack(tmp_path / "pack")
    assert "no family 'navi999': near to it are navi" in refusal(call, verb, "radv:navi999", tmp_path)
    if verb not in VERBS_WITH_SEVERAL_DEVICES:
        assert "'radv:navi2*' stands for several devices" in refusal(call, verb, "radv:navi2*", tmp_path)


def test_radv_without_a_gpu_says_what_needs_none() -> None:
    driver_manifest("radv:navi21")
    if Path("/dev/dri").exists():
        unsupported("this machine may have a GPU that RADV is for")
    done = run_program("devices", "-d", "radv", "--json", unset=UNSET)
    assert done.code == ExitCode.NO_DEVICE
    assert "radv:navi21 needs no GPU" in done.document["error"]["message"]
    assert "install " not in done.document["error"]["message"]
