"""The verb `quarantine`: what it shows is what `compile` leaves out, and what it clears is tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.errors import ExitCode
from orchestrator.devices.simulated import simulated_identity
from orchestrator.stores.culprits import Cause, Culprit, add_culprits
from tests.cli.conftest import Call
from tests.run.small_sets import compute_keys

KEYS = [f"{key:016x}" for key in compute_keys()[:2]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    culprits = [
        Culprit(
            key=key, kind="compute", cause=Cause.SIGNAL, signal="SIGSEGV", reason="it crashed", seen_at=1.0
        )
        for key in KEYS
    ]
    add_culprits(folder, simulated_identity(), culprits)
    return folder


def test_compile_leaves_out_what_it_shows(call: Call, small_set: Path, folder: Path) -> None:
    shown = call("quarantine", "list", "--cache-dir", folder)
    assert all(key in shown.out for key in KEYS)
    document = call("quarantine", "--cache-dir", folder, "--json").document
    (held,) = document["quarantines"]
    assert [each["key"] for each in held["culprits"]] == KEYS
    arguments = ("compile", small_set, "--device", "simulated", "--cache-dir", folder, "--in-process")
    done = call(*arguments, "--json")
    assert done.code == ExitCode.PIPELINES_FAILED
    assert [each["key"] for each in done.document["failed"]] == sorted(KEYS)
    assert {each["reason"] for each in done.document["failed"]} == {"it crashed"}
    assert any("2 pipelines are in quarantine" in each for each in done.document["notes"])
    assert call(*arguments, "--json", "--only", KEYS[0]).document["outcomes"]["compiled"] == 1
    assert call(*arguments, "--json", "--retry-quarantined").code == ExitCode.OK


def test_what_is_cleared_is_tried_again(call: Call, small_set: Path, folder: Path) -> None:
    assert "1 pipeline will be tried again" in call("quarantine", "clear", KEYS[1], "--cache-dir", folder).out
    unknown = call("quarantine", "clear", KEYS[1], "--cache-dir", folder, "--json")
    assert unknown.code == ExitCode.BAD_INPUT
    assert "not in quarantine" in unknown.document["error"]["message"]
    arguments = ("compile", small_set, "--device", "simulated", "--cache-dir", folder, "--in-process")
    assert [each["key"] for each in call(*arguments, "--json").document["failed"]] == KEYS[:1]
    assert call("quarantine", "clear", "--cache-dir", folder, "--json").document["cleared"] == 1
    assert "no pipeline is in quarantine" in call("quarantine", "list", "--cache-dir", folder).out


def test_what_it_is_not_told_right(call: Call, folder: Path) -> None:
    for wrong in (("burn",), ("list", KEYS[0]), ("clear", "xyz")):
        assert call("quarantine", *wrong, "--cache-dir", folder).code == ExitCode.BAD_INPUT
