"""Validation of SPIR-V by spirv-val (Khronos' SPIRV-Tools), in child processes and under limits.

    code ──> without its source-language notes ──> files in a temporary folder ──> val_batch ──> spirv-val
         <── verdict: VALID, INVALID, UNKNOWN

A hostile module may crash or stall a validator as well as a driver.

Guarantees: no module makes this raise. Each module gets one verdict. Where a validator crashes, takes too
long or too much memory, or is older than the module, the verdict is UNKNOWN with the cause. CPU time, wall
time, address space and message length are bounded for each module.
Assumptions: spirv-val judges by the rules of Vulkan 1.3, with all layouts that features may allow; the
requirement check decides which of these a device enables.
"""

from __future__ import annotations

import enum
import shutil
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import field, frozen, validators

from orchestrator.children.parent import Child, ChildGroup, Ended
from orchestrator.sets.spirv.val_batch import Judge, Judged
from orchestrator.sets.spirv.walk import OP_FUNCTION, SpirvError, instructions, spirv_words

PROGRAM = "spirv-val"
OPTIONS = (
    "--target-env",
    "vulkan1.3",
    "--scalar-block-layout",
    "--workgroup-scalar-block-layout",
    "--allow-localsizeid",
)

# Debug notes on the source language: no driver reads them, and older validators refuse newer languages.
_SOURCE_NOTES = frozenset({2, 3, 4})  # OpSourceContinued, OpSource, OpSourceExtension
_TOO_OLD = (
    "Invalid capability operand",
    "Invalid SPIR-V version",
    "Invalid opcode",
    "Unknown extended instruction",
)
_TEXT_SHOWN = 300
_PATIENCE_S = 30.0


class Verdict(enum.StrEnum):
    """What spirv-val says of a module; UNKNOWN: no answer, or it does not know what the module uses."""

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"


@frozen
class Judgement:
    """The verdict on one module, and the words of spirv-val or why there is no answer; "" for VALID."""

    verdict: Verdict
    reason: str = ""


@frozen
class ValidationLimits:
    """Limits of spirv-val for one module: CPU time, time, and address space."""

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
    children: ChildGroup | None = None,
) -> Mapping[int, Judgement]:
    """Ask spirv-val about modules. Blocking.

    Args:
        modules: Hash and code of each.
        program: Path of spirv-val, as from `find_spirv_val`.
        limits: Limits for each module.
        processes: Number of processes at the same time.
        children: A group whose end also ends this call.

    Returns:
        A judgement for each hash.

    Raises:
        ChildrenEndedError: The group ended.
        OSError: There is no place for temporary files, or no process can be started.
    """
    bounds, group = limits or ValidationLimits(), children or ChildGroup()
    with TemporaryDirectory(prefix="orchestrator-spirv-") as folder:
        paths: list[tuple[int, str]] = []
        for key, code in modules:
            path = Path(folder, f"{key:016x}.spv")
            path.write_bytes(without_source_notes(code))
            paths.append((key, str(path)))
        batches = [paths[number::processes] for number in range(min(processes, len(paths)))]
        with ThreadPoolExecutor(max(1, len(batches))) as pool:
            found = list(pool.map(lambda batch: _judge(batch, program, bounds, group), batches))
    return {key: judgement for batch in found for key, judgement in batch.items()}


def without_source_notes(code: bytes) -> bytes:
    """A module without its notes on the source language; unchanged where its framing is broken."""
    kept, start = [], 0
    try:
        for opcode, at, end in instructions(spirv_words(code)):
            if opcode in _SOURCE_NOTES:
                kept.append(code[start : 4 * at])
                start = 4 * end
            if opcode == OP_FUNCTION:  # the notes come before all functions
                break
    except SpirvError:
        return code
    return b"".join([*kept, code[start:]])


def _judge(
    paths: Sequence[tuple[int, str]], program: str, limits: ValidationLimits, group: ChildGroup
) -> dict[int, Judgement]:
    # With a new child after each module that ended one.
    found: dict[int, Judgement] = {}
    left = deque(paths)
    bounds = limits.cpu_s, limits.memory_bytes
    while left:
        with Child[Judged]("spirv-val", Judged, limits=bounds) as child:
            group.add(child)
            for _, path in left:
                child.send(Judge((program, *OPTIONS, path), limits.wall_s))
            answer: Judged | Ended | None = None
            while left and not isinstance(answer, Ended):
                try:
                    answer = child.receive(limits.wall_s + _PATIENCE_S)
                except TimeoutError:
                    answer = child.end(0.0)
                found[left.popleft()[0]] = _judgement(answer)
    return found


def _judgement(answer: Judged | Ended) -> Judgement:
    if isinstance(answer, Ended):
        why = answer.fault or answer.output[-_TEXT_SHOWN:]
        return Judgement(
            Verdict.UNKNOWN, f"the process that asks spirv-val ended with {answer.how}: {why}".rstrip(": ")
        )
    status, said = answer.status, " ".join(answer.text.split())[:_TEXT_SHOWN]
    if status == 0:
        return Judgement(Verdict.VALID)
    if status is None:
        return Judgement(Verdict.UNKNOWN, f"spirv-val: {said}")
    if status < 0:
        return Judgement(Verdict.UNKNOWN, f"spirv-val was killed by signal {-status}: {said}".rstrip(": "))
    if status != 1 or not said or any(each in said for each in _TOO_OLD):
        return Judgement(Verdict.UNKNOWN, f"spirv-val: {said or f'exit status {status}'}")
    return Judgement(Verdict.INVALID, f"spirv-val: {said}")
