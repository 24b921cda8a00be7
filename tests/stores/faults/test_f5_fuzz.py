"""F5: whatever bytes come, errors are typed, and memory stays within a ceiling.

The bytes are those of an archive, a document, a module, a cache file or a child process.

Some hundred inputs a target, the same in each run. The whole campaign goes on for a minute a target with
other inputs each time; the seed of a failing round is in its message.
"""

from __future__ import annotations

import itertools
import time
import zlib
from typing import Any

import pytest
from attrs import evolve
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from orchestrator.children import protocol as frames_module
from orchestrator.errors import OrchestratorError
from orchestrator.sets.archive import reader as archive_module
from orchestrator.sets.spirv import walk as spirv_module
from tests.campaigns import tries
from tests.stores.faults.conftest import CountCases
from tests.stores.faults.fuzz_targets import TARGETS, Target, judge

EXAMPLES = 200
SECONDS = tries(0, 60)
BY_NAME = {target.name: target for target in TARGETS}

# One change: what (flip, cut, insert, overwrite, repeat, swap), where, how much, and with what.
CHANGE = st.tuples(
    st.integers(0, 5), st.floats(0, 1), st.integers(0, 64), st.integers(0, 255), st.binary(max_size=8)
)


def changed(
    data: bytes, changes: list[tuple[int, float, int, int, bytes]], tokens: tuple[bytes, ...]
) -> bytes:
    """Bytes with changes made to them."""
    found = bytearray(data)
    for kind, place, length, value, binary in changes:
        at = int(place * len(found))
        piece = tokens[value % len(tokens)] if tokens and value & 1 else binary
        if kind == 0 and found:
            found[min(at, len(found) - 1)] ^= 1 << value % 8
        elif kind == 1:
            del found[at : at + length * (1 + value)]
        elif kind == 2:
            found[at:at] = piece
        elif kind == 3:
            found[at : at + len(piece)] = piece
        elif kind == 4:
            found[at:at] = found[at : at + length] * (value % 4)
        else:
            other = (at + length * 4) % (len(found) + 1)
            found[at : at + length] = found[other : other + length]
    return bytes(found)


def round_of(target: Target, number: int, examples: int) -> tuple[int, set[str]]:
    """One round of generated inputs; how many, and what was found wrong."""
    seeds = target.seeds()
    wrong: set[str] = set()
    count = 0

    @seed(number)
    @settings(
        max_examples=examples, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(
        st.one_of(
            st.binary(max_size=200),
            st.builds(
                changed,
                st.sampled_from(seeds),
                st.lists(CHANGE, min_size=1, max_size=12),
                st.just(target.tokens),
            ),
        )
    )
    def throw(data: bytes) -> None:
        nonlocal count
        count += 1
        problem = judge(target, data)
        if problem is not None:
            wrong.add(f"round {number}: {problem}: {data[:60].hex()} ({len(data)} bytes)")

    throw()
    return count, wrong


def fuzz(target: Target, *, examples: int = EXAMPLES, seconds: float = 0) -> tuple[int, set[str]]:
    """All seeds, then generated inputs; how many, and what was found wrong."""
    # The first call builds tables that stay.
    for data in target.seeds():
        judge(target, data)
    wrong = {f"seed: {problem}" for data in target.seeds() if (problem := judge(target, data)) is not None}
    count = len(target.seeds())
    end = time.monotonic() + seconds
    for number in itertools.count(time.time_ns() % 10**9 if seconds else 0):
        more, found = round_of(target, number, examples)
        count += more
        wrong |= found
        if wrong or time.monotonic() >= end:
            break
    return count, wrong


@pytest.mark.parametrize("name", BY_NAME)
def test_only_typed_errors_and_bounded_memory(name: str, count_cases: CountCases) -> None:
    target = BY_NAME[name]
    count, wrong = fuzz(target, seconds=SECONDS)
    assert not wrong, "\n".join(sorted(wrong)[:10])
    count_cases(
        "F5 fuzz",
        f"{name}: {count:,} inputs, typed errors only, at most {target.base_bytes >> 20} MiB + "
        f"{target.bytes_a_byte} bytes a byte",
    )


def test_good_inputs_are_taken() -> None:
    refused = []
    for target in TARGETS:
        try:
            target.call(target.seeds()[0])
        except OrchestratorError as error:
            refused.append(f"{target.name}: {error}")
    assert refused == []


def test_an_inflation_without_a_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test of the test: a record's payload is inflated whatever size it declares."""
    monkeypatch.setattr(archive_module, "inflate", lambda stored, size: zlib.decompress(stored)[:size])
    _, wrong = fuzz(evolve(BY_NAME[".foz"], base_bytes=32 << 20, bytes_a_byte=300), examples=1)
    assert any("over the ceiling" in each or "error" in each for each in wrong)


def test_an_allocation_by_what_a_module_declares_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test of the test: the walk makes a table of as many ids as the header says."""
    original = spirv_module._read

    def by_bound(module: Any, code: bytes, words: Any) -> None:
        table = [0] * words[3]
        original(module, code, words)
        del table

    monkeypatch.setattr(spirv_module, "_read", by_bound)
    assert any("over the ceiling" in each for each in fuzz(BY_NAME["SPIR-V"], examples=1)[1])


def test_an_error_that_is_not_typed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test of the test: a frame's body is decoded without looking at what comes of it."""
    monkeypatch.setattr(frames_module, "FrameError", ValueError)
    assert any("ValueError" in each for each in fuzz(BY_NAME["frames"], examples=1)[1])
