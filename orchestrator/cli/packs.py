"""Shows targets and packs: a table row per target for people, a JSON object per target for programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.cli.output import (
    Output,
    Style,
    byte_text,
    driver_text,
    path_text,
    plural,
    seconds_text,
    styled,
    table,
)
from orchestrator.run.records import CompileReport
from orchestrator.stores.pack import PackManifest, PackTarget, missing_shards
from orchestrator.supervise.targets import TargetResult

_NOTES_SHOWN = 5
_STATUSES = ("created", "skipped", "failed", "quarantined", "not_run")


def target_fields(target: PackTarget) -> dict[str, Any]:
    """The fields of a `PackedTarget`."""
    cache, binaries = target.cache, target.binaries
    return {
        "selector": target.selector,
        "device_name": target.device_name,
        "driver": target.driver,
        "identity": target.identity,
        "cache": None if cache is None else cache.name,
        "cache_bytes": 0 if cache is None else cache.size,
        "binaries": None if binaries is None else binaries.name,
        "binaries_bytes": 0 if binaries is None else binaries.size,
        **{each: target.count(each) for each in _STATUSES},
        "parts": tuple(each.text for each in target.parts),
        "missing": tuple(missing_shards(target.parts)),
        "problem": target.problem or None,
    }


def _counts(*counts: tuple[int, Style]) -> list[Any]:
    return [styled(f"{count:,}", style if count else "dim") for count, style in counts]


def show_targets(output: Output, targets: Sequence[PackTarget]) -> None:
    """A table of targets, with binaries only if a target has some."""
    kinds = ["cache", "binaries"] if any(each.binaries is not None for each in targets) else ["cache"]
    columns = ("target", "created", "skipped", "failed", "not run", *kinds)
    made = table(*columns, "", numbers=range(1, len(columns)))
    for each in targets:
        failed = each.count("failed") + each.count("quarantined")
        files = (each.cache, each.binaries)[: len(kinds)]
        made.add_row(
            styled(each.selector or each.device_name, "head"),
            f"{each.count('created'):,}",
            *_counts((each.count("skipped"), "warn"), (failed, "bad"), (each.count("not_run"), "warn")),
            *("none" if file is None else byte_text(file.size) for file in files),
            styled("none: see below", "bad") if each.problem else styled(each.driver, "dim"),
        )
    output.show(made)
    for each in targets:
        if each.problem:
            output.line(styled(f"{each.selector or each.device_name}: ", "bad"), each.problem)


def show_results(output: Output, results: Sequence[TargetResult]) -> None:
    """The results of all targets of a compile, and their notes, each once."""
    columns = ("target", "compiled", "cache hits", "skipped", "failed", "not run", "time", "cache", "")
    made = table(*columns, numbers=range(1, 8))
    reports = [each.report for each in results if each.report is not None]
    if reports:
        drivers = dict.fromkeys(driver_text(each.device) for each in reports)
        output.line(styled(path_text(reports[0].set.path), "head"), styled(f"  {', '.join(drivers)}", "dim"))
    for each in results:
        name, report = styled(each.selector, "head"), each.report
        if report is None:
            said = "stopped before its turn" if each.error is None else "not compiled, see below"
            made.add_row(name, *[""] * 7, styled(said, "bad"))
            continue
        counts, file = report.outcomes, report.cache_file
        not_run = 0 if counts.not_run is msgspec.UNSET else counts.not_run
        size = file.saved_bytes or file.loaded_bytes
        made.add_row(
            name,
            *_counts((counts.compiled, ""), (counts.cache_hits, "good"), (counts.skipped, "warn")),
            *_counts((counts.failed, "bad"), (not_run, "warn")),
            seconds_text(each.elapsed_s),
            byte_text(size) if size else "none",
            styled("not saved, see below" if file.error else "", "bad"),
        )
    output.show(made)
    paths = (each.cache_file.path for each in reports if _keeps(each))
    if folders := dict.fromkeys(each.parent for each in paths if each is not None):
        output.line("kept in ", ", ".join(map(path_text, folders)))
    _show_notes(output, results)
    nameless = [
        each.selector
        for each in results
        if each.report is not None and not each.report.device.device_id and each.selector.startswith("radv:")
    ]
    if nameless:
        output.line(
            styled("note: ", "warn"),
            f"{', '.join(nameless)}: this driver gives null hardware of the family deviceID 0, so no card "
            "accepts the cache",
        )


def _keeps(report: CompileReport) -> bool:
    file, binaries = report.cache_file, report.binaries
    if binaries is not None:
        return bool(binaries.stored or binaries.pulled_in)
    return bool(file.saved_bytes or file.loaded_bytes)


def _show_notes(output: Output, results: Sequence[TargetResult]) -> None:
    said: dict[str, list[str]] = {}
    for each in results:
        for note in () if each.report is None else (*each.report.notes, *each.report.warnings):
            alike = note.replace(f"--device {each.selector}", "--device DEVICE") if each.selector else note
            said.setdefault(alike, []).append(each.selector)
    for note, selectors in list(said.items())[:_NOTES_SHOWN]:
        of = selectors[0] if len(selectors) == 1 else plural(len(selectors), "target")
        output.line(styled("note: ", "warn"), note, styled(f" ({of})", "dim"))
    if len(said) > _NOTES_SHOWN:
        output.line(styled(f"and {plural(len(said) - _NOTES_SHOWN, 'note')} more, see --json", "dim"))


def held_text(targets: Sequence[PackTarget]) -> str:
    """The contents of targets, such as "2 caches and binaries of 1"."""
    caches = sum(each.cache is not None for each in targets)
    binaries = sum(each.binaries is not None for each in targets)
    held = [plural(caches, "cache")] if caches or not binaries else []
    return " and ".join([*held, *([f"binaries of {binaries}"] if binaries else [])])


def show_pack(output: Output, directory: Path, manifest: PackManifest, *, signed: bool) -> None:
    """Show the path and the contents of a pack."""
    files = [file for each in manifest.targets for file in (each.cache, each.binaries) if file is not None]
    output.line("")
    output.line(
        styled("pack ", "dim"),
        styled(path_text(directory), "head"),
        f"  {plural(len(manifest.targets), 'target')} with {held_text(manifest.targets)}, "
        f"{byte_text(sum(each.size for each in files))}, {'signed' if signed else 'not signed'}",
    )
    for each in manifest.targets:
        if each.before:
            why = f"{each.selector}: its files changed; compile for it again"
            output.line(styled("not finished: ", "warn"), why)
