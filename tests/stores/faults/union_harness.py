"""Two processes save into one directory. Usage: python -m tests.stores.faults.union_harness OPTIONS-AS-JSON.

Their sets overlap by half. Both are killed at random and started again until each has compiled all of its set
once. Then all of both must be there. The tests run it as a process of its own, in the environment of one
driver.

Guarantees: the driver is entered in the children only, so that each start is a new one. Ends with a JSON
document on stdout. The seed decides who is killed when, as far as a scheduler lets it. Assumptions: POSIX.
One thread, so that forking is safe.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.devices.device import FEEDBACK_APPLICATION_CACHE_HIT, Device, PipelineCache
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.opening import open_device, own_process
from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.authoring.builder import PipelineSetBuilder
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.stores import cache_file
from orchestrator.stores.cache_file import cache_path, load_into_cache, save_merged
from tests.sets.spirv.shader_words import compute_module
from tests.stores.children import forked

SHARES = (range(1000), range(500, 1500))
UNION = 1500
BATCH = 50  # pipelines between two saves


def compute_shader(number: int) -> bytes:
    """An empty compute shader, another one for each number up to 1,500: its workgroups differ."""
    if number < 1024:
        return compute_module(local_size=(number % 64 + 1, number // 64 + 1, 1))
    return compute_module(local_size=((number - 1024) % 32 + 1, (number - 1024) // 32 + 1, 2))


def make_images() -> dict[range, CreateInfoImage]:
    """The images of both sets and of their union, which need nothing of a device."""
    records = MemoryRecords("union")
    builder = PipelineSetBuilder(records)
    keys = [
        builder.compute_pipeline("auto", builder.shader_module(compute_shader(one))) for one in range(UNION)
    ]
    assert len(set(keys)) == UNION
    source, images = PipelineSet.from_records(records), {}
    for numbers in (*SHARES, range(UNION)):
        wanted = {keys[number] for number in numbers}
        built = build_image(source, [job for job in source.pipelines if job.key in wanted], AnyDevice())
        assert built.problems == ()
        assert len(built.image) == len(numbers)
        images[numbers] = built.image
    return images


def compile_share(directory: Path, selector: str, image: CreateInfoImage) -> None:
    """Load, compile what is missing, save after each batch that had something new."""
    device = open_device(selector)
    path = cache_path(directory, device.identity)
    cache, _ = load_into_cache(device, path)
    prepared = device.prepare(image)
    unsaved = False
    for start in range(0, len(image), BATCH):
        indices = np.arange(start, min(start + BATCH, len(image)), dtype=np.int32)
        batch = device.create_pipelines(prepared, indices, cache)
        assert not batch.results.any()
        unsaved |= bool(np.any(batch.feedback_flags & FEEDBACK_APPLICATION_CACHE_HIT == 0))
        if unsaved:
            # Where the other process has the lock for long, the next batch brings the next chance.
            unsaved = not _save(device, path, cache)
    while unsaved:
        unsaved = not _save(device, path, cache)
    device.close()


def _save(device: Device, path: Path, cache: PipelineCache) -> bool:
    report = save_merged(device, path, cache)
    return report.skipped is None or report.skipped.startswith("nothing is new")


def look(directory: Path, selector: str, image: CreateInfoImage, result_pipe: int) -> None:
    """A new process: how much of both sets is in the file."""
    device = open_device(selector)
    path = cache_path(directory, device.identity)
    cache, result = load_into_cache(device, path)
    prepared = device.prepare(image)
    batch = device.create_pipelines(prepared, np.arange(UNION, dtype=np.int32), cache)
    hits = int(np.count_nonzero(batch.feedback_flags & FEEDBACK_APPLICATION_CACHE_HIT))
    answer = {"hits": hits, "status": str(result.status), "file_bytes": path.stat().st_size}
    os.write(result_pipe, json.dumps(answer).encode())
    device.close()


def run(directory: str, selector: str, seed: int, kills: int, longest_s: float) -> dict[str, Any]:
    """Start both, kill and start again, wait for both, look; what happened."""
    chance, folder = random.Random(seed), Path(directory)
    images = make_images()
    killed, wrong = 0, []

    def start(numbers: range) -> int:
        return forked(partial(compile_share, folder, selector, images[numbers]))

    running = {start(numbers): numbers for numbers in SHARES}
    next_kill = time.monotonic() + chance.uniform(0, longest_s)
    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            numbers = running.pop(child)
            was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            if status and not was_killed:
                wrong.append(f"a process ended with {status}")
            elif was_killed or killed < kills:
                # Also one that is done, while there are kills left: it loads, and finds all of its set.
                running[start(numbers)] = numbers
        elif killed < kills and time.monotonic() >= next_kill:
            os.kill(chance.choice(sorted(running)), signal.SIGKILL)
            killed += 1
            next_kill = time.monotonic() + chance.uniform(0, longest_s)
        else:
            time.sleep(0.002)
    receive, send = os.pipe()
    looker = forked(partial(look, folder, selector, images[range(UNION)], send))
    os.close(send)
    answer = os.read(receive, 4096)
    if os.waitpid(looker, 0)[1]:
        wrong.append("the last process failed")
    quarantined = len(list(folder.glob("quarantine/*")))
    return {"kills": killed, "wrong": wrong, "quarantined": quarantined, **json.loads(answer or "{}")}


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    cache_file.TOLERATED_DEATHS = 1 << 20  # type: ignore[misc]
    own_process(options["selector"])
    print(json.dumps(run(**options)))
