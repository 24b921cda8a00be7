"""Does a session create the same pipelines at the same rate in a loop, in asyncio and in trio?

Each sample is a process. It opens the set's device, submits everything to a session with fresh caches, and
waits in the way of its host: a loop polls 60 times a second, asyncio awaits the ticket's future, trio the
ticket.

    rate        pipelines per second, from the first submit to the barrier
    cpu_rate    pipelines per second of CPU time of the process, which other programs disturb less
    same        hash over the outcome of each pipeline; the script fails if hosts differ

Command: python benchmarks/bench_hosts.py --device radv:navi21 --set sascha.foz --workers 2 --output FILE
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import trio

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, opened, set_parser_of, where
from orchestrator.devices.device import Device, PreparedPipelines
from orchestrator.run.options import RunOptions
from orchestrator.run.records import CREATED_CODES, RunReport
from orchestrator.run.session import open_session
from orchestrator.run.session_thread import start_session

FRAME_S = 1 / 60


def in_a_loop(device: Device, prepared: PreparedPipelines, options: RunOptions) -> RunReport:
    """A synchronous loop."""
    with start_session((device, prepared), options) as session:
        ticket = session.submit(range(len(prepared.image)))
        while not ticket.done():
            session.poll()
            time.sleep(FRAME_S)
        return session.finish().result()


def in_asyncio(device: Device, prepared: PreparedPipelines, options: RunOptions) -> RunReport:
    """A program of asyncio."""

    async def main() -> RunReport:
        session = start_session((device, prepared), options)
        await asyncio.wrap_future(session.submit(range(len(prepared.image))))
        return await asyncio.wrap_future(session.finish())

    return asyncio.run(main())


def in_trio(device: Device, prepared: PreparedPipelines, options: RunOptions) -> RunReport:
    """A program of trio."""

    async def main() -> RunReport:
        async with open_session(device, prepared, options) as session:
            await (await session.submit(range(len(prepared.image)))).wait()
            return await session.finish()

    return trio.run(main)


HOSTS: dict[str, Callable[[Device, PreparedPipelines, RunOptions], RunReport]] = {
    "trio": in_trio,
    "asyncio": in_asyncio,
    "loop": in_a_loop,
}


def measure(job: Job) -> Figures:
    """One sample."""
    with opened(job) as (device, prepared):
        began_cpu = time.process_time()
        report = HOSTS[job["host"]](device, prepared, RunOptions(workers=job["workers"]))
        cpu_s = time.process_time() - began_cpu
        table = report.pipelines
        order = np.argsort(table.keys)
        # Of pipelines that are equal to the driver one is compiled, and which one is chance.
        is_created = np.isin(table.status, CREATED_CODES)[order]
        same = hashlib.sha256(table.keys[order].tobytes() + is_created.tobytes()).hexdigest()[:16]
        created = report.compiled + report.cache_hits
        return {
            "rate": created / (report.timing.wall_ns / 1e9),
            "cpu_rate": created / cpu_s,
            "same": same,
            "pipelines": created,
            "counts": {status.value: count for status, count in report.counts().items()},
            **where(device),
        }


def main() -> None:
    """Rates of the hosts, and whether they did the same."""
    parser = set_parser_of(__doc__, workers=2)
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    common = {"device": options.device, "set": options.set, "workers": options.workers}
    jobs = {name: {**common, "host": name} for name in HOSTS}
    rows = compare(__file__, jobs, options, figure="cpu_rate", lower_is_better=False)
    rates = {name: np.median([row["rate"] for row in rows if row["contender"] == name]) for name in jobs}
    print("rate: " + ", ".join(f"{name} {rate:.0f}/s" for name, rate in rates.items()), file=sys.stderr)
    outcomes = {(row["same"], row["pipelines"]) for row in rows}
    if len(outcomes) != 1:
        raise SystemExit(f"hosts did not do the same: {sorted(outcomes)}")
    print(f"the same outcome of each pipeline in all {len(rows)} samples", file=sys.stderr)


if __name__ == "__main__":
    main()
