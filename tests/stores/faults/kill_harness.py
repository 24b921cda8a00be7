"""Kills processes that save. Usage: python -m tests.stores.faults.kill_harness OPTIONS-AS-JSON.

A process of its own, since it forks: its children start in a millisecond, with everything imported.

    writers   load, compile new pipelines, save_merged, acknowledge on a pipe; again
    opener    loads all the while, and every few loads saves something itself; never killed before the end
    harness   kills a writer at a random moment, then looks: everything that was acknowledged must load

The seed decides what is killed when, as far as a scheduler lets it. Ends with a JSON document on stdout.
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
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from orchestrator.devices.simulated import SimulatedDevice
from orchestrator.stores import cache_file
from orchestrator.stores.cache_file import LoadStatus, load_into_cache, save_merged
from orchestrator.stores.files.atomic_file import FileOperations, files_through
from tests.stores.children import forked
from tests.stores.faults.sets import compile_keys, keys_in, path_in

# Those who kill know that it was not the driver.
OPENER = 7000  # the first key that the opener saves
BAD = frozenset(LoadStatus) - {LoadStatus.LOADED, LoadStatus.MISSING}


class NoLocks(FileOperations):
    """Test of the test: the lock is left out."""

    def try_lock(self, descriptor: int) -> bool:
        return True


def write_forever(path: Path, key: int, acknowledge: int) -> NoReturn:
    """Load, compile the next pipeline, save, acknowledge; until killed."""
    device = SimulatedDevice()
    cache, result = load_into_cache(device, path)
    assert result.status not in BAD, result
    while True:
        compile_keys(device, cache, frozenset({key}))
        if save_merged(device, path, cache).saved_bytes:
            os.write(acknowledge, key.to_bytes(4, "little"))
            key += 1


def open_until_told(path: Path, saves: int, acknowledged: mmap.mmap, told: mmap.mmap) -> None:
    """Load again and again; everything that was acknowledged before a load must be in it."""
    own = loads = 0
    while not told[0]:
        before = {key for key in range(1, OPENER) if acknowledged[key]}
        device = SimulatedDevice()
        cache, result = load_into_cache(device, path)
        found = keys_in(device.pipeline_cache_data(cache).data)
        missing = (before | set(range(OPENER, OPENER + own))) - found
        if result.status in BAD or missing:
            print(f"opener: {result.status} {result.detail}; lacks {sorted(missing)[:5]}", file=sys.stderr)
            os._exit(2)
        loads += 1
        if loads % saves == 0:
            compile_keys(device, cache, frozenset({OPENER + own}))
            own += bool(save_merged(device, path, cache).saved_bytes)
        device.close()
        told[8:24] = loads.to_bytes(8, "little") + own.to_bytes(8, "little")


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


def run(
    directory: str,
    seed: int,
    kills: int,
    longest_ms: float = 240.0,
    opener_saves: int = 3,
    stop_at_first: bool = False,
) -> dict[str, Any]:
    """Kill writers, one after the other, and look after each; what happened."""
    chance, path = random.Random(seed), path_in(Path(directory))
    acknowledged, told = mmap.mmap(-1, 8192), mmap.mmap(-1, 64)
    wrong: list[str] = []
    killed = unacknowledged = count = 0

    def look() -> None:
        device = SimulatedDevice()
        cache, result = load_into_cache(device, path)
        found = keys_in(device.pipeline_cache_data(cache).data)
        device.close()
        if missing := {key for key in range(1, 8000) if acknowledged[key]} - found:
            wrong.append(f"after kill {killed}: {sorted(missing)[:5]} are lost; {result}")
            for key in missing:
                acknowledged[key] = 0

    opener = forked(partial(open_until_told, path, opener_saves, acknowledged, told))
    next_key = 1
    while killed < kills and not (stop_at_first and wrong):
        receive, send = os.pipe()
        writer = forked(partial(write_forever, path, next_key, send))
        os.close(send)
        keys = read_acknowledged(receive, chance.uniform(0, longest_ms) / 1000)
        os.kill(writer, signal.SIGKILL)
        _, status = os.waitpid(writer, 0)
        keys += read_acknowledged(receive, 1.0)
        os.close(receive)
        if not os.WIFSIGNALED(status):
            wrong.append(f"writer {killed} ended by itself: {status}")
        for key in keys:
            acknowledged[key] = 1
        killed, count, unacknowledged = killed + 1, count + len(keys), unacknowledged + (not keys)
        # What was not acknowledged may be there too: the next writer must not take it for its own.
        next_key = (keys[-1] if keys else next_key) + 2
        look()
        if os.waitpid(opener, os.WNOHANG)[0]:
            wrong.append("the opener ended")
            break
    else:
        told[0] = 1
        if os.waitpid(opener, 0)[1]:
            wrong.append("the opener failed")
    opened, own = (int.from_bytes(told[at : at + 8], "little") for at in (8, 16))
    for key in range(OPENER, OPENER + own):
        acknowledged[key] = 1
    look()
    return {
        "kills": killed,
        "killed_unacknowledged": unacknowledged,
        "acknowledged": count + own,
        "opened": opened,
        "wrong": wrong,
    }


if __name__ == "__main__":
    warm = SimulatedDevice()  # imports and computes what every child needs, once
    compile_keys(warm, warm.create_pipeline_cache(), frozenset({1}))
    warm.close()
    options = json.loads(sys.argv[1])
    cache_file.TOLERATED_DEATHS = 1 << 20  # type: ignore[misc]
    with files_through(FileOperations() if options.pop("locks", True) else NoLocks()):
        print(json.dumps(run(**options)))
