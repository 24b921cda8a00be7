"""The verb `compile`, as the command line calls it."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.application import JsonFlag, SetNames
from orchestrator.cli.compile_arguments import COMPILE_DEFAULTS, OUTPUT, CompileArguments


def compile_verb(
    sets: SetNames,
    /,
    arguments: Annotated[CompileArguments, Parameter(name="*")] = COMPILE_DEFAULTS,
    *,
    json: Annotated[JsonFlag, OUTPUT] = False,
) -> int:
    """Compile a set on a device over several workers, merge their caches, and keep the result.

    A second run loads the file that the first one saved. Ctrl-C stops after the driver calls in flight and
    keeps the finished work. The driver runs in a child process. A pipeline that crashes it is named and
    fails; later runs leave it out, and everything else is compiled. The exit code is 1 if a pipeline failed
    or the set is damaged.

    **EXAMPLES**

        orchestrator compile sample --device radv:navi21
        orchestrator compile game.foz game.1.foz --workers 8 --cache-dir build/cache
        orchestrator compile game.foz --mode shared --json > shared.json
        orchestrator compile unknown.foz --timeout 20s --memory 4G
        orchestrator compile game.foz --only 43210c2d62f9536c
        orchestrator compile game.foz --time-limit 8h
        orchestrator compile game.foz --identifiers
        orchestrator compile game.foz --shard 2/4 --cache-dir build/shard2
        orchestrator compile game.foz -d radv:navi21 -d radv:navi31 --out pack
        orchestrator compile game.foz --device 'radv:*' --out pack --nice 10
    """
    from orchestrator.cli.compiling import compile_sets

    return compile_sets(sets, arguments, json=json)
