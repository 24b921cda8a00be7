"""The names that drivers' profiles bring, whatever these files contain."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.key_dependence.variations import known_names, set_here
from tests.key_dependence.planted import MESA_RADV

PROFILE = (
    "<driconf><device driver='radv'><application executable='{}'></application></device></driconf>".format
)


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRIRC_CONFIGDIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("encoding", ["no-such-encoding", "utf-32"])
def test_a_profile_in_an_encoding_that_cannot_be_read_gives_no_names(profiles: Path, encoding: str) -> None:
    (profiles / "00.conf").write_text(
        f"<?xml version='1.0' encoding='{encoding}'?>{PROFILE('lost')}", "utf-8"
    )
    (profiles / "01.conf").write_text(PROFILE("found"), "utf-8")
    executables = known_names(MESA_RADV).executables
    assert "found" in executables
    assert "lost" not in executables


def test_names_of_directories_are_no_executables(profiles: Path) -> None:
    for number, name in enumerate([".", "..", "a/b", ".hidden"]):
        (profiles / f"{number}.conf").write_text(PROFILE(name), "utf-8")
    executables = known_names(MESA_RADV).executables
    assert ".hidden" in executables
    assert not {".", "..", "a/b"} & set(executables)


def test_what_a_name_alone_does_not_select_is_told_and_not_tried(profiles: Path) -> None:
    for number, quoted in enumerate(["runner' sha1='0c40", "' executable_regexp='Mari[0-9]+", "game"]):
        (profiles / f"{number}.conf").write_text(PROFILE(quoted), "utf-8")
    known = known_names(MESA_RADV)
    assert known.unreadable == ("runner", "Mari[0-9]+")
    assert "game" in known.executables
    assert not {"runner", "Mari[0-9]+"} & set(known.executables)


def test_variables_of_the_driver_that_are_set_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    base = {"RADV_DEBUG": "nongg", "radv_clear_lds": "true", "ACO_DEBUG": "", "INTEL_DEBUG": "no8", "A": "b"}
    monkeypatch.setattr("os.environ", base)
    assert set_here(MESA_RADV) == {"RADV_DEBUG": "nongg", "radv_clear_lds": "true"}
    newer = {"radv_force_nan_preserve_min_max": "true", "radv_rt_wave64": "true"}  # of Mesa 26
    monkeypatch.setattr("os.environ", newer)
    assert set_here(MESA_RADV) == newer
