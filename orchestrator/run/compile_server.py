"""Starts the process in which a supervised compile goes to the driver.

Assumptions: loaded and called first of all by whoever wants to be quick: the child loads what it needs, which
takes longest, while this process loads the rest.
"""

from __future__ import annotations

import os
from typing import Final, Self

from attrs import define

from orchestrator.children.parent import Child
from orchestrator.children.protocol import ChildLimits
from orchestrator.run.compile_messages import Answer

SERVICE: Final = "compile"

_LIMITS: Final = ChildLimits(frame_bytes=64 << 20)


@define(eq=False)
class CompileServer:
    """A child that compiles, with the memory that it shares with this process. `close` it.

    Attributes:
        child: The process; it waits for `Open`.
        table: Descriptor of the memory of an `InFlightTable`.
        papers: Descriptor of the memory for what is long.
    """

    child: Child[Answer]
    table: int
    papers: int

    @classmethod
    def start(cls) -> Self:
        """Start one.

        Raises:
            OSError: It cannot be started.
        """
        table = os.memfd_create("orchestrator-in-flight", os.MFD_CLOEXEC)
        papers = os.memfd_create("orchestrator-papers", os.MFD_CLOEXEC)
        try:
            child: Child[Answer] = Child(SERVICE, Answer, limits=_LIMITS, descriptors=(table, papers))
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
