"""The verb `prune`: removes unneeded files from a directory of cache files.

Guarantees: --dry-run changes nothing; without it, only files that are shown are removed.
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
_MOST_NS = 1 << 62  # as good as for ever
_SECONDS = {"s": 1, "m": 60, "h": 3600, "": 86400, "d": 86400, "w": 604800}


def prune_verb(
    *,
    cache_dir: CacheDirectory = None,
    max_size: str | None = None,
    older_than: str | None = None,
    dry_run: Flag = False,
    json: JsonFlag = False,
) -> int:
    """Remove cache files that are no longer needed.

    Always removes leftovers of killed processes, quarantined cache files, previous generations of whole
    files, unused pages of the store of binaries, and files of other builds of the installed drivers. Files
    of absent devices stay, unless --older-than or --max-size removes them. The files of a pack stay. The
    same rules apply to generations of binaries (`compile --mode binaries`); if space is short, those used
    least recently go first.

    **EXAMPLES**

        orchestrator prune --dry-run
        orchestrator prune --older-than 30d --max-size 2G
        orchestrator prune --cache-dir build/cache --json

    Args:
        max_size: Remove the oldest cache files, plans and binaries until the rest of these fits, such as
            `500M` or `2G`. A number alone is bytes. What else lies beside them is not counted.
        older_than: Remove files that are older than this, such as `30d`, `12h` or `4w`. A number alone is
            days.
        dry_run: Only show what would be removed.
    """
    import time

    from orchestrator.stores.cache_file import sweep_directory
    from orchestrator.stores.pack import sweep_pack
    from orchestrator.stores.pruning import PruneReport, plan_prune, prune

    bound, age = None if max_size is None else size_bytes(max_size, "--max-size"), age_ns(older_than)
    directory = named_directory(cache_dir)
    output = Output(json=json)
    here, problem = devices_here()
    plan = plan_prune(directory, here=here, max_bytes=bound, older_than_ns=age, now_ns=time.time_ns())
    swept = sweep_directory(directory, dry_run=dry_run) + sweep_pack(directory, dry_run=dry_run)
    report = PruneReport((), ()) if dry_run else prune(plan)
    problem = "; ".join(filter(None, [problem, plan.note]))
    shown = plan.items if dry_run else report.removed
    kept = (*plan.kept, *((each.path, each.size) for each, _ in report.failed))
    removed_bytes, kept_bytes = sum(each.size for each in shown), sum(size for _, size in kept)

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
            leftovers_failed=swept.failed,
            kept=tuple(KeptFile(path=path, bytes=size) for path, size in kept),
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
        output.problem(styled("not removed", "bad"), f"  {path_text(each.path)}: {cause}")
    for path in swept.removed:
        output.line(f"{'':>10}  leftover of a killed process  {path_text(path)}")
    for path in swept.failed:
        output.problem(styled("not removed", "bad"), f"  leftover of a killed process  {path_text(path)}")
    verb = "would be removed" if dry_run else "removed"
    left = f", and {plural(len(swept.removed), 'leftover')}" if swept.removed else ""
    output.line(
        f"{path_text(directory)}: {plural(len(shown), 'file')} {verb}, {byte_text(removed_bytes)}{left}; "
        f"{plural(len(kept), 'file')} kept, "
        f"{byte_text(kept_bytes)}"
    )
    if problem:
        output.line(styled(problem, "dim"))
    return ExitCode.BAD_INPUT if report.failed or swept.failed else ExitCode.OK


def devices_here() -> tuple[list[DeviceIdentity], str]:
    """The devices that the loader finds, and why there are none, or ""."""
    from orchestrator.devices.listing import list_all

    try:
        listing = list_all(opens=False)
    except DeviceError as error:
        return [], f"no driver answers, so files of other driver builds are not recognized: {error}"
    problem = "; ".join(
        f"files of other builds of the driver {each.manifest} are not recognized: it {each.problem}"
        for each in listing.dead
    )
    return [each.identity for each in listing.devices], problem


def age_ns(text: str | None) -> int | None:
    """Nanoseconds of a time such as ``30d``.

    Raises:
        UsageError: The text is not a time.
    """
    if text is None:
        return None
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--older-than {text!r}: a time is expected", "such as 30d, 12h or 4w")
    return int(min(float(match[1]) * _SECONDS[match[2].lower()] * 1e9, _MOST_NS))
