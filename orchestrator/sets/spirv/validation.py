"""Validation of SPIR-V by spirv-val (Khronos' SPIRV-Tools), in processes of its own and under limits.

Guarantees: no module makes this raise. Each module gets one verdict. Where a validator crashes, takes too
long or too much memory, or is older than the module, the verdict is UNKNOWN with the cause. CPU time, wall
time, address space and output are bounded for each module.
Assumptions: spirv-val judges by the rules of Vulkan 1.3, with all layouts that features may allow; the
requirement check decides which of these a device enables.
"""

from __future__ import annotations

import enum
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from attrs import field, frozen, validators

from orchestrator.children.parent import ChildGroup
from orchestrator.sets.spirv.walk import OP_FUNCTION, SpirvError, instructions, spirv_words

_OPTIONS: Final = (
    "--target-env",
    "vulkan1.3",
    "--scalar-block-layout",
    "--workgroup-scalar-block-layout",
    "--allow-localsizeid",
)
# The shell sets limits that the program inherits: seconds of CPU time, KiB of address space, and blocks of
# 512 bytes of output.
_LIMITED: Final = 'ulimit -c 0; ulimit -f 64; ulimit -t "$1" && ulimit -v "$2" && shift 2 && exec "$@"'
_VARIABLES: Final = ("PATH", "LD_LIBRARY_PATH")

# Debug notes on the source language: no driver reads them, and older validators refuse newer languages.
_SOURCE_NOTES = frozenset({2, 3, 4})  # OpSourceContinued, OpSource, OpSourceExtension
_TOO_OLD = (
    "Invalid capability operand",
    "Invalid SPIR-V version",
    "Invalid opcode",
    "Unknown extended instruction",
)
_TEXT_SHOWN = 300


class SpirvVerdict(enum.StrEnum):
    """What spirv-val says of a module; UNKNOWN: no answer, or it does not know what the module uses."""

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"


@frozen
class SpirvJudgement:
    """The verdict on one module, and the words of spirv-val or why there is no answer; "" for VALID."""

    verdict: SpirvVerdict
    reason: str = ""


@frozen
class ValidationLimits:
    """Limits of spirv-val for one module: CPU time, time, and address space."""

    cpu_s: int = field(default=10, validator=validators.ge(1))
    wall_s: float = field(default=20.0, validator=validators.gt(0))
    memory_bytes: int = field(default=1 << 30, validator=validators.ge(64 << 20))


def find_spirv_val() -> str | None:
    """Path of spirv-val, or None where it is not installed."""
    return shutil.which("spirv-val")


def validate_modules(
    modules: Iterable[tuple[int, bytes]],
    program: str,
    *,
    limits: ValidationLimits | None = None,
    processes: int = 1,
    children: ChildGroup | None = None,
) -> Mapping[int, SpirvJudgement]:
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
    with (
        TemporaryDirectory(prefix="orchestrator-spirv-") as folder,
        ThreadPoolExecutor(max(1, processes)) as pool,
    ):
        judged = {}
        for key, code in modules:
            path = Path(folder, f"{key:016x}.spv")
            path.write_bytes(without_source_notes(code))
            judged[key] = pool.submit(_judge, path, program, bounds, group)
        return {key: each.result() for key, each in judged.items()}


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


def _judge(path: Path, program: str, limits: ValidationLimits, group: ChildGroup) -> SpirvJudgement:
    memory_kib = limits.memory_bytes >> 10
    command = ("sh", "-c", _LIMITED, "sh", str(limits.cpu_s), str(memory_kib), program, *_OPTIONS, str(path))
    output = path.with_suffix(".txt")
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        )
    with process:
        try:
            group.add(process)
            status = process.wait(limits.wall_s)
        except subprocess.TimeoutExpired:
            return SpirvJudgement(SpirvVerdict.UNKNOWN, f"spirv-val: no answer after {limits.wall_s:.0f} s")
        finally:
            process.kill()
    text = " ".join(output.read_text("utf-8", "replace").split())
    return _judgement(status, text if len(text) <= _TEXT_SHOWN else f"{text[:_TEXT_SHOWN]}...")


def _judgement(status: int, said: str) -> SpirvJudgement:
    if status == 0:
        return SpirvJudgement(SpirvVerdict.VALID)
    if status == 1 and said and not any(each in said for each in _TOO_OLD):
        return SpirvJudgement(SpirvVerdict.INVALID, f"spirv-val: {said}")
    why = f"spirv-val: {said or f'exit status {status}'}"
    if status < 0:
        why = f"spirv-val was killed by signal {-status}: {said}".rstrip(": ")
    return SpirvJudgement(SpirvVerdict.UNKNOWN, why)
