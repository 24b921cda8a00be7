"""Shows packs: a table row per target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.cli.output import (
    Output,
    Style,
    byte_text,
    names_text,
    path_text,
    plural,
    styled,
    table,
)
from orchestrator.stores.pack import PackedFile, PackManifest, PackTarget


def _counts(*counts: tuple[int, Style]) -> list[Any]:
    return [styled(f"{count:,}", style if count else "dim") for count, style in counts]


def show_targets(output: Output, targets: Sequence[PackTarget]) -> None:
    """A table of targets, with binaries and driver caches only if a target has some."""
    kinds = {"cache": 0, "binaries": 1, "driver cache": 2}
    sizes = [[sum(file.size for file in files) for files in _files(each)] for each in targets]
    kinds = {kind: at for kind, at in kinds.items() if not at or any(each[at] for each in sizes)}
    columns = ("target", "created", "skipped", "failed", "not run", *kinds)
    made = table(*columns, "", numbers=range(1, len(columns)))
    for each, size in zip(targets, sizes, strict=True):
        failed = each.count("failed") + each.count("quarantined")
        made.add_row(
            styled(each.selector or each.device_name, "head"),
            f"{each.count('created'):,}",
            *_counts((each.count("skipped"), "warn"), (failed, "bad"), (each.count("not_run"), "warn")),
            *(byte_text(size[at]) if size[at] else "none" for at in kinds.values()),
            styled("none: see below", "bad") if each.problem else styled(each.driver, "dim"),
        )
    output.show(made)
    for lacking in nothing_of(targets):
        output.line(styled(lacking, "bad"))


def nothing_of(targets: Sequence[PackTarget]) -> list[str]:
    """What a pack lacks: each problem once, with the targets that it has nothing of."""
    lacking: dict[str, list[str]] = {}
    for each in targets:
        if each.problem:
            lacking.setdefault(each.problem, []).append(each.selector or each.device_name)
    return [f"nothing of {names_text(names)}: {problem}" for problem, names in lacking.items()]


def _files(target: PackTarget) -> tuple[Sequence[PackedFile], ...]:
    """The files of each kind: of the cache, of binaries, and of the driver's own cache."""
    found = [[] if each is None else [each] for each in (target.cache, target.binaries)]
    return (*found, target.driver_cache)


def held_text(targets: Sequence[PackTarget]) -> str:
    """The contents of targets, such as "2 caches and binaries of 1"."""
    caches = sum(each.cache is not None for each in targets)
    binaries = sum(each.binaries is not None for each in targets)
    drivers = sum(bool(each.driver_cache) for each in targets)
    held = [plural(caches, "cache")] if caches or not binaries + drivers else []
    held += [f"binaries of {binaries}"] if binaries else []
    return " and ".join([*held, *([f"driver caches of {drivers}"] if drivers else [])])


def show_pack(output: Output, directory: Path, manifest: PackManifest, *, signed: bool) -> None:
    """Show the path and the contents of a pack."""
    files = [file for each in manifest.targets for kind in _files(each) for file in kind]
    output.line("")
    output.line(
        styled("pack ", "dim"),
        styled(path_text(directory), "head"),
        f"  {plural(len(manifest.targets), 'target')} with {held_text(manifest.targets)}, "
        f"{byte_text(sum(each.size for each in files))}, {'signed' if signed else 'not signed'}",
    )
    changed = [each.selector for each in manifest.targets if each.before]
    if changed:
        why = f"{names_text(changed)}: its files changed; compile for it again"
        output.line(styled("not finished: ", "warn"), why)
