"""`Connection`: a supervisor's end of the pipes to a server. Requests go out, answers come by fork."""

from __future__ import annotations

import math
import os
from contextlib import suppress

import trio
from attrs import define, field

from orchestrator.children.parent import Ended
from orchestrator.supervise.in_flight import InFlightTable
from orchestrator.supervise.messages import Answer, InMemory, Request
from orchestrator.supervise.server import CompileServer

Mail = trio.MemoryReceiveChannel[Answer | Ended]
"""Answers about one fork, and in the end how its server ended."""


@define(eq=False)
class Connection:
    """A connection to a server, which it owns. Of the trio thread; `listen` runs as long as it is used."""

    server: CompileServer
    table: InFlightTable  # what forks of the server have in the driver
    ended: Ended | None = None  # how the server ended
    _ends: bool = False
    _mail: dict[int, trio.MemorySendChannel[Answer | Ended]] = field(factory=dict)
    _numbers: int = 0
    _sending: trio.Lock = field(factory=trio.Lock)

    @classmethod
    def to(cls, server: CompileServer) -> Connection:
        """A connection to a server."""
        return cls(server, InFlightTable(server.table))

    @property
    def lost(self) -> bool:
        """Whether the server has ended."""
        return self.ended is not None

    def mailbox(self) -> tuple[int, Mail]:
        """A number for a fork, and where the answers about it come."""
        self._numbers += 1
        send, receive = trio.open_memory_channel[Answer | Ended](math.inf)
        self._mail[self._numbers] = send
        if self.ended is not None:
            send.send_nowait(self.ended)
        return self._numbers, receive

    async def send(self, request: Request) -> None:
        """Send a request; to a server that has ended this does nothing."""
        child = self.server.child
        left = child.packed(request)
        async with self._sending:  # the pipe may take a request in parts
            with suppress(trio.ClosedResourceError):  # it ends meanwhile
                while not self._ends and (left := left[child.write_some(left) :]):
                    await trio.lowlevel.wait_writable(child.request_descriptor)

    async def listen(self) -> None:
        """Sort answers, and hear what is printed, until the server ends."""
        child = self.server.child
        child.read_output()
        while True:
            while (answer := child.take()) is not None:
                # Without a number it is about the set, which all forks need. A process with a driver may
                # write any number.
                numbers = [answer.number] if answer.number else list(self._mail)
                for each in filter(None, map(self._mail.get, numbers)):
                    each.send_nowait(answer)
            if child.is_over:
                break
            await trio.lowlevel.wait_readable(child.answer_descriptor)
            child.read_some()
        self._ends = True
        trio.lowlevel.notify_closing(child.request_descriptor)  # else who waits for it may wait for ever
        self.ended = await trio.to_thread.run_sync(child.end)
        for each in self._mail.values():
            each.send_nowait(self.ended)

    def payload(self, place: InMemory) -> bytes:
        """What a fork put into the shared memory."""
        return os.pread(self.server.payloads, place.size, place.offset)

    def close(self) -> None:
        """End the server. Blocking."""
        self.server.close()
