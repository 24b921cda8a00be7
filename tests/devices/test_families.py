"""Families of RADV's null hardware: what the installed driver takes, and how the search finds them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.children.parent import Child
from orchestrator.children.protocol import SentError
from orchestrator.devices.families import (
    Answer,
    AskAll,
    Family,
    expand,
    is_family,
    is_pattern,
    null_hardware_families,
    require_family,
)
from orchestrator.devices.families_service import candidates, search
from orchestrator.errors import NoDeviceError
from tests.drivers import driver_manifest, has_null_hardware, run_on_device, unsupported

FULL_SEARCH = "ORCHESTRATOR_FAMILIES"


@pytest.fixture(scope="module")
def families() -> tuple[Family, ...]:
    """The families of the installed driver, asked for once."""
    driver_manifest("radv:navi21")
    return null_hardware_families()


def _opens(selector: str) -> tuple[str, int]:
    from orchestrator.devices import open_device, own_process

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
    assert not {"abgr", "array_mode", "any"} & set(ids)
    assert len(ids) == len(families) >= (40 if has_null_hardware() else 20)
    assert all(each == each.lower() for each in ids)
    # By the device itself, opened in the usual way, in a process of its own.
    name, device_id = run_on_device("radv:navi31", f"{__name__}:_opens", "radv:navi31")
    assert "RADV NAVI31" in name
    assert device_id == ids["navi31"]


def test_one_name_is_asked_for_alone() -> None:
    driver_manifest("radv:navi21")
    assert is_family("NAVI21")
    # A name of registers that is in the library as names of families are.
    assert not is_family("abgr")
    assert not is_family("navi999")
    with pytest.raises(NoDeviceError, match=r"no family 'navi999': near to it are navi\d\d"):
        require_family("radv:navi999")
    # A text of the library that is no family: the driver itself is asked.
    with pytest.raises(NoDeviceError, match="no family 'abgr'"):
        require_family("radv:abgr")
    for selector in ("radv", "RADV:NAVI21", "radv:gfx1201", "lavapipe", "0", "", "simulated"):
        require_family(selector)


def asked_families(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Receives the names that the driver is asked for from now on; it has them all."""
    asked: list[str] = []

    def note(name: str) -> bool:
        asked.append(name)
        return True

    monkeypatch.setattr("orchestrator.devices.families.is_family", note)
    return asked


def test_most_families_are_seen_in_the_library_without_asking_the_driver(
    families: tuple[Family, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asked_families(monkeypatch)
    for each in families:
        require_family(each.selector)
    assert len(asked) < len(families) / 2
    assert not {"navi21", "navi31", "vega10", "raven", "polaris10"} & set(asked)


def test_of_a_name_that_the_compiler_has_too_the_driver_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_null_hardware():
        unsupported("null hardware: the drm-shim has a list of its GPUs")
    asked = asked_families(monkeypatch)
    require_family("radv:gfx1100")  # the compiler's name of Navi 31, and no family
    assert asked == ["gfx1100"]


def test_the_library_for_this_architecture_is_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = driver_manifest("radv:navi21")
    foreign = tmp_path / "libvulkan_radeon.so"
    foreign.write_bytes(b"\x7fELF\x01\x01\x01".ljust(16, b"\0") + b"\3\0\3\0")  # 32 bits, i386
    other = tmp_path / "radeon_icd.other.json"
    other.write_text(
        f'{{"file_format_version": "1.0.0", "ICD": {{"api_version": "1.4", "library_path": "{foreign}"}}}}'
    )
    asked = asked_families(monkeypatch)
    for files in ([other, own], [own, other]):
        monkeypatch.setenv("VK_DRIVER_FILES", os.pathsep.join(map(str, files)))
        require_family("radv:navi21")
    assert asked == []  # the library said it, without the driver


@pytest.mark.parametrize("variable", ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"])
def test_drivers_are_named_as_a_loader_takes_it(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = driver_manifest("radv:navi21")
    asked = asked_families(monkeypatch)
    for other in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(variable, str(manifest))
    require_family("radv:navi21")
    assert asked == []


def test_patterns_stand_for_the_families_that_fit() -> None:
    driver_manifest("radv:navi21")
    assert [each.selector for each in expand("RADV:Navi3[13]")] == ["radv:navi31", "radv:navi33"]
    with pytest.raises(NoDeviceError, match=r"no family 'navi9\*'"):
        expand("radv:navi9*")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("radv:*", True), ("radv:navi3?", True), ("radv:gfx1[12]*", True), ("radv:navi21", False), ("*", False)],
)
def test_what_is_a_pattern(text: str, expected: bool) -> None:
    assert is_pattern(text) is expected


def test_without_the_driver_a_reason_comes_back() -> None:
    environment = {**os.environ, "ORCHESTRATOR_VULKAN_LIBRARY": "libno-such-vulkan.so"}
    with Child[Answer]("families", Answer, environment=environment) as child:
        answer = child.ask(AskAll(), 60.0)
    assert isinstance(answer, SentError)
    assert "libno-such-vulkan.so" in answer.message


def test_candidates_are_whole_texts_each_once(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.write_bytes(b"\x7fELF\0NAVI21\0xNAVI22\0NAVI23 \0NAVI31\0NAVI21\0AB\0GFX12_A\0NAVI33")
    assert candidates(library, re.compile(rb"(?<=\0)[A-Z][A-Z0-9_]{2,31}(?=\0)")) == [
        "NAVI21",
        "NAVI31",
        "GFX12_A",
    ]


def test_names_that_lie_together_are_found_and_few_others_are_asked() -> None:
    names = [f"text{number}" for number in range(1000)]
    # Not one in each stride, with holes of seven, and up to both ends of the list.
    taken = {*names[301:308], *names[315:360], *names[367:370], *names[-9:], *names[:2]}
    asked: list[str] = []

    def takes(name: str) -> bool:
        asked.append(name)
        return name in taken

    assert search(names, takes, stride=8) == [each for each in names if each in taken]
    assert len(asked) == len(set(asked))
    assert len(asked) < 1000 / 8 + len(taken) + 2 * 8 * 4
    assert search([], takes) == []
    assert search(names[10:200], takes) == []


@pytest.mark.parametrize("spelled", [str.lower, str.upper])
def test_the_first_families_lead_to_the_others(spelled: Callable[[str], str]) -> None:
    names = [f"text{number}" for number in range(1000)]
    firsts = [spelled(each) for each in ("tahiti", "pitcairn", "verde")]
    names[100:101] = firsts[:1]  # as one of another table
    names[500:503] = firsts
    taken = {*names[497:508], *names[514:520], *names[800:809]}
    asked: list[str] = []

    def takes(name: str) -> bool:
        asked.append(name)
        return name in taken

    assert search(names, takes, stride=8) == [*names[497:508], *names[514:520]]
    assert len(asked) == len(names[489:528])
    # Where the driver has these no longer, it is asked for others.
    taken -= set(firsts)
    assert search(names, takes, stride=8) == [each for each in names if each in taken]


def test_no_family_lies_apart_from_the_others(families: tuple[Family, ...]) -> None:
    """Every sixteenth name of the library is tried, and all of them where ORCHESTRATOR_FAMILIES is set."""
    if not has_null_hardware():
        unsupported("null hardware: no name is tried where the drm-shim has a list of its GPUs")
    tried, taken = run_on_device("radv:navi21", f"{__name__}:_tried", 1 if FULL_SEARCH in os.environ else 16)
    names = {each.name for each in families}
    assert taken == [each for each in tried if each in names]
    assert taken


def _tried(stride: int) -> tuple[list[str], list[str]]:
    """Names of the library, each a stride behind the one before, and those that the driver takes."""
    from orchestrator.devices.families_service import _CAPITALS, _driver_library
    from orchestrator.devices.vulkan.null_hardware import NullHardware

    with NullHardware.open() as hardware:
        names = candidates(_driver_library(), _CAPITALS)[::stride]
        taken = [each.lower() for each in names if hardware.device_id(each) is not None]
        return [each.lower() for each in names], taken
