"""The connection to the process that compiles, where that process ends amid a request."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import attrs
import msgspec
import trio
import trio.testing

from orchestrator.children.parent import Ended
from orchestrator.children.protocol import WHOLE
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.supervise.connection import Connection
from orchestrator.supervise.in_flight import InFlightTable
from orchestrator.supervise.messages import Kill, Raised
from orchestrator.supervise.server import CompileServer


@attrs.define
class Stuck:
    """A child that reads nothing, and said what is no answer."""

    answer_descriptor: int
    request_descriptor: int
    is_over: bool = True

    def packed(self, _request: Kill) -> memoryview:
        return memoryview(bytes(1 << 20))

    def write_some(self, data: memoryview) -> int:
        try:
            return os.write(self.request_descriptor, data)
        except BlockingIOError:
            return 0

    def read_output(self) -> None:
        pass

    def take(self) -> None:
        pass

    def end(self) -> Ended:
        # In this order the system tells nobody that it cannot be written any more.
        os.close(self.request_descriptor)
        os.close(self.answer_descriptor)
        return Ended(-9)


@attrs.define
class Server:
    child: Stuck


async def test_who_sends_waits_for_no_pipe_that_was_closed() -> None:
    child = Stuck(*os.pipe())
    os.set_blocking(child.request_descriptor, False)
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC)
    connection = Connection(cast(CompileServer, Server(child)), InFlightTable(descriptor))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.send, Kill(1))
            await trio.testing.wait_all_tasks_blocked()
            await connection.listen()
    await connection.send(Kill(1))
    assert connection.lost
    os.close(descriptor)


def test_an_error_is_told_whole_in_one_frame() -> None:
    short = SaveError(Path("cache"), "fsync", "no space", leftover=Path("cache.1"))
    frame = msgspec.msgpack.encode(Raised.of(1, short))
    again = msgspec.msgpack.decode(frame, type=Raised).error()
    assert isinstance(again, SaveError)
    assert (str(again), vars(again)) == (str(short), vars(short))
    long = SaveError(Path("ゲ" * 1300), "語" * 3000, "\udcff" * 3000, leftover=Path("é" * 2000))
    assert len(msgspec.msgpack.encode(Raised.of(2**63, long))) < WHOLE - 64
