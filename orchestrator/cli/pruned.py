"""What `prune` removes from a directory, and what it shows of that."""

from __future__ import annotations

import time
from pathlib import Path

from orchestrator.cli.documents import KeptFile, PrunedFile, PruneDocument
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, byte_text, path_text, plural, styled
from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.listing import list_all
from orchestrator.errors import DeviceError
from orchestrator.stores.cache_file import sweep_directory
from orchestrator.stores.pack import sweep_pack
from orchestrator.stores.pruning import PruneItem, PruneReport, plan_prune, prune

_LEFTOVER = "leftover of a killed process"


def prune_directory(
    directory: Path,
    max_bytes: int | None,
    older_than_ns: int | None,
    *,
    keep_builds: int,
    dry_run: bool,
    json: bool,
) -> int:
    """Prune a directory of cache files, and show what was removed; returns the exit code."""
    output = Output(json=json)
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
