"""Child processes for several targets, forked from one that has imported everything and opened the set.

    this process ── open the set, import ──> fork, fork, fork ... ──> threads, an event loop, the first target

A process may only be forked while it has one thread, so all forks are made first, and each waits for its
turn. A waiting fork costs its page tables; what it reads is this process's own memory. Of those that begin
together one decodes the set, with all processors; the others wait for its plan, and decode in turn where it
does not fit.

Guarantees: no process is left. A fork holds no pipe of another one, so each ends with this process.
Assumptions: as `may_fork`; where that does not hold, or files may not be open in such numbers, a target's
process is an interpreter of its own.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

from attrs import frozen

from orchestrator.devices.opening import preload
from orchestrator.process import may_fork
from orchestrator.registry import registry
from orchestrator.run.compile_server import CompileServer, shared_sets, shared_turns
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import CompileReport
from orchestrator.run.supervisor import compile_supervised
from orchestrator.sets.pipeline_set import PipelineSet

_DESCRIPTORS: Final = 5
"""Files that this process has open for a fork."""
_SHARE: Final = 2
"""Part of the files which may be open that forks do not take."""


@frozen(eq=False)
class TargetServers:
    """Forks that wait for their target."""

    _waiting: dict[str, CompileServer]

    async def compile(self, archives: Sequence[str], options: CompileOptions, **given: Any) -> CompileReport:
        """Compile for a target as `compile_supervised` does, in its fork where it has one."""
        server = self._waiting.pop(options.selector, None)
        if server is not None:
            server.open(archives, options)
        return await compile_supervised(archives, options, server=server, **given)


@contextmanager
def target_servers(
    source: PipelineSet, archives: Sequence[str], options: Sequence[CompileOptions]
) -> Iterator[TargetServers]:
    """Forks for targets, for the block.

    Args:
        source: The set, open until the block ends.
        archives: Its paths.
        options: Of each target.
    """
    paths = tuple(archives)
    waiting: dict[str, CompileServer] = {}
    with ExitStack() as held:
        if may_fork():
            registry()
            for each in options:
                preload(each.trial_limits.opener, each.selector)
            shared_sets[paths] = source
            held.callback(shared_sets.pop, paths)
            turn = shared_turns[paths] = os.memfd_create("orchestrator-decoding", os.MFD_CLOEXEC)
            held.callback(os.close, turn)
            held.callback(shared_turns.pop, paths)
            with suppress(OSError):  # no more processes: those without one start it, or say what is wrong
                for each in options[: _most_forks()]:
                    server = waiting[each.selector] = CompileServer.fork((turn, *source.descriptors))
                    held.callback(server.close)
        yield TargetServers(waiting)


def _most_forks() -> int | None:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if files == resource.RLIM_INFINITY else files // _SHARE // _DESCRIPTORS
