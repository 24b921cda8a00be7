"""Children that misbehave on request: `python -m tests.children.misbehaving`, not `orchestrator.children`."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec

from orchestrator.children.protocol import pack_frame
from orchestrator.children.serving import SERVICES, Channel, main


class Do(msgspec.Struct, tag="do"):
    """What to do."""

    what: str
    number: int = 0
    data: bytes = b""


class Said(msgspec.Struct, tag="said"):
    """What comes of it."""

    text: str = ""
    number: int = 0
    data: bytes = b""


Request = Do
SERVICE = "misbehaving"


def serve(channel: Channel[Do, Said]) -> None:
    """Do what is asked."""
    for request in channel:
        found = DEEDS[request.what](channel, request)
        if isinstance(found, Said):
            channel.send(found)


def raw(data: bytes) -> None:
    """Write bytes to the pipe of answers, which only a `Channel` should."""
    left = memoryview(data)
    while left:
        left = left[os.write(answers(), left) :]


def answers() -> int:
    """The descriptor of the pipe of answers: the one pipe above stderr that is written to."""
    import fcntl

    for name in sorted(map(int, os.listdir("/proc/self/fd"))):  # noqa: PTH208
        try:
            is_pipe = os.readlink(f"/proc/self/fd/{name}").startswith("pipe:")  # noqa: PTH115
            if name > 2 and is_pipe and fcntl.fcntl(name, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
                return name
        except OSError:
            continue
    raise AssertionError("no pipe of answers")


def echo(_: Channel[Do, Said], request: Do) -> Said:
    return Said("", request.number, request.data)


def prints(_: Channel[Do, Said], request: Do) -> Said:
    print("a greeting of Python", flush=True)
    os.write(1, b"a greeting of a driver\n")
    ctypes.CDLL(None).puts(b"a greeting of C")
    ctypes.CDLL(None).fflush(None)
    return Said(repr(sys.stdin.read()))


def floods(_: Channel[Do, Said], request: Do) -> Said:
    for _number in range(request.number):
        os.write(2, b"x" * 1023 + b"\n")
    os.write(2, b"the last words\n")
    return Said("flooded")


def streams(channel: Channel[Do, Said], request: Do) -> None:
    for number in range(request.number):
        channel.send(Said(number=number, data=bytes([number % 251]) * len(request.data)))


def garbage(_: Channel[Do, Said], request: Do) -> None:
    raw(b"WARNING: radv is not a conformant Vulkan implementation\n")
    time.sleep(3600)


def other(_: Channel[Do, Said], request: Do) -> None:
    raw(pack_frame(Do("what a parent says")))
    time.sleep(3600)


def oversized(_: Channel[Do, Said], request: Do) -> None:
    raw(request.number.to_bytes(4, "little") + b"only this")
    time.sleep(3600)


def truncated(_: Channel[Do, Said], request: Do) -> None:
    frame = pack_frame(Said("complete"))
    raw(frame + frame[: len(frame) - 3])
    if request.number:
        os.kill(os.getpid(), request.number)
    os._exit(0)


def exits(_: Channel[Do, Said], request: Do) -> None:
    os.write(2, b"why it ended\n")
    os._exit(request.number)


def dies(_: Channel[Do, Said], request: Do) -> None:
    os.kill(os.getpid(), request.number)


def hangs_up(_: Channel[Do, Said], request: Do) -> None:
    os.close(answers())
    time.sleep(3600)


def hangs(_: Channel[Do, Said], request: Do) -> None:
    time.sleep(3600)


def burns(_: Channel[Do, Said], request: Do) -> None:
    while True:
        pass


def swells(_: Channel[Do, Said], request: Do) -> Said:
    return Said(number=len(bytearray(request.number)))


def begets(_: Channel[Do, Said], request: Do) -> Said:
    return Said(number=subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]).pid)


def environment(_: Channel[Do, Said], request: Do) -> Said:
    return Said("\n".join(f"{name}={value}" for name, value in sorted(os.environ.items())))


def imports(_: Channel[Do, Said], request: Do) -> Said:
    module = __import__(request.data.decode())
    return Said(str(Path(module.__file__ or "").resolve()))


def descriptors(_: Channel[Do, Said], request: Do) -> Said:
    return Said(",".join(sorted(os.listdir("/proc/self/fd"), key=int)))  # noqa: PTH208


def threads(channel: Channel[Do, Said], request: Do) -> None:
    def say(number: int) -> None:
        for _number in range(20):
            channel.send(Said(number=number, data=bytes([number]) * len(request.data)))

    each = [threading.Thread(target=say, args=(number,)) for number in range(request.number)]
    for one in each:
        one.start()
    for one in each:
        one.join()


def too_much(channel: Channel[Do, Said], request: Do) -> None:
    channel.send(Said(data=bytes(request.number)))


DEEDS = {
    each.__name__: each
    for each in (
        echo, prints, floods, streams, garbage, other, oversized, truncated, exits, dies, hangs_up,
        hangs, burns, swells, begets, environment, imports, descriptors, threads, too_much,
    )
}  # fmt: skip


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    SERVICES[SERVICE] = "tests.children.misbehaving"
    main()
