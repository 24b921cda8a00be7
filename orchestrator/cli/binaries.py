"""The verb `binaries`: shows, checks, exchanges and prunes the store of pipeline binaries.

`stat`, `verify` and `export` change nothing; `import` proves the whole pack before it stores any of it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Literal

from attrs import frozen
from cyclopts import Parameter

from orchestrator.cli.application import CacheDirectory, Flag, JsonFlag, PrivateKey, TrustedKey
from orchestrator.cli.documents import BinariesDocument, BinariesGeneration, filled
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.output import Output, byte_text, path_text, plural, printable, styled, table
from orchestrator.cli.prune import devices_here
from orchestrator.cli.values import (
    age_ns,
    cache_files_directory,
    require_writable,
    signing_key,
    size_bytes,
    trusted_key,
)
from orchestrator.stores.binary_export import ExchangeReport, export_binaries, import_binaries
from orchestrator.stores.binary_store import BinaryStore, GenerationStat, StoreStat
from orchestrator.stores.pruning import other_driver
from orchestrator.stores.state import state_path

Action = Literal["stat", "verify", "export", "import", "prune"]
_PROBLEMS_SHOWN = 10


@frozen(kw_only=True)
class PruneArguments:
    """The options of `prune`.

    Attributes:
        max_size: With `prune`: also remove what was used least recently until the rest fits, such as `200M`.
            A number alone is bytes.
        older_than: With `prune`: also remove what has not been used for this time, such as `30d`. A number
            alone is days.
        dry_run: With `prune`: only show what would be removed.
    """

    max_size: str | None = None
    older_than: str | None = None
    dry_run: Flag = False


def binaries_verb(
    action: Action,
    pack: Path | None = None,
    /,
    pruning: Annotated[PruneArguments, Parameter(name="*")] = PruneArguments(),
    *,
    cache_dir: CacheDirectory = None,
    sign: PrivateKey = None,
    trust: TrustedKey = None,
    unsigned: Flag = False,
    json: JsonFlag = False,
) -> int:
    """Show, check, exchange and prune the store of pipeline binaries.

    `compile --mode binaries` fills the store. `stat` shows its contents. `verify` checks its structure,
    hashes and references. `export` writes a pack for others, `import` reads one. `prune` removes binaries of
    other builds of the installed drivers, and what is damaged.

    **EXAMPLES**

        orchestrator binaries stat
        orchestrator binaries verify --cache-dir build/cache
        orchestrator binaries export game.binaries --sign team.key
        orchestrator binaries import game.binaries --trust team.pub
        orchestrator binaries prune --older-than 30d --max-size 200M --dry-run

    Args:
        action: What to do.
        pack: The pack to write or to read, for `export` and `import`.
        unsigned: Import a pack without checking its signature.
        pruning: Options of `prune`.
    """
    _check_usage(action, pack, sign, trust, unsigned=unsigned, prunes=pruning != PruneArguments())
    bound = None if pruning.max_size is None else size_bytes(pruning.max_size, "--max-size")
    age, output = age_ns(pruning.older_than), Output(json=json)
    key, trusted = signing_key(sign), trusted_key(trust)
    directory = cache_files_directory(cache_dir)
    if action == "export":
        require_writable(pack, inputs=[state_path(directory), *([] if sign is None else [sign])])
    fields: dict[str, Any] = {}
    lines: list[str] = []
    with BinaryStore.open(directory, create=action == "import") as store:
        if action == "prune":
            fields, lines = _prune(store, bound, age, dry_run=pruning.dry_run)
        elif action == "verify":
            fields["problems"] = tuple(store.verify())
        elif pack is not None:
            report = (
                export_binaries(store, pack, key)
                if action == "export"
                else import_binaries(store, pack, trusted, unsigned=unsigned)
            )
            fields, lines = _exchanged(action, pack, report)
        stat = store.statistics()
        output.document(lambda: _document(action, store, stat, fields))
        if store.set_aside:
            output.line(styled("not used: ", "warn"), store.set_aside)
    problems = fields.get("problems", ())
    output.some(problems, _PROBLEMS_SHOWN, lambda each: output.problem(styled("bad   ", "bad"), each))
    if action == "verify":
        lines = _checked_lines(stat, good=not problems)
    for line in lines:
        output.line(line)
    if action == "stat":
        _show(output, stat)
    output.line(
        f"{path_text(store.path)}: {plural(stat.payloads, 'binary', 'binaries')}, "
        f"{byte_text(stat.payload_bytes)}; {byte_text(stat.used_bytes)} of "
        f"{byte_text(stat.bound_bytes)} used, file {byte_text(stat.file_bytes)}"
    )
    return ExitCode.BAD_INPUT if problems else ExitCode.OK


def _check_usage(
    action: Action,
    pack: Path | None,
    sign: Path | None,
    trust: Path | None,
    *,
    unsigned: bool,
    prunes: bool,
) -> None:
    exchanges = action in ("export", "import")
    if exchanges and pack is None:
        raise UsageError(
            f"binaries {action}: the pack is missing", f"orchestrator binaries {action} game.binaries"
        )
    if not exchanges and pack is not None:
        raise UsageError(f"binaries {action} takes no pack", "name the store's directory by --cache-dir")
    if (sign is not None and action != "export") or ((unsigned or trust is not None) and action != "import"):
        said = f"binaries {action}: `export` signs (--sign), `import` checks (--trust, --unsigned)"
        raise UsageError(said)
    if prunes and action != "prune":
        raise UsageError(f"binaries {action} removes nothing", "see `orchestrator binaries prune`")


def _document(
    action: Action, store: BinaryStore, stat: StoreStat, fields: dict[str, Any]
) -> BinariesDocument:
    return filled(
        BinariesDocument,
        stat,
        action=action,
        store=store.path,
        set_aside=store.set_aside or None,
        read_only=store.read_only or None,
        generations=tuple(map(_generation, stat.generations)),
        **fields,
    )


def _generation(stat: GenerationStat, *, removed: bool = False) -> BinariesGeneration:
    figures = () if removed else ("pipelines", "binaries", "bytes", "shared_driver_keys", "used_s")
    return filled(
        BinariesGeneration,
        stat.about,
        global_key=stat.about.global_key.hex(),
        **{name: getattr(stat, name) for name in figures},
    )


def _checked_lines(stat: StoreStat, *, good: bool) -> list[str]:
    pipelines = plural(sum(each.pipelines for each in stat.generations), "pipeline")
    binaries = plural(stat.payloads, "binary", "binaries")
    return [
        f"{pipelines}, {binaries}, {byte_text(stat.payload_bytes)} checked",
        "good: nothing is wrong"
        if good
        else "bad: `orchestrator binaries prune` drops what is no use; the next compile stores it again",
    ]


def _exchanged(action: Action, pack: Path, report: ExchangeReport) -> tuple[dict[str, Any], list[str]]:
    if action == "export":
        done = "signed" if report.signed else "not signed: `import` needs --unsigned"
    else:
        done = f"{plural(report.put.pipelines, 'pipeline')} stored, {byte_text(report.put.stored_bytes)} new"
    fields = {
        "pack": pack,
        "packed_pipelines": report.pipelines,
        "packed_binaries": report.binaries,
        "packed_bytes": report.bytes,
        "signed": report.signed,
        "stored": report.put.pipelines,
        "evicted": report.put.evicted,
        "too_large": report.put.too_large,
    }
    lines = [
        f"{path_text(pack)}: {plural(report.pipelines, 'pipeline')}, "
        f"{plural(report.binaries, 'binary', 'binaries')}, {byte_text(report.bytes)}; {done}"
    ]
    return fields, [*lines, *filter(None, [report.put.lost])]


def _prune(
    store: BinaryStore, bound: int | None, older_than_ns: int | None, *, dry_run: bool
) -> tuple[dict[str, Any], list[str]]:
    here, problem = devices_here()
    stat, now = store.statistics(), time.time()
    old = float("inf") if older_than_ns is None else older_than_ns / 1e9
    gone = [
        each
        for each in stat.generations
        if now - each.used_s > old or other_driver(each.about.identity, here)
    ]
    evicted, verb = 0, "would be removed" if dry_run else "removed"
    lines = [f"{verb}: {_device_text(each)}" for each in gone]
    if not gone:
        lines.append(f"no generation {'would be' if dry_run else 'was'} removed")
    if dry_run and bound is not None:
        over = max(0, stat.used_bytes - sum(each.payload_bytes for each in gone) - bound)
        lines.append(
            f"{byte_text(over)} of the pipelines used least recently would be removed for --max-size"
        )
    if not dry_run:
        store.prune([each.about for each in gone])
        if bound is not None:
            evicted = store.shrink(bound)
            lines.append(f"{plural(evicted, 'pipeline')} removed for --max-size")
        store.compact()
    removed = tuple(_generation(each, removed=True) for each in gone)
    fields = {"removed": removed, "evicted": evicted, "dry_run": dry_run}
    return fields, [*lines, *filter(None, [problem])]


def _device_text(stat: GenerationStat) -> str:
    about = stat.about
    words = (about.device_name, about.driver_name, about.driver_info, about.global_key.hex()[:12])
    return "  ".join(printable(each) for each in words if each)


def _show(output: Output, stat: StoreStat) -> None:
    if not stat.generations:
        output.line(
            "nothing of it can be used: see `orchestrator binaries verify`"
            if stat.payloads
            else "nothing is stored yet: `orchestrator compile SET --mode binaries`"
        )
        return
    shown = table("device and driver", "global key", "pipelines", "binaries", "bytes", numbers=range(2, 5))
    for each in stat.generations:
        about = each.about
        shown.add_row(
            styled(" ".join((about.device_name, about.driver_name, about.driver_info))),
            about.global_key.hex()[:12],
            f"{each.pipelines:,}",
            f"{each.binaries:,}",
            byte_text(each.bytes),
        )
    output.show(shown)
    for each in stat.generations:
        if each.shared_driver_keys:
            keys = plural(each.shared_driver_keys, "driver key")
            verb = "belongs" if each.shared_driver_keys == 1 else "belong"
            output.line(f"{keys} {verb} to several states; pipelines are found by driver key and state key")
