"""Any part of a cluster is killed at any moment: the same command goes on, nothing saved is lost or left.

The moment is a number of compiles, of which the device tells, so that no clock decides what is tried.
"""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress

import pytest

from orchestrator.cli.errors import ExitCode
from tests.campaigns import IS_WHOLE, tries
from tests.children.test_children import is_gone
from tests.cluster.clusters import PATIENCE_S, processes_of, until
from tests.cluster.place import COUNT, Compiled, Place
from tests.supervise.processes import descendants

KILLS = tries(1, 100)
PARTS = ("worker", "scheduler", "coordinator")
IN_CAMPAIGNS = ("child", "nanny")  # which other tests know as a driver's crash, and as the end of a worker


def victim_of(place: Place, part: str, moment: random.Random) -> int:
    """A process of a part of the cluster; 0 where none runs now."""
    nanny = moment.choice(list(place.cluster.workers.values())).pid
    if part == "scheduler":
        assert place.cluster.scheduler is not None
        return place.cluster.scheduler.pid
    if part == "nanny":
        return nanny
    workers = [each for each, line in processes_of(nanny).items() if "spawn_main" in line]
    children = [each for one in workers for each in descendants(one)]
    return moment.choice((workers if part == "worker" else children) or [0])


def kill(process: int) -> None:
    """Kill a process, and wait until what it started is gone, too; nothing for 0."""
    if not process:
        return
    below = descendants(process)
    with suppress(ProcessLookupError):  # it has ended since
        os.kill(process, signal.SIGKILL)
    until(lambda: all(map(is_gone, below)))


@pytest.mark.parametrize("seed", range(KILLS))
@pytest.mark.parametrize("part", PARTS + IN_CAMPAIGNS * IS_WHOLE)
def test_the_same_command_goes_on_after_a_kill(
    place: Place, compiled: Compiled, part: str, seed: int
) -> None:
    moment = random.Random(f"{part} {seed}")
    wanted = moment.randrange(COUNT)

    def strike(coordinator: int = 0) -> set[int]:
        """Kill it at that moment; what had been saved until then."""
        until(lambda: place.compiles().total() > wanted or place.kept() == place.keys)
        kept = place.kept()
        kill(coordinator or victim_of(place, part, moment))
        return kept

    if part == "coordinator":
        running = place.start()
        kept = strike(running.pid)
        running.wait(PATIENCE_S)
    else:
        struck = place.threads.submit(strike)
        problem = compiled(*([ExitCode.BAD_INPUT] if part == "scheduler" else []))["problem"]
        kept = struck.result() if part == "scheduler" else place.keys
        assert part != "scheduler" or not problem or "the scheduler at" in problem
    until(lambda: not compiling(place))  # without the same command, too
    place.make_whole()
    before = place.compiles()
    compiled()
    assert not kept & (place.compiles() - before).keys(), "what was saved is not compiled again"
    # What the driver had when its process was killed is begun thrice: there, alone to see whether it is to
    # blame, and with the rest.
    assert max(place.compiles().values()) <= (3 if part == "child" else 2)
    for each in place.names:
        left = list((place.folder / each / "worker" / "shards").glob("*/*/pack"))
        assert not left, "no machine keeps what is in the pack"


def compiling(place: Place) -> list[str]:
    """The processes that compile."""
    lines = [line for each in place.cluster.workers.values() for line in processes_of(each.pid).values()]
    return [line for line in lines if "orchestrator.children" in line]
