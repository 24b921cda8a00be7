"""Every operation of the stores in every situation that has a path of its own, and what may be there then.

They are data, so that one suite fails every call of each, and another cancels at every call.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attrs import frozen

from orchestrator.devices.device import PipelineCache
from orchestrator.devices.simulated import SimulatedDevice
from orchestrator.stores.cache_file import (
    PipelineCachePrefixHeader,
    load_into_cache,
    read_cache_file,
    save_cache_file,
    save_merged,
    sweep_directory,
)
from orchestrator.stores.files.recovery import previous_path, quarantine_file
from tests.stores.faults.sets import (
    IDENTITY,
    NOTHING,
    OLD,
    OLDER,
    OURS,
    UNION,
    Keys,
    compile_keys,
    data_of,
    die_loading,
    file_of,
)


@frozen
class Situation:
    """An operation, what it meets, and what may be there when it ended in whatever way."""

    name: str  # For messages.
    meet: Callable[[Path], None]  # Puts files there.
    # Runs the operation; whether it promises that what it was to achieve is there now.
    act: Callable[[SimulatedDevice, Path], bool]
    before: Keys  # What a load gives before.
    after: Keys  # What a load gives once the promise is kept.


def _files(current: bytes | None, previous: bytes | None = None) -> Callable[[Path], None]:
    def meet(path: Path) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if current is not None:
            path.write_bytes(current)
        if previous is not None:
            previous_path(path).write_bytes(previous)

    return meet


def _damaged(keys: Keys) -> bytes:
    content = bytearray(file_of(keys))
    content[-1] ^= 1
    return bytes(content)


def _poison(keys: Keys) -> bytes:
    """A file that proves well, of data that the driver fails on."""
    data = bytearray(data_of(keys))
    data[-1] ^= 1
    return PipelineCachePrefixHeader.describe(IDENTITY, bytes(data)).pack() + data


def _meet_accused(path: Path) -> None:
    _files(file_of(OLD), file_of(OLDER))(path)
    die_loading(path, OLD, times=2)


def _meet_leftovers(path: Path) -> None:
    _files(file_of(OLD))(path)
    path.with_name(f".{path.name}.{'0' * 16}.tmp").write_bytes(file_of(OURS)[:100])
    path.with_name(f".{path.name}.previous.{'1' * 16}.tmp").write_bytes(b"")


def _save(device: SimulatedDevice, path: Path) -> bool:
    return save_cache_file(path, device.identity, data_of(OURS), lock_wait_s=0).saved_bytes > 0


def _load(device: SimulatedDevice, path: Path) -> bool:
    cache, _ = load_into_cache(device, path)
    device.destroy_pipeline_cache(cache)
    return False


def _read(device: SimulatedDevice, path: Path) -> bool:
    read_cache_file(path, device.identity)
    return False


def _merge(device: SimulatedDevice, path: Path) -> bool:
    ours: PipelineCache = device.create_pipeline_cache(name="ours")
    try:
        compile_keys(device, ours, OURS)
        report = save_merged(device, path, ours, lock_wait_s=0)
    finally:
        device.destroy_pipeline_cache(ours)
    return report.saved_bytes > 0


def _merge_data(device: SimulatedDevice, path: Path) -> bool:
    return save_merged(device, path, data_of(OURS), lock_wait_s=0).saved_bytes > 0


def _quarantine(device: SimulatedDevice, path: Path) -> bool:
    quarantine_file(path)
    return True


def _sweep(device: SimulatedDevice, path: Path) -> bool:
    sweep_directory(path.parent)
    return False


SITUATIONS = (
    Situation("save: the first", _files(None), _save, NOTHING, OURS),
    Situation("save: over a first one", _files(file_of(OLD)), _save, OLD, OURS),
    Situation("save: over one that has not loaded", _files(file_of(OLD), file_of(OLDER)), _save, OLD, OURS),
    Situation("save: over a damaged one", _files(_damaged(OLD), file_of(OLDER)), _save, OLDER, OURS),
    Situation("save: after kills", _meet_leftovers, _save, OLD, OURS),
    Situation("read", _files(file_of(OLD)), _read, OLD, OLD),
    Situation("load: the current", _files(file_of(OLD)), _load, OLD, OLD),
    Situation("load: switch of generations", _files(file_of(OLD), file_of(OLDER)), _load, OLD, OLD),
    Situation("load: the previous", _files(_damaged(OLD), file_of(OLDER)), _load, OLDER, OLDER),
    # Where one of the deaths cannot be looked at, the other proves nothing, and what was accused loads.
    Situation("load: after two crashes", _meet_accused, _load, OLD, OLDER),
    Situation("load: what the driver fails on", _files(_poison(OLD), file_of(OLDER)), _load, OLDER, OLDER),
    Situation("merge: the first", _files(None), _merge, NOTHING, OURS),
    Situation("merge: with what is there", _files(file_of(OLD)), _merge, OLD, UNION),
    Situation("merge: of data", _files(file_of(OLD)), _merge_data, OLD, UNION),
    Situation(
        "merge: before the current has loaded", _files(file_of(OLD), file_of(OLDER)), _merge, OLD, UNION
    ),
    Situation("merge: nothing new", _files(file_of(UNION)), _merge, UNION, UNION),
    Situation("merge: with the previous", _files(_damaged(OLD), file_of(OLDER)), _merge, OLDER, OLDER | OURS),
    Situation("quarantine", _files(file_of(OLD), file_of(OLDER)), _quarantine, OLD, OLDER),
    Situation("sweep", _meet_leftovers, _sweep, OLD, OLD),
)
