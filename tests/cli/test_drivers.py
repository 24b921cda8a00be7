"""The command line on RADV and lavapipe.

A verb that loads a driver into its process has one of its own; all others leave that to a child.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
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


Ask = Callable[..., Done]


@pytest.fixture
def ask(call: Call, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Call a verb with a device, for its document."""
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)

    def asked(device: str, *arguments: str | Path) -> Done:
        driver_manifest(device)
        return call(*arguments, "--device", device, "--json")

    return asked


def test_what_radv_says_of_the_machine_is_not_shown(ask: Ask, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    ask("radv:navi21", "compile", "sample", "--shard", "1/50", "--cache-dir", cache)
    (file,) = cache.glob("*.pipeline-cache")
    done = ask("radv:navi21", "inspect", file)
    assert (done.code, done.err) == (ExitCode.OK, "")
    done = run_program("merge", file, "-o", tmp_path / "merged", "-d", "radv:navi21", unset=UNSET)
    assert (done.code, done.err) == (ExitCode.OK, "")


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
    done = run_program(
        *("compile", "sample", "-d", "radv:navi21", "--shard", "1/50", "--mode", "none"),
        environment={"LOCPATH": str(locales), "LC_ALL": "tr_TR.UTF-8"},
        unset=UNSET,
    )
    assert done.code == ExitCode.OK, done.err


@pytest.mark.parametrize("device", ["radv:navi21", "lavapipe"])
def test_doctor_misses_no_feature_that_devices_lists(ask: Ask, device: str, tmp_path: Path) -> None:
    done = ask(device, "devices")
    assert (done.code, done.err) == (ExitCode.OK, "")
    (listed,) = done.document["devices"]
    findings = ask(device, "doctor", "--cache-dir", tmp_path).document["findings"]
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


def test_devices_without_a_selector_lists_what_the_loader_finds(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in driver_environment("lavapipe").items():
        monkeypatch.setenv(name, value)
    done = call("devices", "--json")
    assert done.code == ExitCode.OK, done.err
    assert "llvmpipe" in done.document["devices"][0]["device_name"]
    assert done.document["devices"][0]["selector"] == "0"


def test_many_workers_of_which_few_take_hits_find_all_and_compile_what_is_new(
    ask: Ask, tmp_path: Path
) -> None:
    arguments = ("sample", "--workers", "8", "--cache-dir", tmp_path / "cache")
    some = ask("radv:navi21", "compile", *arguments, "--shard", "1/12").document
    check_outcomes(some)
    found = ask("radv:navi21", "compile", *arguments, "--shard", "1/12").document
    made = some["outcomes"]["compiled"] + some["outcomes"]["cache_hits"]
    assert (found["outcomes"]["compiled"], found["outcomes"]["cache_hits"]) == (0, made)
    # What the cache lacks is compiled beside what it holds.
    done = ask("radv:navi21", "compile", *arguments, "--shard", "1/6").document
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
    if verb != "calibrate":
        assert "no family 'navi999': near to it are navi" in refusal(call, verb, "radv:navi999", tmp_path)
    if verb not in VERBS_WITH_SEVERAL_DEVICES:
        assert "'radv:navi2*' stands for several devices" in refusal(call, verb, "radv:navi2*", tmp_path)


def test_radv_without_a_gpu_says_what_needs_none(ask: Ask) -> None:
    if Path("/dev/dri").exists():
        unsupported("this machine may have a GPU that RADV is for")
    done = ask("radv", "devices")
    assert done.code == ExitCode.NO_DEVICE
    assert "radv:navi21 needs no GPU" in done.document["error"]["message"]
    assert "install " not in done.document["error"]["message"]
