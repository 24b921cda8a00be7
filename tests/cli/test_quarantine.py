"""The verb `quarantine`: what it shows is what `compile` leaves out, and what it clears is tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.errors import ExitCode
from orchestrator.devices.simulated import simulated_identity
from orchestrator.stores.culprits import QUARANTINE, Cause, Culprit, add_culprits
from orchestrator.stores.state import state_path
from tests.cli.conftest import Call
from tests.run.small_sets import compute_keys
from tests.stores.stored import damage

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


def test_no_text_of_a_file_reaches_the_terminal_as_a_command(call: Call, folder: Path) -> None:
    culprit = Culprit(key=KEYS[0], kind="\x1b[2J", cause=Cause.EXIT, reason="\x1b]0;title\x07", seen_at=1.0)
    add_culprits(folder, simulated_identity(), [culprit])
    said = call("quarantine", "list", "--cache-dir", folder).out
    assert "\x1b" not in said
    assert r"\x1b]0;title\x07" in said


def test_what_is_cleared_is_tried_again(call: Call, small_set: Path, folder: Path) -> None:
    done = call("quarantine", "clear", KEYS[0], "00000000000000aa", "--cache-dir", folder)
    assert done.code == ExitCode.BAD_INPUT
    assert "00000000000000aa is not in quarantine, so nothing was cleared" in done.err
    (held,) = call("quarantine", "--cache-dir", folder, "--json").document["quarantines"]
    assert len(held["culprits"]) == 2
    assert "1 pipeline will be tried again" in call("quarantine", "clear", KEYS[1], "--cache-dir", folder).out
    arguments = ("compile", small_set, "--device", "simulated", "--cache-dir", folder, "--in-process")
    assert [each["key"] for each in call(*arguments, "--json").document["failed"]] == KEYS[:1]
    assert call("quarantine", "clear", "--cache-dir", folder, "--json").document["cleared"] == 1
    assert "no pipeline is in quarantine" in call("quarantine", "list", "--cache-dir", folder).out


def test_one_that_cannot_be_used_is_not_empty(call: Call, folder: Path) -> None:
    damage(folder, QUARANTINE)
    for what in ("list", "clear"):
        done = call("quarantine", what, "--cache-dir", folder)
        assert done.code == ExitCode.BAD_INPUT
        assert "not used: it is damaged" in done.out
        assert "no pipeline is in quarantine" not in done.out
    state_path(folder).write_bytes(b"no database" * 100)
    done = call("quarantine", "list", "--cache-dir", folder)
    assert done.code == ExitCode.BAD_INPUT
    assert "file is not a database" in done.err


def test_what_it_is_not_told_right(call: Call, folder: Path) -> None:
    for wrong in (("burn",), ("list", KEYS[0]), ("clear", "xyz")):
        assert call("quarantine", *wrong, "--cache-dir", folder).code == ExitCode.BAD_INPUT
