"""Validation of SPIR-V by spirv-val.

Ask spirv-val (Khronos' SPIRV-Tools) about shader modules, out of process and under limits, since a module
of unknown origin may be made to crash or to stall a validator as well as a driver.

code ──> without its source-language notes ──> files in a directory of ours ──> spirv_val_batch, several at
a time <── verdict: VALID, INVALID, UNKNOWN

Guarantees: - Never raises for what a module holds. Each module has one verdict, and what ends a validator
(a signal, time, memory) is UNKNOWN with the cause: it says nothing about the module, and whoever trusts
only VALID is on the safe side. - A validator that is older than a module does not refuse it: what it does
not know is UNKNOWN. - CPU seconds, wall seconds and address space are bounded for each module, and so is
what is read of its words.

Assumptions: spirv-val judges by the rules of Vulkan 1.3 with the layouts that features may relax; which of
them a device enables is the requirement check's business.
"""

from __future__ import annotations

import enum
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from attrs import field, frozen, validators

from orchestrator.sets.spirv import val_batch as spirv_val_batch

PROGRAM = "spirv-val"
OPTIONS = (
    "--target-env",
    "vulkan1.3",
    "--scalar-block-layout",
    "--workgroup-scalar-block-layout",
    "--allow-localsizeid",
)

_HEADER_WORDS = 5
# Debug notes on the source language: no driver reads them, and validators do not know languages younger than they are.
_SOURCE_NOTES = frozenset({2, 3, 4})  # OpSourceContinued, OpSource, OpSourceExtension
_TOO_OLD = (
    "Invalid capability operand",
    "Invalid SPIR-V version",
    "Invalid opcode",
    "Unknown extended instruction",
)
_TEXT_SHOWN = 300


class Verdict(enum.StrEnum):
    """What is known about a module.

    VALID: spirv-val accepts it.
    INVALID: spirv-val refuses it.
    UNKNOWN: spirv-val did not come to an answer, or does not know what the module uses.
    """

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"


@frozen
class Judgement:
    """The verdict on one module.

    Attributes:
        verdict: The verdict.
        reason: spirv-val's words, or why there is no answer; "" for VALID.
    """

    verdict: Verdict
    reason: str = ""


@frozen
class ValidationLimits:
    """What spirv-val may use for one module.

    Attributes:
        cpu_s: CPU seconds.
        wall_s: Seconds.
        memory_bytes: Address space.
    """

    cpu_s: int = field(default=10, validator=validators.ge(1))
    wall_s: float = field(default=20.0, validator=validators.gt(0))
    memory_bytes: int = field(default=1 << 30, validator=validators.ge(64 << 20))


def find_spirv_val() -> str | None:
    """Path of spirv-val, or None where it is not installed."""
    return shutil.which(PROGRAM)


def validate_modules(
    modules: Iterable[tuple[int, bytes]],
    program: str,
    *,
    limits: ValidationLimits | None = None,
    processes: int = 1,
) -> Mapping[int, Judgement]:
    """Ask spirv-val about modules. Blocking.

    Args:
        modules: Hash and code of each.
        program: Path of spirv-val, as from `find_spirv_val`.
        limits: What it may use for one module.
        processes: How many to ask about at a time.

    Returns:
        A judgement for each hash.

    Raises:
        OSError: There is no place for temporary files, or no process can be started.
    """
    bounds = limits or ValidationLimits()
    with tempfile.TemporaryDirectory(prefix="orchestrator-spirv-") as folder:
        paths: dict[str, int] = {}
        for key, code in modules:
            path = Path(folder) / f"{key:016x}.spv"
            path.write_bytes(without_source_notes(code))
            paths[str(path)] = key
        names = list(paths)
        batches = [names[number::processes] for number in range(min(processes, len(names)))]
        with ThreadPoolExecutor(max(1, len(batches))) as pool:
            found = list(pool.map(lambda batch: _judge(batch, program, bounds), batches))
    return {paths[path]: judgement for batch in found for path, judgement in batch.items()}


def without_source_notes(code: bytes) -> bytes:
    """A module without what it says about its source language; as it is where its framing is broken.

    Args:
        code: The module.
    """
    if len(code) % 4 or len(code) < 4 * _HEADER_WORDS:
        return code
    words = np.frombuffer(code, "<u4")
    kept = [words[:_HEADER_WORDS]]
    at = start = _HEADER_WORDS
    while at < len(words):
        length, opcode = int(words[at]) >> 16, int(words[at]) & 0xFFFF
        if not length or at + length > len(words):
            return code
        if opcode in _SOURCE_NOTES:
            kept.append(words[start:at])
            start = at + length
        at += length
        if opcode == 54:  # OpFunction: the notes come before all functions
            break
    kept.append(words[start:])
    return b"".join(part.tobytes() for part in kept)


def _judge(paths: Sequence[str], program: str, limits: ValidationLimits) -> dict[str, Judgement]:
    """Judge a batch; a process that dies is started again behind the module that it died with."""
    found: dict[str, Judgement] = {}
    rest = list(paths)
    while rest:
        answers, problem = _ask(rest, program, limits)
        found.update(answers)
        rest = [path for path in rest if path not in found]
        if rest and not answers:
            found[rest[0]] = Judgement(
                Verdict.UNKNOWN, problem or "the process that asks spirv-val gave no answer"
            )
            del rest[0]
    return found


def _ask(paths: Sequence[str], program: str, limits: ValidationLimits) -> tuple[dict[str, Judgement], str]:
    command = [sys.executable, "-I", "-S", spirv_val_batch.__file__, program]
    command += [str(limits.cpu_s), str(limits.memory_bytes), str(limits.wall_s), *OPTIONS]
    patience = limits.wall_s * len(paths) + 30
    try:
        done = subprocess.run(
            command,
            input="".join(f"{path}\n" for path in paths).encode(),
            capture_output=True,
            timeout=patience,
            check=False,
            env={
                name: os.environ[name]
                for name in ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT")
                if name in os.environ
            },
        )
    except subprocess.TimeoutExpired as late:
        return _answers(late.output or b""), f"no answer after {patience:.0f} s"
    problem = done.stderr[-_TEXT_SHOWN:].decode("utf-8", "replace").strip()
    return _answers(done.stdout), problem


def _answers(output: bytes) -> dict[str, Judgement]:
    found = {}
    for line in output.splitlines():
        try:
            answer = json.loads(line)
            found[str(answer["path"])] = _judgement(answer["status"], str(answer["text"]))
        except (ValueError, KeyError, TypeError):
            break  # the last line of a process that died; what it was about is asked again
    return found


def _judgement(status: int | None, text: str) -> Judgement:
    said = " ".join(text.split())[:_TEXT_SHOWN]
    if status == 0:
        return Judgement(Verdict.VALID)
    if status is None:
        return Judgement(Verdict.UNKNOWN, f"spirv-val: {said}")
    if status < 0:
        return Judgement(Verdict.UNKNOWN, f"spirv-val was killed by signal {-status}: {said}".rstrip(": "))
    if status != 1 or not said or any(each in said for each in _TOO_OLD):
        return Judgement(Verdict.UNKNOWN, f"spirv-val: {said or f'exit status {status}'}")
    return Judgement(Verdict.INVALID, f"spirv-val: {said}")
