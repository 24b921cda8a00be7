"""`doctor --keys`: what is shown, kept, and told afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from orchestrator.cli import doctor_keys
from orchestrator.cli.errors import ExitCode
from orchestrator.devices.device import DeviceIdentity
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.profile_file import (
    KeyProfile,
    NotTried,
    ProbedKind,
    load_key_profile,
)
from orchestrator.stores.state import state_path
from tests.cli.conftest import Call
from tests.stores.profiles import IDENTITY, key_profile, tried

SHADER_OBJECT = "VkPhysicalDeviceShaderObjectFeaturesEXT::shaderObject"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache directory that is not there yet."""
    return tmp_path / "cache"


def pretend(monkeypatch: pytest.MonkeyPatch, profile: KeyProfile) -> list[dict[str, Any]]:
    """Find a profile without asking a driver; what was asked for."""
    asked: list[dict[str, Any]] = []

    def find(device: str, **options: Any) -> tuple[DeviceIdentity, KeyProfile]:
        on_progress = options.pop("on_progress")
        on_progress("the baseline", 0, 0)
        on_progress("a feature", 1, 2)
        asked.append({"device": device, **options})
        return IDENTITY, profile

    monkeypatch.setattr(doctor_keys, "find_key_dependence", find)
    return asked


def test_the_simulated_device(call: Call, folder: Path) -> None:
    only = ("--only", "shaderObject")
    done = call("doctor", "--keys", "-d", "simulated", *only, "--cache-dir", folder, "--json")
    assert done.code == ExitCode.OK
    document = done.document
    assert document["depends"] == []
    assert {each["kind"]: each["problem"] for each in document["kinds"]} == dict.fromkeys(
        ("compute", "graphics", "pipeline library", "ray tracing"), ""
    )
    assert SHADER_OBJECT in {each["name"] for each in document["independent"]}
    assert (document["profile"], document["not_saved"][:16]) == (None, "only a part was ")


def test_what_matters_is_a_table_by_kind(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = key_profile(
        depends=(
            tried("WarThunder", "application name", identity=True),
            tried("Rage 2", "application name", identity=True),
            tried(SHADER_OBJECT),
            tried("1.3", "apiVersion", kinds=("compute",), untried=("graphics",)),
        ),
        independent=(
            tried("VK_KHR_swapchain", "extension"),
            tried("DXVK", "engine name"),
            tried("Unity", "engine name", kinds=("compute",), untried=("graphics",)),
        ),
        not_tried=(
            NotTried(aspect="layer", name="VK_LAYER_A", reason="the process ended with signal 11"),
            NotTried(aspect="extension", name="VK_B", reason="excluded"),
        ),
        notes=("a note",),
    )
    asked = pretend(monkeypatch, profile)
    done = call("doctor", "--keys", "-d", "some device", "--cache-dir", folder)
    assert done.code == ExitCode.OK
    assert asked == [{"device": "some device", "only": (), "time_limit_s": 1800.0}]
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert "ShaderObjectFeaturesEXT::shaderObject yes yes yes yes" in lines
    assert "application name: WarThunder, Rage 2 yes yes yes yes changes too" in lines
    assert "apiVersion: 1.3 yes ? - -" in lines
    counts = "1 × extension, 1 × engine name, 1 × engine name (not tried with every kind)"
    assert f"does not matter: {counts}" in lines
    assert "could not be tried, or not with all pipelines: 2" in lines
    assert "1 layer: the process ended with signal 11: VK_LAYER_A" in lines
    assert "note a note" in lines
    assert lines[-1].startswith("saved ")
    assert lines[-1].endswith(str(state_path(folder)))
    assert load_key_profile(folder, IDENTITY).profile == profile
    assert "the baseline" in done.err
    found = call("doctor", "-d", "simulated", "--cache-dir", folder)
    assert (
        "of 2001-09-09: on ShaderObjectFeaturesEXT::shaderObject, apiVersion 1.3, 2 application name settings"
        in found.out
    )


def test_what_is_measured_beside_variables_of_the_driver_is_not_kept(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = key_profile(depends=(tried(SHADER_OBJECT),), environment={"RADV_DEBUG": "nongg"})
    pretend(monkeypatch, profile)
    done = call("doctor", "--keys", "--cache-dir", folder)
    assert done.code == ExitCode.OK
    assert "ShaderObjectFeaturesEXT::shaderObject" in done.out
    assert "set here RADV_DEBUG=nongg" in " ".join(done.out.split())
    assert "unset RADV_DEBUG, and run again" in done.out
    document = call("doctor", "--keys", "--cache-dir", folder, "--json").document
    assert document["environment"] == {"RADV_DEBUG": "nongg"}
    assert document["profile"] is None
    assert "unset RADV_DEBUG" in document["not_saved"]
    assert load_key_profile(folder, IDENTITY).profile is None


def test_a_part_is_not_kept(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pretend(monkeypatch, key_profile(whole=False))
    options = ("--only", "shaderObject", "--only", "layer", "--time-limit", "90s")
    done = call("doctor", "--keys", *options, "--cache-dir", folder)
    assert done.code == ExitCode.OK
    assert asked == [{"device": "", "only": ("shaderObject", "layer"), "time_limit_s": 90.0}]
    assert "only a part was tried" in done.out
    assert load_key_profile(folder, IDENTITY).profile is None
    assert "the keys depend on nothing that was tried" in done.out


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (
            {"kinds": (ProbedKind(kind="compute", pipelines=2, usable=0, problem="A/A"),)},
            ExitCode.PIPELINES_FAILED,
        ),
        # What the device does not have is nobody's doubt.
        (
            {
                "kinds": (
                    ProbedKind(kind="compute", pipelines=2, usable=2),
                    ProbedKind(kind="ray tracing", pipelines=0, usable=0, problem="none"),
                )
            },
            ExitCode.OK,
        ),
    ],
)
def test_exit_codes(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], code: ExitCode
) -> None:
    pretend(monkeypatch, key_profile(**changes))
    done = call("doctor", "--keys", "--cache-dir", folder, "--json")
    assert done.code == code
    if "kinds" in changes:  # what says nothing is not kept
        assert (done.document["profile"] is None) is (code != ExitCode.OK)
        assert (load_key_profile(folder, IDENTITY).profile is None) is (code != ExitCode.OK)


def test_usage(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("doctor", "--keys", "-d", "no such device", "--cache-dir", folder).code == ExitCode.NO_DEVICE

    def refuse(*_: object) -> Path:
        raise SaveError(folder, "writing", "no space left")

    pretend(monkeypatch, key_profile(depends=(tried(SHADER_OBJECT),)))
    monkeypatch.setattr(doctor_keys, "save_key_profile", refuse)
    done = call("doctor", "--keys", "--cache-dir", folder)
    assert done.code == ExitCode.BAD_INPUT
    assert "no space left" in done.err
    # What was measured is shown all the same.
    assert "ShaderObjectFeaturesEXT::shaderObject" in done.out
    assert "no space left" in done.out
    done = call("doctor", "--keys", "--cache-dir", folder, "--json")
    assert done.code == ExitCode.BAD_INPUT
    assert [each["name"] for each in done.document["depends"]] == [SHADER_OBJECT]
    assert done.document["profile"] is None
    assert "no space left" in done.document["not_saved"]


def test_a_profile_of_another_driver_is_a_hint(call: Call, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    other = evolve(IDENTITY, driver_version=77)
    profile = key_profile(identity=type(key_profile().identity).of(other))
    from orchestrator.stores.profile_file import save_key_profile

    save_key_profile(folder, IDENTITY, profile)
    findings = call("doctor", "-d", "simulated", "--cache-dir", folder, "--json").document["findings"]
    (known,) = [each for each in findings if each["subject"].endswith("what its keys depend on")]
    assert known["state"] == "hint"
    assert "driverVersion is 0x4d, not 0x1" in known["detail"]
    assert "doctor --keys" in known["next_step"]
