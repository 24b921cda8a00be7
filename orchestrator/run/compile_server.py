"""Starts the process in which a supervised compile goes to the driver.

It is a fork of a process that is ours and has nothing but one thread yet, as that of the command line; what the
child needs is imported once then. In any other process it is an interpreter of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final, Self

from attrs import define

from orchestrator.children.parent import Child
from orchestrator.children.protocol import ChildLimits
from orchestrator.run.compile_messages import Answer, Open
from orchestrator.run.options import CompileOptions

SERVICE: Final = "compile"

LIMITS: Final = ChildLimits(frame_bytes=64 << 20)


@define(eq=False)
class CompileServer:
    """A child that compiles a set, with the memory that it shares with this process. `close` it.

    Attributes:
        child: The process; it opens the set.
        table: Descriptor of the memory of an `InFlightTable`.
        papers: Descriptor of the memory for what is long.
    """

    child: Child[Answer]
    table: int
    papers: int

    @classmethod
    def start(cls, archives: Sequence[str], options: CompileOptions, *, fork: bool = False) -> Self:
        """Start one.

        Args:
            archives: Paths of the set.
            options: Of all that it will be asked to compile, workers and the like aside.
            fork: Fork this process; see `Child`.

        Raises:
            OSError: It cannot be started.
        """
        table = os.memfd_create("orchestrator-in-flight", os.MFD_CLOEXEC)
        papers = os.memfd_create("orchestrator-papers", os.MFD_CLOEXEC)
        try:
            child: Child[Answer] = Child(
                SERVICE,
                Answer,
                limits=LIMITS,
                program=None if fork else sys.executable,
                descriptors=(table, papers),
            )
            child.send(Open(tuple(archives), table, papers, options.trial_limits.opener, options.selector))
        except BaseException:
            os.close(table)
            os.close(papers)
            raise
        return cls(child, table, papers)

    def close(self) -> None:
        """End the process and all its forks, and give the memory back. Blocking; idempotent."""
        self.child.end(0.0)
        for name in ("table", "papers"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                setattr(self, name, -1)
                os.close(descriptor)
