"""The verb `prune`: makes room in a directory of cache files.

Guarantees: with --dry-run nothing is changed; without, only what is shown is removed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from orchestrator.cli.application import CacheDirectory, Flag, JsonFlag
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.output import Output, byte_text, path_text, plural, styled
from orchestrator.cli.values import named_directory, size_bytes
from orchestrator.errors import DeviceError

if TYPE_CHECKING:
    from orchestrator.cli.documents import PrunedFile, PruneDocument
    from orchestrator.devices.device import DeviceIdentity
    from orchestrator.stores.pruning import PruneItem

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", re.IGNORECASE | re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "": 86400, "d": 86400, "w": 604800}


def prune_verb(
    *,
    cache_dir: CacheDirectory = None,
    max_size: str | None = None,
    older_than: str | None = None,
    dry_run: Flag = False,
    json: JsonFlag = False,
) -> int:
    """Remove cache files that nobody needs any more.

    Always: leftovers of killed processes, the quarantine, previous generations of files that are whole, and
    files of another build of a driver that is here. Files of devices that are not here stay, unless they are
    old or too large. Binaries of `compile --mode binaries` go by the same rules, generation by generation;
    where there is no room, those that are worth least.

    **EXAMPLES**

        orchestrator prune --dry-run
        orchestrator prune --older-than 30d --max-size 2G
        orchestrator prune --cache-dir build/cache --json

    Args:
        max_size: Remove the oldest files until the rest fits, such as `500M` or `2G`. A number alone
            is bytes.
        older_than: Remove files that were not saved for so long: `30d`, `12h`, `4w`. A number alone is days.
        dry_run: Show what would be removed, and stop.
    """
    import time

    from orchestrator.stores.cache_file import sweep_directory
    from orchestrator.stores.files.recovery import SweepReport
    from orchestrator.stores.pruning import PruneReport, plan_prune, prune

    bound, age = None if max_size is None else size_bytes(max_size, "--max-size"), age_ns(older_than)
    directory = named_directory(cache_dir)
    output = Output(json=json)
    here, problem = devices_here()
    plan = plan_prune(directory, here=here, max_bytes=bound, older_than_ns=age, now_ns=time.time_ns())
    problem = "; ".join(filter(None, [problem, plan.note]))
    swept = SweepReport() if dry_run else sweep_directory(directory)
    report = PruneReport((), ()) if dry_run else prune(plan)
    shown = plan.items if dry_run else report.removed
    removed_bytes, kept_bytes = sum(each.size for each in shown), sum(size for _, size in plan.kept)

    def document() -> PruneDocument:
        from orchestrator.cli.documents import KeptFile, PrunedFile, PruneDocument

        def pruned(item: PruneItem, **more: str) -> PrunedFile:
            return PrunedFile(path=item.path, bytes=item.size, reason=item.reason, detail=item.detail, **more)

        return PruneDocument(
            directory=directory,
            dry_run=dry_run,
            removed=tuple(map(pruned, shown)),
            removed_bytes=removed_bytes,
            failed=tuple(pruned(each, cause=cause) for each, cause in report.failed),
            leftovers=swept.removed,
            kept=tuple(KeptFile(path=path, bytes=size) for path, size in plan.kept),
            kept_bytes=kept_bytes,
            drivers_asked=len(here),
            note=problem or None,
        )

    output.document(document)
    for each in shown:
        detail = f"  {each.detail}" if each.detail else ""
        output.line(
            f"{byte_text(each.size):>10}  {each.reason.value}  {path_text(each.path)}", styled(detail, "dim")
        )
    for each, cause in report.failed:
        output.line(styled("stays", "bad"), f"  {path_text(each.path)}: {cause}")
    for path in swept.removed:
        output.line(f"{'':>10}  leftover of a killed process  {path_text(path)}")
    verb = "would be removed" if dry_run else "removed"
    output.line(
        f"{path_text(directory)}: {plural(len(shown), 'file')} {verb}, "
        f"{byte_text(removed_bytes)}; {plural(len(plan.kept), 'file')} kept, "
        f"{byte_text(kept_bytes)}"
    )
    if problem:
        output.line(styled(problem, "dim"))
    return ExitCode.BAD_INPUT if report.failed else ExitCode.OK


def devices_here() -> tuple[list[DeviceIdentity], str]:
    """The devices of the loader; why none was asked, or ""."""
    from orchestrator.devices import list_devices

    try:
        return list_devices(), ""
    except DeviceError as error:
        return [], f"no driver was asked, so no file counts as another driver's: {error}"


def age_ns(text: str | None) -> int | None:
    """Nanoseconds of a time such as ``30d``.

    Raises:
        UsageError: It is none.
    """
    if text is None:
        return None
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--older-than {text!r}: a time is expected", "such as 30d, 12h or 4w")
    return int(float(match[1]) * _SECONDS[match[2].lower()] * 1e9)
