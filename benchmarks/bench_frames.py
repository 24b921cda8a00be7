"""How much time does a session add to the frames of a Python host, at 60 Hz with 3 ms of its own work?

Each sample is a process. It opens the set's device and measures 150 frames without a session, then frames
with a session until all pipelines are created, in fresh caches. A frame is a fixed amount of Python code (3
ms alone), a look at `progress` if there is a session, and sleep until the next frame is due.

    added_*     time of work and look beyond the median of the frames without a session
    beside_*    the same for the frames without a session: the variation of the machine itself
    poll_*      part of it in the look; poll_cpu_* is CPU time, which other programs disturb less
    late        share of frames that began over 18 ms after the previous one, %; alone_late without a session
    rate        pipelines per second; `unpaced` is run_pipelines without a host

Hosts: a loop, and trio, with `session`; `child` runs in its own process. The script fails if a pipeline hits.
It cannot show a host in C++, whose frames need no interpreter.

Command: python benchmarks/bench_frames.py --device radv:navi21 --set sascha.foz --output FILE
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import trio

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, opened, run_now, set_parser_of, where
from orchestrator import CompileReport, Progress, Session, own_process, session
from orchestrator.run.options import CompileOptions, RunOptions, available_workers
from orchestrator.run.records import RunReport

FRAME_S = 1 / 60
WORK_S = 0.003
LATE_S = 0.018
ALONE = 150


def work(amount: int) -> int:
    """The host's own work: Python that holds the interpreter's lock, as a host in Python does."""
    total = 0
    for number in range(amount):
        total += number & 7
    return total


def amount_of_work() -> int:
    """How much work takes 3 ms where nothing else runs."""
    amount = 20_000
    best = min(_timed(amount) for _ in range(50))
    return round(amount * WORK_S / best)


def _timed(amount: int) -> float:
    began = time.perf_counter()
    work(amount)
    return time.perf_counter() - began


class Frames:
    """The frames of a host: `begin` does one and says how long to sleep."""

    def __init__(self, amount: int, poll: Callable[[], Progress] | None) -> None:
        self._amount = amount
        self._poll = poll
        self._due = time.perf_counter()
        self.begins: list[float] = []
        self.busy: list[float] = []
        self.polls: list[float] = []
        self.polls_cpu: list[float] = []
        self.done = False

    def begin(self) -> float:
        """Work, poll, and the seconds until the next frame is due."""
        began = time.perf_counter()
        self.begins.append(began)
        work(self._amount)
        polled, polled_cpu = time.perf_counter(), time.thread_time()
        if self._poll is not None:
            progress = self._poll()
            self.done = progress.total > 0 and progress.done == progress.total
            self.polls_cpu.append(time.thread_time() - polled_cpu)
        ended = time.perf_counter()
        self.busy.append(ended - began)
        self.polls.append(ended - polled)
        self._due = max(self._due + FRAME_S, ended)
        return self._due - ended

    def figures(self, name: str, base: float) -> Figures:
        """What they took beyond the median of the frames alone, and how many were late."""
        added = (np.array(self.busy) - base) * 1e3
        periods = np.diff(np.array(self.begins))
        late = float(np.count_nonzero(periods > LATE_S)) / max(1, len(periods)) * 100
        return {
            f"{name}_median_ms": float(np.median(added)),
            f"{name}_p99_ms": float(np.quantile(added, 0.99)),
            f"{name}_max_ms": float(added.max()),
            ("late" if name == "added" else "alone_late"): late,
        }


def opened_session(job: Job, directory: str) -> Session:
    """A session that waits until its first frame."""
    options = CompileOptions(mode="per-worker", retry_quarantined=True)
    loading = session(
        job["set"], job["device"], directory, workers=job["workers"], keep=False, options=options
    )
    loading.allow(0)
    loading.ready.result()
    gc.collect()
    return loading


def in_a_loop(job: Job, amount: int, directory: str) -> tuple[Frames, Session]:
    """A synchronous loop."""
    with opened_session(job, directory) as loading:
        loading.allow(None)
        frames = Frames(amount, lambda: loading.progress)
        while not frames.done:
            time.sleep(frames.begin())
    return frames, loading


def in_trio(job: Job, amount: int, directory: str) -> tuple[Frames, Session]:
    """A program of trio."""

    async def main() -> tuple[Frames, Session]:
        async with opened_session(job, directory) as loading:
            loading.allow(None)
            frames = Frames(amount, lambda: loading.progress)
            while not frames.done:
                await trio.sleep(frames.begin())
        return frames, loading

    return trio.run(main)


def beside_a_child(job: Job, amount: int) -> tuple[Frames, Figures]:
    """Frames while a process of its own compiles."""
    command = [sys.executable, __file__, "--measure", json.dumps({**job, "host": "unpaced"})]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        frames = Frames(amount, None)
        while child.poll() is None:
            time.sleep(frames.begin())
        assert child.stdout is not None
        figures: Figures = json.loads(child.stdout.read().splitlines()[-1])
    return frames, figures


HOSTS = {"loop": in_a_loop, "trio": in_trio}


def measure(job: Job) -> Figures:
    """One sample."""
    if job["host"] == "unpaced":
        with opened(job) as (device, prepared):
            report = run_now(device, prepared, RunOptions(workers=job["workers"]))
            return {**_of(report), **where(device)}
    amount = amount_of_work()
    alone = Frames(amount, None)
    for _ in range(ALONE):
        time.sleep(alone.begin())
    base = float(np.median(alone.busy))
    if job["host"] == "child":
        frames, figures = beside_a_child(job, amount)
    else:
        own_process(job["device"])
        with TemporaryDirectory() as directory:
            frames, loading = HOSTS[job["host"]](job, amount, directory)
        figures = _of_session(loading.ended.result(), frames)
    polls = np.array(frames.polls) * 1e3
    cpu = np.array(frames.polls_cpu or [0.0]) * 1e6
    return {
        **figures,
        **alone.figures("beside", base),
        **frames.figures("added", base),
        "poll_median_ms": float(np.median(polls)),
        "poll_p99_ms": float(np.quantile(polls, 0.99)),
        "poll_cpu_median_us": float(np.median(cpu)),
        "poll_cpu_p99_us": float(np.quantile(cpu, 0.99)),
        "frames": len(frames.begins),
        "base_ms": base * 1e3,
    }


def _of_session(report: CompileReport, frames: Frames) -> Figures:
    if report.outcomes.cache_hits:
        raise SystemExit(f"{report.outcomes.cache_hits} pipelines hit in fresh caches")
    took_s = frames.begins[-1] - frames.begins[0]
    device = report.device
    return {
        "rate": report.outcomes.compiled / took_s,
        "pipelines": report.outcomes.compiled,
        "device_name": device.device_name,
        "driver": f"{device.driver_name} {device.driver_info}",
    }


def _of(report: RunReport) -> Figures:
    if report.cache_hits:
        raise SystemExit(f"{report.cache_hits} pipelines hit in fresh caches")
    return {"rate": report.compiled / (report.timing.wall_ns / 1e9), "pipelines": report.compiled}


def _contenders(common: Job) -> Iterator[tuple[str, Job]]:
    for workers in (1, 2):  # as many as there are processors, and one less
        each = {**common, "workers": workers}
        plural = "worker" if workers == 1 else "workers"
        yield f"loop, {workers} {plural}", {**each, "host": "loop"}
        yield f"trio, {workers} {plural}", {**each, "host": "trio"}
        yield f"loop, {workers} {plural}, child", {**each, "host": "child"}


def main() -> None:
    """What a session adds to frames, by host; and the rate beside a run without a host."""
    parser = set_parser_of(__doc__)
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    if available_workers() < 2:
        raise SystemExit("frames and workers need a processor each")
    common = {"device": options.device, "set": options.set}
    rows = compare(__file__, dict(_contenders(common)), options, figure="added_median_ms")
    names = ("added_median_ms", "added_p99_ms", "poll_cpu_median_us", "late", "alone_late", "rate")
    for name in dict(_contenders(common)):
        mine = [row for row in rows if row["contender"] == name and row["round"] >= 0]
        if mine:
            shown = (f"{each} {np.median([row[each] for row in mine]):.3g}" for each in names)
            print(f"{name:28} {'  '.join(shown)}", file=sys.stderr)
    unpaced = {f"unpaced, {workers}": {**common, "host": "unpaced", "workers": workers} for workers in (1, 2)}
    compare(__file__, unpaced, options, figure="rate", lower_is_better=False)


if __name__ == "__main__":
    main()
