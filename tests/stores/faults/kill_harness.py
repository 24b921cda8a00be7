"""Kills processes that save. Usage: python -m tests.stores.faults.kill_harness OPTIONS-AS-JSON.

The tests run it as a process of its own, since it forks: its children start in a millisecond, with everything
imported, which makes hundreds of kills affordable.

    writers   load, compile new pipelines, save_merged, acknowledge on a pipe; again
    opener    loads all the while, and every few loads saves something itself; never killed before the end
    harness   kills a writer at a random moment, then looks: everything that was acknowledged must load

Guarantees: the seed decides what is killed when, as far as a scheduler lets it. Ends with a JSON document on
stdout. Assumptions: POSIX. One thread, so that forking is safe.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import attrs
import numpy as np
from attrs import define, field, frozen

from orchestrator.devices.simulated import SimulatedDevice, simulated_image
from orchestrator.stores.cache_file import LoadPolicy, LoadStatus, load_into_cache, save_merged
from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, FileOperations
from tests.stores.faults.sets import compile_keys, keys_in, path_in

# Those who kill know that it was not the driver.
POLICY = LoadPolicy(tolerated_crashes=1 << 20)
OPENER = 7000
BAD = frozenset(LoadStatus) - {LoadStatus.LOADED, LoadStatus.MISSING}


class NoLocks(FileOperations):
    """Test of the test: the lock is left out."""

    def try_lock(self, descriptor: int) -> bool:
        """Always has it."""
        return True


@frozen
class Options:
    """What to do."""

    directory: str  # Where to save.
    seed: int  # Decides who is killed when.
    kills: int  # How many.
    longest_ms: float = 240.0  # A writer lives so long at most.
    locks: bool = True  # Leave the lock in.
    opener_saves: int = 3  # The opener saves after so many loads.
    stop_at_first: bool = False  # End when something is wrong.

    @property
    def operations(self) -> FileOperations:
        """The calls that everything uses."""
        return REAL_FILE_OPERATIONS if self.locks else NoLocks()


@define
class Report:
    """What happened."""

    kills: int = 0  # Writers that were killed.
    killed_unacknowledged: int = 0  # Of those, how many had acknowledged nothing.
    acknowledged: int = 0  # Saves that were acknowledged, the opener's included.
    opened: int = 0  # Loads of the opener.
    wrong: list[str] = field(factory=list)  # What was wrong.


def forked(body: Callable[[], None]) -> int:
    """Run a function in a child of this process; its id."""
    child = os.fork()
    if child:
        return child
    try:
        body()
    except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def write_forever(options: Options, first: int, acknowledge: int) -> NoReturn:
    """Load, compile the next pipeline, save, acknowledge; until killed."""
    path = path_in(Path(options.directory))
    device = SimulatedDevice()
    cache, result = load_into_cache(device, path, POLICY, operations=options.operations)
    assert result.status not in BAD, result
    key = first
    while True:
        compile_keys(device, cache, frozenset({key}))
        report = save_merged(device, path, cache, POLICY, operations=options.operations)
        if report.saved_bytes:
            os.write(acknowledge, key.to_bytes(4, "little"))
            key += 1


def open_until_told(options: Options, acknowledged: mmap.mmap, told: mmap.mmap) -> None:
    """Load again and again; everything that was acknowledged before a load must be in it."""
    path = path_in(Path(options.directory))
    own = 0
    loads = 0
    while not told[0]:
        before = {key for key in range(1, OPENER) if acknowledged[key]}
        device = SimulatedDevice()
        cache, result = load_into_cache(device, path, POLICY, operations=options.operations)
        found = keys_in(device.pipeline_cache_data(cache).data)
        missing = (before | set(range(OPENER, OPENER + own))) - found
        if result.status in BAD or missing:
            print(f"opener: {result.status} {result.detail}; lacks {sorted(missing)[:5]}", file=sys.stderr)
            os._exit(2)
        loads += 1
        if loads % options.opener_saves == 0:
            compile_keys(device, cache, frozenset({OPENER + own}))
            report = save_merged(device, path, cache, POLICY, operations=options.operations)
            own += bool(report.saved_bytes)
        device.close()
        told[8:16] = loads.to_bytes(8, "little")
        told[16:24] = own.to_bytes(8, "little")


def read_acknowledged(pipe: int, wait_s: float) -> list[int]:
    """Keys that a writer acknowledges within a time, or until it is gone."""
    keys: list[int] = []
    end = time.monotonic() + wait_s
    while select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
        data = os.read(pipe, 4096)
        if not data:
            break
        keys += [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]
    return keys


def run(options: Options) -> Report:
    """Kill writers, one after the other, and look after each."""
    chance = random.Random(options.seed)
    report = Report()
    path = path_in(Path(options.directory))
    acknowledged, told = mmap.mmap(-1, 8192), mmap.mmap(-1, 64)
    opener = forked(lambda: open_until_told(options, acknowledged, told))
    next_key = 1
    while report.kills < options.kills and not (options.stop_at_first and report.wrong):
        receive, send = os.pipe()
        first = next_key
        writer = forked(lambda first=first, send=send: write_forever(options, first, send))  # type: ignore[misc]
        os.close(send)
        keys = read_acknowledged(receive, chance.uniform(0, options.longest_ms) / 1000)
        os.kill(writer, signal.SIGKILL)
        _, status = os.waitpid(writer, 0)
        keys += read_acknowledged(receive, 1.0)
        os.close(receive)
        if not os.WIFSIGNALED(status):
            report.wrong.append(f"writer {report.kills} ended by itself: {status}")
        for key in keys:
            acknowledged[key] = 1
        report.kills += 1
        report.acknowledged += len(keys)
        report.killed_unacknowledged += not keys
        # What was not acknowledged may be there too: the next writer must not take it for its own.
        next_key = (keys[-1] if keys else next_key) + 2
        _look(path, acknowledged, report, options)
        ended, status = os.waitpid(opener, os.WNOHANG)
        if ended:
            report.wrong.append(f"the opener ended with {status}")
            return report
    told[0] = 1
    _, status = os.waitpid(opener, 0)
    if status:
        report.wrong.append(f"the opener ended with {status}")
    report.opened = int.from_bytes(told[8:16], "little")
    own = int.from_bytes(told[16:24], "little")
    report.acknowledged += own
    for key in range(OPENER, OPENER + own):
        acknowledged[key] = 1
    _look(path, acknowledged, report, options)
    return report


def _look(path: Path, acknowledged: mmap.mmap, report: Report, options: Options) -> None:
    expected = {key for key in range(1, 8000) if acknowledged[key]}
    device = SimulatedDevice()
    cache, result = load_into_cache(device, path, POLICY, operations=options.operations)
    found = keys_in(device.pipeline_cache_data(cache).data)
    device.close()
    if missing := expected - found:
        report.wrong.append(
            f"after kill {report.kills}: {len(missing)} acknowledged pipelines are lost, "
            f"such as {min(missing)}; {result.status} {result.detail}"
        )
        for key in missing:
            acknowledged[key] = 0


def warm_up() -> None:
    """Import and compute what every child needs, once."""
    device = SimulatedDevice()
    cache = device.create_pipeline_cache()
    prepared = device.prepare(simulated_image([1]))
    device.create_pipelines(prepared, np.arange(1, dtype=np.int32), cache)
    device.close()


def main() -> None:
    """Run what the argument says."""
    options = Options(**json.loads(sys.argv[1]))
    warm_up()
    print(json.dumps(attrs.asdict(run(options))))


if __name__ == "__main__":
    main()
