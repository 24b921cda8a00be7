"""`CompileServer`: the process in which a supervised compile goes to the driver, as whoever starts it has it.

The server is an interpreter of its own, so that its environment can be what a driver's compiler needs.
Imports little, because a compile is asked for early.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Self

from attrs import define

from orchestrator.children.parent import Child
from orchestrator.devices.selectors import needed_at_start
from orchestrator.run.options import CompileOptions
from orchestrator.supervise.messages import Answer, Open
from orchestrator.supervise.starting import SERVICE, started_server


@define(eq=False)
class CompileServer:
    """A child that compiles a set, with the memory that it shares with this process. `close` it."""

    child: Child[Answer]
    table: int  # descriptor of the memory of an `InFlightTable`
    payloads: int  # descriptor of the memory for what is longer than a frame

    @classmethod
    def start(
        cls,
        archives: Sequence[str],
        options: CompileOptions,
        *,
        in_turn: bool = False,
    ) -> Self:
        """Start one, and let it open a set.

        For `in_turn` see `Open`.

        Raises:
            OSError: It cannot be started.
        """
        opener = options.trial_limits.opener
        needed = {} if opener else needed_at_start(options.selector)
        started = started_server(needed | {name: os.fsdecode(to) for name, to in options.environment})
        child: Child[Answer] = Child(SERVICE, Answer, process=started.process, reads_output=False)
        os.setpriority(os.PRIO_PGRP, child.process_id, os.getpriority(os.PRIO_PROCESS, 0))
        server = cls(child, started.table, started.payloads)
        try:
            child.send(
                Open(tuple(archives), started.table, started.payloads, opener, options.selector, in_turn)
            )
        except BaseException:
            server.close()
            raise
        return server

    def close(self) -> None:
        """End the process and all its forks, and give the memory back. Blocking; idempotent."""
        self.child.end(0.0)
        for name in ("table", "payloads"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                setattr(self, name, -1)
                os.close(descriptor)
