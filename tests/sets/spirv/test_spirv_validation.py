"""Validation by spirv-val."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import RecordTag
from orchestrator.sets.sample import sample_path
from orchestrator.sets.spirv.validation import (
    SpirvVerdict,
    ValidationLimits,
    validate_modules,
    without_source_notes,
)
from orchestrator.sets.spirv.walk import walk_spirv
from tests.drivers import require_tool


def modules() -> list[tuple[int, bytes]]:
    """Some modules of the sample."""
    with PipelineSet.open(sample_path()) as sample:
        keys = sample.records.keys(RecordTag.SHADER_MODULE)[:6]
        return [(key, sample.module(key).code) for key in keys]


def fake(folder: Path, body: str) -> str:
    """A program that stands in for spirv-val."""
    path = folder / "spirv-val"
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n", "utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_good_modules_are_valid_and_a_mutated_one_is_not() -> None:
    program = require_tool("spirv-val")
    good = modules()
    # The last word but one of a function's end: OpReturn becomes an opcode that is none.
    broken = bytearray(good[0][1])
    broken[-8:-4] = (0x0001FFFF).to_bytes(4, "little")
    found = validate_modules([*good, (1, bytes(broken))], program, processes=2)
    assert {found[key].verdict for key, _ in good} == {SpirvVerdict.VALID}
    assert found[1].verdict is not SpirvVerdict.VALID
    assert found[1].reason.startswith("spirv-val: ")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("os.kill(os.getpid(), 11)", "killed by signal 11"),
        ("time.sleep(60)", "no answer after"),
        ("while True: pass", "killed by signal"),
        ("sys.exit(3)", "exit status 3"),
        ("print('error: Invalid capability operand: 9999', file=sys.stderr); sys.exit(1)", "9999"),
    ],
)
def test_what_ends_a_validator_is_no_verdict(tmp_path: Path, body: str, words: str) -> None:
    # One limit is to fire and the other must not, however busy the machine is: what burns is given wall time
    # in plenty, and what sleeps uses no CPU time.
    sleeps = body.startswith("time.sleep")
    limits = ValidationLimits(cpu_s=1, wall_s=0.5 if sleeps else 120.0, memory_bytes=512 << 20)
    ((_, judgement),) = validate_modules(modules()[:1], fake(tmp_path, body), limits=limits).items()
    assert judgement.verdict is SpirvVerdict.UNKNOWN
    assert words in judgement.reason


def test_memory_is_bounded(tmp_path: Path) -> None:
    limits = ValidationLimits(memory_bytes=512 << 20)
    program = fake(tmp_path, "bytearray(1 << 32)")
    ((_, judgement),) = validate_modules(modules()[:1], program, limits=limits).items()
    assert "MemoryError" in judgement.reason


def test_a_refusal_is_a_verdict_and_a_batch_survives_its_members(tmp_path: Path) -> None:
    body = "name = os.path.basename(sys.argv[-1])\nif name.startswith('0000000000000001'): os.abort()\n"
    body += "print('error: line 1: no', file=sys.stderr); sys.exit(1)"
    code = modules()[0][1]
    found = validate_modules([(1, code), (2, code), (3, code)], fake(tmp_path, body))
    assert [found[key].verdict for key in (1, 2, 3)] == [
        SpirvVerdict.UNKNOWN,
        SpirvVerdict.INVALID,
        SpirvVerdict.INVALID,
    ]
    assert found[2].reason == "spirv-val: error: line 1: no"


def test_no_program(tmp_path: Path) -> None:
    found = validate_modules(modules()[:2], str(tmp_path / "nothing"), processes=2)
    assert {each.verdict for each in found.values()} == {SpirvVerdict.UNKNOWN}


def test_notes_on_the_source_are_left_out_and_nothing_else() -> None:
    for _, code in modules():
        kept = without_source_notes(code)
        assert len(kept) <= len(code)
        assert walk_spirv(kept).entry_points == walk_spirv(code).entry_points
        words = [int.from_bytes(kept[at : at + 4], "little") for at in range(20, len(kept), 4)]
        at = 0
        while words[at] & 0xFFFF != 54:
            assert words[at] & 0xFFFF not in (2, 3, 4)
            at += words[at] >> 16
    for broken in (b"", b"abc", code[:19], code[:20] + bytes(4)):
        assert without_source_notes(broken) == broken
