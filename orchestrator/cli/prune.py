"""The verb `prune`: removes unneeded files from a directory of cache files.

Guarantees: --dry-run changes nothing; without it, only files that are shown are removed.
"""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.application import CacheDirectory, Flag, JsonFlag, in_range
from orchestrator.cli.documents import KeptFile, PrunedFile, PruneDocument
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, byte_text, path_text, plural, styled
from orchestrator.cli.values import age_ns, named_directory, size_bytes
from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.listing import list_all
from orchestrator.errors import DeviceError
from orchestrator.stores.cache_file import sweep_directory
from orchestrator.stores.pack import sweep_pack
from orchestrator.stores.pruning import PruneItem, PruneReport, plan_prune, prune

_LEFTOVER = "leftover of a killed process"


def prune_verb(
    *,
    cache_dir: CacheDirectory = None,
    max_size: str | None = None,
    older_than: str | None = None,
    keep_builds: Annotated[int, Parameter(validator=in_range(1))] = 3,
    dry_run: Flag = False,
    json: JsonFlag = False,
) -> int:
    """Remove cache files that are no longer needed.

    Always removes leftovers of killed processes, quarantined cache files, previous generations of whole
    files, unused pages of the store of binaries, and files of other builds of the installed drivers. Files
    of absent devices stay, unless --keep-builds, --older-than or --max-size removes them. The files of a
    pack stay. The same rules apply to generations of binaries (`compile --mode binaries`); if space is
    short, those used least recently go first.

    **EXAMPLES**

        orchestrator prune --dry-run
        orchestrator prune --older-than 30d --max-size 2G
        orchestrator prune --cache-dir build/cache --json

    Args:
        max_size: Remove the oldest cache files, plans and binaries until the rest of these fits, such as
            `500M` or `2G`. A number alone is bytes. What else lies beside them is not counted.
        older_than: Remove files that are older than this, such as `30d`, `12h` or `4w`. A number alone is
            days.
        keep_builds: Of so many builds of its driver the cache files of each device stay, those that were
            saved last. Files of older builds are removed, also of devices that are not here.
        dry_run: Only show what would be removed.
    """
    max_bytes = None if max_size is None else size_bytes(max_size, "--max-size")
    older_than_ns, directory, output = age_ns(older_than), named_directory(cache_dir), Output(json=json)
    here, problem = devices_here()
    plan = plan_prune(
        directory,
        here=here,
        max_bytes=max_bytes,
        older_than_ns=older_than_ns,
        keep_builds=keep_builds,
        now_ns=time.time_ns(),
    )
    swept = sweep_directory(directory, dry_run=dry_run) + sweep_pack(directory, dry_run=dry_run)
    report = PruneReport((), ()) if dry_run else prune(plan)
    shown = plan.items if dry_run else report.removed
    kept = (*plan.kept, *(each for each, _ in report.failed))
    document = PruneDocument(
        directory=directory,
        dry_run=dry_run,
        removed=tuple(map(_pruned, shown)),
        removed_bytes=sum(each.size for each in shown),
        failed=tuple(_pruned(each, cause=cause) for each, cause in report.failed),
        leftovers=swept.removed,
        leftovers_failed=swept.failed,
        kept=tuple(KeptFile(path=each.path, bytes=each.size) for each in kept),
        kept_bytes=sum(each.size for each in kept),
        drivers_asked=len(here),
        note="; ".join(filter(None, [problem, plan.note])) or None,
    )
    output.document(lambda: document)
    _show(document, output)
    return ExitCode.BAD_INPUT if report.failed or swept.failed else ExitCode.OK


def _pruned(item: PruneItem, **more: str) -> PrunedFile:
    return PrunedFile(path=item.path, bytes=item.size, reason=item.reason, detail=item.detail, **more)


def _show(document: PruneDocument, output: Output) -> None:
    rows = [
        (byte_text(each.bytes), each.reason, each.path, f"  {each.detail or ''}") for each in document.removed
    ]
    rows += [("", _LEFTOVER, path, "") for path in document.leftovers]
    for size, reason, path, detail in rows:
        output.line(
            f"{size:>10}  {reason}  {path_text(path)}", styled(f"  {detail}" if detail else "", "dim")
        )
    problems = [f"{path_text(each.path)}: {each.cause}" for each in document.failed]
    problems += [f"{_LEFTOVER}  {path_text(path)}" for path in document.leftovers_failed]
    for problem in problems:
        output.problem(styled("not removed", "bad"), f"  {problem}")
    verb = "would be removed" if document.dry_run else "removed"
    left = f", and {plural(len(document.leftovers), 'leftover')}" if document.leftovers else ""
    output.line(
        f"{path_text(document.directory)}: {plural(len(document.removed), 'file')} {verb}, "
        f"{byte_text(document.removed_bytes)}{left}; {plural(len(document.kept), 'file')} kept, "
        f"{byte_text(document.kept_bytes)}"
    )
    if document.note:
        output.line(styled(document.note, "dim"))


def devices_here() -> tuple[list[DeviceIdentity], str]:
    """The devices that the loader finds, and why there are none, or ""."""
    try:
        listing = list_all(opens=False)
    except DeviceError as error:
        return [], f"no driver answers, so files of other driver builds are not recognized: {error}"
    problem = "; ".join(
        f"files of other builds of the driver {each.manifest} are not recognized: it {each.problem}"
        for each in listing.dead
    )
    return [each.identity for each in listing.devices], problem
