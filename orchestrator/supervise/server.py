"""`CompileServer`: the process in which a supervised compile goes to the driver, as whoever starts it has it.

The server is an interpreter of its own, so that its environment can be what a driver's compiler needs.
Imports little, because a compile is asked for early.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import msgspec
from attrs import define, evolve

from orchestrator.children.parent import Child
from orchestrator.devices.selectors import needed_at_start
from orchestrator.run.options import NO_WORKER_CACHES, ROLLING, CompileOptions, SavePolicy
from orchestrator.supervise.messages import Answer, Compile, Open
from orchestrator.supervise.starting import SERVICE, started_server

_CHECKPOINTS: Final = SavePolicy(overdue_ns=10_000_000_000)
"""A crash costs what was compiled since the last save."""
_SHARE_LOST: Final = 0.25
"""Of what a process compiled that dies young, as another one did before."""
_FIRST: Final = 1


@define(eq=False)
class CompileServer:
    """A child that compiles a set, with the memory that it shares with this process. `close` it."""

    child: Child[Answer]
    table: int  # descriptor of the memory of an `InFlightTable`
    payloads: int  # descriptor of the memory for what is longer than a frame
    _asked: bool = False

    @classmethod
    def start(
        cls,
        archives: Sequence[str],
        options: CompileOptions,
        *,
        first: Compile | None = None,
        in_turn: bool = False,
    ) -> Self:
        """Start one, and let it open a set.

        `first` is what it is asked for at once, a `first_request`: whoever supervises it takes that over. For
        `in_turn` see `Open`.

        Raises:
            OSError: It cannot be started.
        """
        opener = options.trial_limits.opener
        needed = {} if opener else needed_at_start(options.selector)
        started = started_server(needed | dict(options.environment))
        child: Child[Answer] = Child(SERVICE, Answer, process=started.process, reads_output=False)
        os.setpriority(os.PRIO_PGRP, child.process_id, os.getpriority(os.PRIO_PROCESS, 0))
        server = cls(child, started.table, started.payloads)
        try:
            child.send(
                Open(tuple(archives), started.table, started.payloads, opener, options.selector, in_turn)
            )
            if first is not None:
                child.send(first)
                server._asked = True
        except BaseException:
            server.close()
            raise
        return server

    def take_over(self) -> bool:
        """Whether it was asked for a `first_request`, and nobody took that over before."""
        asked, self._asked = self._asked, False
        return asked

    def close(self) -> None:
        """End the process and all its forks, and give the memory back. Blocking; idempotent."""
        if self.take_over():
            self.child.leave()  # nobody else would say that what its fork is loading is not to blame
        self.child.end(0.0)
        for name in ("table", "payloads"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                setattr(self, name, -1)
                os.close(descriptor)


def first_request(options: CompileOptions, cache_directory: Path | None) -> Compile:
    """What a server is asked for first in a compile without commands."""
    directory = "" if cache_directory is None else str(cache_directory)
    return Compile(_FIRST, msgspec.msgpack.encode(with_checkpoints(options)), directory)


def with_checkpoints(options: CompileOptions, *, after_death: bool = False) -> CompileOptions:
    """Options of a run that may end at any time: what it has made is merged and saved on the way.

    What they say of merges and saves stays. After a death the next process may die as soon.
    """
    share = _SHARE_LOST if after_death else 0.0
    if options.merge is None and options.mode not in NO_WORKER_CACHES:
        options = evolve(options, merge=evolve(ROLLING, age_share=share))
    if options.save_policy == SavePolicy():
        options = evolve(options, save_policy=evolve(_CHECKPOINTS, age_share=share))
    return options
