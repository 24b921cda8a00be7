"""The first use of the tables by several threads at a time, in a process of its own: it may crash it."""

from __future__ import annotations

import subprocess
import sys

import pytest

_RACE = """
import sys, threading
from orchestrator.registry.tables import registry
sys.setswitchinterval(1e-6)
threads = 8
together = threading.Barrier(threads)
tables = []
def use():
    together.wait()
    tables.append(registry())
started = [threading.Thread(target=use) for _ in range(threads)]
for each in started:
    each.start()
for each in started:
    each.join()
assert len(tables) == threads and all(each is tables[0] for each in tables), "decoded more than once"
"""


@pytest.mark.parametrize("attempt", range(5))
def test_threads_may_meet_in_the_first_call(attempt: int) -> None:
    done = subprocess.run([sys.executable, "-c", _RACE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
