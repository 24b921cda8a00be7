"""The verb `quarantine`: shows or clears the pipelines that are left out because they crashed the driver."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.application import CacheDirectory, JsonFlag
from orchestrator.cli.documents import HeldQuarantine, QuarantineDocument, filled
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.output import Output, key_text, path_text, plural, styled, table
from orchestrator.cli.values import hash_number, named_directory
from orchestrator.stores.culprits import Quarantine, quarantines, remove_culprits

_WHAT = ("list", "clear")


def quarantine_verb(
    what: Annotated[str, Parameter(help="`list`, or `clear` to try pipelines again.")] = "list",
    /,
    *keys: Annotated[str, Parameter(help="The keys to clear; without keys `clear` removes all.")],
    cache_dir: CacheDirectory = None,
    json: JsonFlag = False,
) -> int:
    """Show the pipelines that crashed the driver, or try them again.

    `compile` leaves them out on the device and driver that crashed. Another version of the driver gets them
    again.

    **EXAMPLES**

        orchestrator quarantine list
        orchestrator quarantine clear 43210c2d62f9536c
        orchestrator quarantine clear --cache-dir build/cache
    """
    if what not in _WHAT:
        raise UsageError(f"quarantine {what!r}: `list` or `clear` is expected")
    if keys and what == "list":
        raise UsageError("quarantine list: takes no keys", "`orchestrator quarantine clear KEY` removes them")
    wanted = [key_text(hash_number(each)) for each in keys]
    directory = named_directory(cache_dir)
    cleared = _clear(directory, wanted) if what == "clear" else None
    found = quarantines(directory)
    output = Output(json=json)
    unusable = any(held is None for _, held, _ in found)
    records = (filled(HeldQuarantine, held, path=path, problem=problem) for path, held, problem in found)
    output.document(
        lambda: QuarantineDocument(directory=directory, cleared=cleared, quarantines=tuple(records))
    )
    for path, held, problem in found:
        if cleared is None or held is None:
            _show(output, path, held, problem)
    if cleared is not None:
        output.line(f"{plural(cleared, 'pipeline')} will be tried again")
    elif not (unusable or any(held is not None and held.culprits for _, held, _ in found)):
        output.line(f"{path_text(directory)}: no pipeline is in quarantine")
        if cache_dir is None:
            output.line("a pack has a quarantine of its own: --cache-dir PACK shows it")
    return ExitCode.BAD_INPUT if unusable else ExitCode.OK


def _clear(directory: Path, keys: list[str]) -> int:
    usable = {path: held for path, held, _ in quarantines(directory) if held is not None and held.culprits}
    there = {each.key for held in usable.values() for each in held.culprits}
    if missing := [each for each in keys if each not in there]:
        raise UsageError(
            f"{path_text(directory)}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not in "
            "quarantine, so nothing was cleared",
            "`orchestrator quarantine list` shows what is",
        )
    return sum(remove_culprits(path, keys or None) for path in usable)


def _show(output: Output, path: Path, held: Quarantine | None, problem: str) -> None:
    if held is None:
        output.problem(styled(f"{path_text(path)}: not used: {problem}", "warn"))
        return
    if not held.culprits:
        return
    output.line(styled(held.device_name, "head"), styled(f"  {held.driver}", "dim"))
    made = table("key", "kind", "since", "why")
    for each in held.culprits:
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.seen_at))
        made.add_row(each.key, styled(each.kind.replace("_", " ")), since, styled(each.reason))
    output.show(made)
    output.line("")
