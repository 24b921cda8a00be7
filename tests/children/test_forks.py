"""A child that is a fork: nothing of its parent goes on in it."""

from __future__ import annotations

import subprocess
import sys

from tests.drivers import REPOSITORY

PARENT = """
import atexit, ctypes, os, signal, socket, sys
from orchestrator.children import parent
from orchestrator.children.protocol import SERVICES
from tests.children.misbehaving import SERVICE, Do, Said
SERVICES[SERVICE] = "tests.children.misbehaving"
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(each, print)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
one, other = socket.socketpair()
other.setblocking(False)
signal.set_wakeup_fd(other.fileno())
atexit.register(print, "at the end")
sys.stdout.write("what Python holds\\n")
ctypes.CDLL(None).printf(b"what C holds\\n")
with parent.Child(SERVICE, Said, program=None) as child:
    state = child.ask(Do("state")).text
    child.send(Do("returns"))
    end = child.receive()
    os.write(1, f"{state}; {end.how}, {end.words}\\n".encode())
assert signal.getsignal(signal.SIGTERM) is print
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""


def test_a_fork_is_what_an_interpreter_of_its_own_would_be() -> None:
    done = subprocess.run(
        [sys.executable, "-E", "-c", PARENT], capture_output=True, text=True, cwd=REPOSITORY, check=True
    )
    assert done.stdout.splitlines() == [
        "what C holds",
        "SIGINT=default_int_handler SIGTERM=SIG_DFL SIGUSR1=SIG_DFL SIGHUP=SIG_IGN, wakeup -1, "
        "blocked set(), leader True; exit code 0, held at the end",
        "what Python holds",
        "at the end",
    ]
    assert done.stderr == ""
