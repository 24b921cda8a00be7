"""A child that is a fork: nothing of its parent goes on in it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.drivers import REPOSITORY, require_tool

BEGINNING = """
import ctypes, json, mmap, os, resource, signal, socket, sys
from orchestrator.children import parent
from orchestrator.children.protocol import SERVICES
from tests.children.misbehaving import SERVICE, Do, Said
SERVICES[SERVICE] = "tests.children.misbehaving"
"""


def run(source: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program of which the children are those of misbehaving.py."""
    command = [sys.executable, "-E", "-c", BEGINNING + source, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False, **options)


PARENT = """
import atexit
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
    os.write(1, f"{state}; {end.how}, {end.output}\\n".encode())
assert signal.getsignal(signal.SIGTERM) is print
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""


def test_a_fork_is_what_an_interpreter_of_its_own_would_be() -> None:
    done = run(PARENT)
    assert done.stdout.splitlines() == [
        "what C holds",
        "SIGINT=default_int_handler SIGTERM=SIG_DFL SIGUSR1=SIG_DFL SIGHUP=SIG_IGN, wakeup -1, "
        "blocked set(), leader True; exit code 0, held at the end",
        "what Python holds",
        "at the end",
    ]
    assert done.stderr == ""


FULL = """
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
held = []
while True:
    try:
        held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        break
for each in held[-6:]:
    os.close(each)  # for the pipes, and no more
with parent.Child(SERVICE, Said, program=None) as child:
    os.write(1, child.ask(Do("state")).text.encode())
"""


def test_a_fork_of_a_process_with_no_descriptor_left_serves() -> None:
    done = run(FULL)
    assert done.stderr == ""
    assert "leader True" in done.stdout


SIBLINGS = """
held = int(sys.argv[1])
forks = [
    parent.Child(SERVICE, Said, program=None, descriptors=(held,), reads_output=False) for _ in range(3)
]
assert len(os.listdir("/proc/self/task")) == 1
pipes = []
for child in forks:
    child.read_output()
    assert child.ask(Do("echo", 7)).number == 7
    links = [f"/proc/{child.process_id}/fd/{each}" for each in child.ask(Do("descriptors")).text.split(",")]
    pipes.append([os.readlink(each) for each in links if os.path.lexists(each)])
os.kill(forks[1].process_id, signal.SIGSEGV)
how = forks[1].receive().how
alive = [child.ask(Do("echo", 8)).number for child in (forks[0], forks[2])]
print(json.dumps([pipes, how, alive]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_forks_made_one_after_another_hold_nothing_of_each_other() -> None:
    alive, held = os.pipe()
    try:
        done = run(SIBLINGS, held, pass_fds=(held,))
    finally:
        os.close(held)
    with open(alive, "rb") as alive_file:  # noqa: PTH123 - a descriptor
        assert done.returncode == -signal.SIGKILL, done.stderr
        every, how, answers = json.loads(done.stdout)
        mark = os.readlink(f"/proc/self/fd/{alive}")  # noqa: PTH115
        own = [{each for each in pipes if each.startswith("pipe:") and each != mark} for pipes in every]
        assert [len(each) for each in own] == [3, 3, 3]
        assert len(set().union(*own)) == 9
        assert (how, answers) == ("signal 11", [8, 8])
        # Each that lives has the other end.
        assert select.select([alive_file], [], [], 120.0)[0], "a fork outlives its parent"
        assert alive_file.read() == b""


MAPPED = """
given, other = [os.open(each, os.O_RDONLY) for each in sys.argv[1:]]
maps = [mmap.mmap(each, 0, access=mmap.ACCESS_READ) for each in (given, other)]
with parent.Child(SERVICE, Said, program=None, descriptors=(given,)) as child:
    held = [f"/proc/{child.process_id}/fd/{each}" for each in child.ask(Do("descriptors")).text.split(",")]
    links = [os.readlink(each) for each in held if os.path.lexists(each)]
print(*map(links.count, sys.argv[1:]))
"""


def test_a_fork_keeps_what_a_map_of_a_given_file_holds(tmp_path: Path) -> None:
    files = [tmp_path / "given", tmp_path / "other"]
    for each in files:
        each.write_bytes(b"content")
    done = run(MAPPED, *files)
    assert done.stdout.split() == ["2", "0"]  # its own descriptor and the map's; nothing of another file


LIBRARY = """
#define _GNU_SOURCE
#include <sys/mman.h>
__attribute__((constructor)) static void begin(void) { memfd_create("library", MFD_CLOEXEC); }
"""

PRELOADED = """
from orchestrator.process import own_interpreter
own_interpreter()
os.memfd_create("parent")
with parent.Child(SERVICE, Said, program=None) as child:
    held = [f"/proc/{child.process_id}/fd/{each}" for each in child.ask(Do("descriptors")).text.split(",")]
    links = [os.readlink(each).partition(" ")[0] for each in held if os.path.lexists(each)]
print(*map(links.count, ("/memfd:library", "/memfd:parent")))
"""


def test_a_fork_keeps_what_a_preloaded_library_opened(tmp_path: Path) -> None:
    """Mesa's drm-shim has the memory of its GPU in such a file; without it the driver dies with SIGBUS."""
    code, library = tmp_path / "library.c", tmp_path / "library.so"
    code.write_text(LIBRARY)
    subprocess.run([require_tool("gcc"), "-shared", "-fPIC", "-o", library, code], check=True)
    done = run(PRELOADED, env={**os.environ, "LD_PRELOAD": str(library)})
    assert done.stdout.split() == ["1", "0"], done.stderr


AGAIN = """
from orchestrator.process import may_fork, own_interpreter
own_interpreter()
library, key = ctypes.CDLL(None), ctypes.c_uint()
assert not library.pthread_key_create(ctypes.byref(key), library.sleep)
def hold_back(_):
    library.pthread_setspecific(key, ctypes.c_void_p(1))
for _ in range(2):
    assert may_fork()
    with parent.Child(SERVICE, Said, program=None) as child:
        child.on_output = hold_back
        child.ask(Do("prints"))
print("forked twice")
"""


def test_a_parent_may_fork_again_when_a_child_has_ended() -> None:
    """Python joins a thread before the system has ended it, here a second before: it sleeps as it exits."""
    done = run(AGAIN)
    assert (done.returncode, done.stdout, done.stderr) == (0, "forked twice\n", "")
