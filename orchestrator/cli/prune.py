"""The verb `prune`: removes unneeded files from a directory of cache files.

Guarantees: --dry-run changes nothing; without it, only files that are shown are removed.
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.application import CacheDirectory, Flag, JsonFlag, in_range
from orchestrator.cli.pruned import prune_directory
from orchestrator.cli.values import age_ns, named_directory, size_bytes


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
    bound, age = None if max_size is None else size_bytes(max_size, "--max-size"), age_ns(older_than)
    return prune_directory(
        named_directory(cache_dir), bound, age, keep_builds=keep_builds, dry_run=dry_run, json=json
    )
