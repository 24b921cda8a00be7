"""Starts the process in which a supervised compile goes to the driver.

It is a fork of a process that is ours and has nothing but one thread yet, as that of the command line; what
the child needs is imported once then. In any other process it is an interpreter of its own.
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
from orchestrator.sets.pipeline_set import PipelineSet

SERVICE: Final = "compile"

LIMITS: Final = ChildLimits(frame_bytes=64 << 20)

shared_sets: Final[dict[tuple[str, ...], PipelineSet]] = {}
"""Sets that are open here, by their paths, for the forks of this process."""

shared_turns: Final[dict[tuple[str, ...], int]] = {}
"""Descriptors of the `DecodingTurn` of such a set, which its forks have too."""


@define(eq=False)
class CompileServer:
    """A child that compiles a set, with the memory that it shares with this process. `close` it.

    Attributes:
        child: The process; it opens the set, or has it from the process that it is a fork of.
        table: Descriptor of the memory of an `InFlightTable`.
        papers: Descriptor of the memory for what is long.
    """

    child: Child[Answer]
    table: int
    papers: int

    @classmethod
    def start(cls, archives: Sequence[str], options: CompileOptions, *, fork: bool = False) -> Self:
        """Start one, and let it open a set.

        Args:
            archives: Paths of the set.
            options: Of all that it will be asked to compile, workers and the like aside.
            fork: Fork this process; see `Child`.

        Raises:
            OSError: It cannot be started.
        """
        server = cls._started(program=None if fork else sys.executable)
        try:
            server.open(archives, options)
        except BaseException:
            server.close()
            raise
        return server

    @classmethod
    def fork(cls, kept: Sequence[int]) -> Self:
        """Fork this process, and start no thread, so that it can be forked again; `open` says what it is for.

        Args:
            kept: Descriptors that the fork has too.

        Raises:
            OSError: It cannot be started.
        """
        return cls._started(program=None, kept=kept)

    @classmethod
    def _started(cls, program: str | None, kept: Sequence[int] = ()) -> Self:
        table = os.memfd_create("orchestrator-in-flight", os.MFD_CLOEXEC)
        papers = os.memfd_create("orchestrator-papers", os.MFD_CLOEXEC)
        try:
            child: Child[Answer] = Child(
                SERVICE,
                Answer,
                limits=LIMITS,
                program=program,
                descriptors=(table, papers, *kept),
                listens=False,
            )
        except BaseException:
            os.close(table)
            os.close(papers)
            raise
        return cls(child, table, papers)

    def open(self, archives: Sequence[str], options: CompileOptions) -> None:
        """Let it open a set, once; the arguments are those of `start`."""
        self.child.listen()
        limits = options.trial_limits
        self.child.send(Open(tuple(archives), self.table, self.papers, limits.opener, options.selector))

    def close(self) -> None:
        """End the process and all its forks, and give the memory back. Blocking; idempotent."""
        self.child.end(0.0)
        for name in ("table", "papers"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                setattr(self, name, -1)
                os.close(descriptor)
