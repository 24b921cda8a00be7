"""The verb `binaries`: shows, checks, exchanges and prunes the store of pipeline binaries.

Guarantees: `stat`, `verify` and `export` change nothing. `import` proves the whole pack before it stores any
of it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from attrs import frozen
from cyclopts import Parameter

from orchestrator.cli.application import CacheDirectory, Flag, JsonFlag
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.output import Output, byte_text, path_text, plural, printable, styled, table
from orchestrator.cli.prune import age_ns, devices_here
from orchestrator.cli.values import cache_files_directory, read_key, require_writable, size_bytes

if TYPE_CHECKING:
    from orchestrator.cli.documents import BinariesDocument, BinariesGeneration
    from orchestrator.stores.binary_store import BinaryStore, Generation, GenerationStat, StoreStat
    from orchestrator.stores.files.mac import MacKey

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

    @property
    def are_given(self) -> bool:
        """Whether any option was given."""
        return self != PruneArguments()


def binaries_verb(
    action: Action,
    pack: Path | None = None,
    /,
    pruning: Annotated[PruneArguments, Parameter(name="*")] = PruneArguments(),
    *,
    cache_dir: CacheDirectory = None,
    key: Path | None = None,
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
        orchestrator binaries export game.binaries --key team.key
        orchestrator binaries import game.binaries --key team.key
        orchestrator binaries prune --older-than 30d --max-size 200M --dry-run

    Args:
        action: What to do.
        pack: The pack to write or to read, for `export` and `import`.
        key: The file with the team's key: `export` signs with it, `import` checks the signature.
        unsigned: Import a pack without checking its signature.
        pruning: Options of `prune`.
    """
    from orchestrator.stores.binary_store import BinaryStore
    from orchestrator.stores.state import state_path

    _check_usage(action, pack, key, unsigned=unsigned, pruning=pruning.are_given)
    bound = None if pruning.max_size is None else size_bytes(pruning.max_size, "--max-size")
    age, secret, output = age_ns(pruning.older_than), read_key(key), Output(json=json)
    directory = cache_files_directory(cache_dir)
    told: dict[str, Any] = {}
    lines: list[str] = []
    if action == "export":
        require_writable(pack, inputs=[state_path(directory), *([] if key is None else [key])])
    with BinaryStore.open(directory, create=action == "import") as store:
        if action == "prune":
            told, lines = _prune(store, bound, age, dry_run=pruning.dry_run)
        elif action == "verify":
            told, lines = _verify(store)
        elif pack is not None:
            told, lines = _exchange(store, action, pack, secret, unsigned=unsigned)
        if action == "prune" and not pruning.dry_run:
            BinaryStore.compact(directory)
        stat = store.statistics()
        output.document(lambda: _document(action, store, stat, told))
        if store.set_aside:
            output.line(styled("not used: ", "warn"), store.set_aside)
    problems = told.get("problems", ())
    for problem in problems[:_PROBLEMS_SHOWN]:
        output.problem(styled("bad   ", "bad"), problem)
    if len(problems) > _PROBLEMS_SHOWN:
        output.line(styled(f"... and {len(problems) - _PROBLEMS_SHOWN} more, see --json", "dim"))
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


def _document(action: Action, store: BinaryStore, stat: StoreStat, told: dict[str, Any]) -> BinariesDocument:
    import msgspec

    from orchestrator.cli.documents import BinariesDocument

    fields = msgspec.structs.asdict(stat)
    del fields["path"]
    fields["generations"] = tuple(map(_of_stat, stat.generations))
    return BinariesDocument(
        action=action,
        store=store.path,
        set_aside=store.set_aside or None,
        read_only=store.read_only or None,
        **fields,
        **told,
    )


def _verify(store: BinaryStore) -> tuple[dict[str, Any], list[str]]:
    found = store.verify()
    checked = plural(found.payloads, "binary", "binaries")
    lines = [
        f"{plural(found.pipelines, 'pipeline')}, {checked}, {byte_text(found.bytes)} checked",
        "bad: `orchestrator binaries prune` drops what is no use; the next compile stores it again"
        if found.problems
        else "good: nothing is wrong",
    ]
    return {"problems": found.problems}, lines


def _check_usage(
    action: Action, pack: Path | None, key: Path | None, *, unsigned: bool, pruning: bool
) -> None:
    exchanges = action in ("export", "import")
    if exchanges and pack is None:
        raise UsageError(
            f"binaries {action}: the pack is missing", f"orchestrator binaries {action} game.binaries"
        )
    if not exchanges and pack is not None:
        raise UsageError(f"binaries {action} takes no pack", "name the store's directory by --cache-dir")
    if (not exchanges and key is not None) or (unsigned and action != "import"):
        raise UsageError(f"binaries {action}: only packs have signatures", "see `export` and `import`")
    if pruning and action != "prune":
        raise UsageError(f"binaries {action} removes nothing", "see `orchestrator binaries prune`")


def _exchange(
    store: BinaryStore, action: Action, pack: Path, secret: MacKey | None, *, unsigned: bool
) -> tuple[dict[str, Any], list[str]]:
    from orchestrator.stores.binary_export import export_binaries, import_binaries

    if action == "export":
        report = export_binaries(store, pack, secret)
        done = "signed" if report.signed else "not signed: `import` needs --unsigned"
    else:
        report = import_binaries(store, pack, secret, unsigned=unsigned)
        done = f"{plural(report.put.pipelines, 'pipeline')} stored, {byte_text(report.put.stored_bytes)} new"
    told = {
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
    return told, [*lines, *filter(None, [report.put.lost])]


def _prune(
    store: BinaryStore, bound: int | None, older_than_ns: int | None, *, dry_run: bool
) -> tuple[dict[str, Any], list[str]]:
    from orchestrator.stores.pruning import other_driver

    here, problem = devices_here()
    now = time.time()

    def unwanted(about: Generation, used_s: int) -> bool:
        too_old = older_than_ns is not None and now - used_s > older_than_ns / 1e9
        return too_old or bool(other_driver(about.identity, here))

    if dry_run:
        stat = store.statistics()
        going = [each for each in stat.generations if unwanted(each.about, each.used_s)]
        removed: Sequence[Generation] = [each.about for each in going]
        evicted, over = 0, stat.used_bytes - sum(store.freed_bytes(removed)) - (bound or 0)
    else:
        removed, over = store.prune(unwanted), 0
        evicted = 0 if bound is None else store.shrink(bound)
    verb = "would be removed" if dry_run else "removed"
    lines = [f"{verb}: {_device_text(each)}" for each in removed]
    if not removed:
        lines.append(f"no generation {'would be' if dry_run else 'was'} removed")
    if bound is not None:
        lines.append(
            f"{byte_text(max(0, over))} of the pipelines used least recently would be removed for --max-size"
            if dry_run
            else f"{plural(evicted, 'pipeline')} removed for --max-size"
        )
    if problem:
        lines.append(problem)
    return {
        "removed": tuple(map(_of_generation, removed)),
        "evicted": evicted,
        "dry_run": dry_run,
    }, lines


def _device_text(about: Generation) -> str:
    words = (about.device_name, about.driver_name, about.driver_info, about.global_key.hex()[:12])
    return "  ".join(printable(each) for each in words if each)


def _show(output: Output, stat: StoreStat) -> None:
    generations = stat.generations
    if not generations:
        output.line(
            "nothing of it can be used: see `orchestrator binaries verify`"
            if stat.payloads
            else "nothing is stored yet: `orchestrator compile SET --mode binaries`"
        )
        return
    shown = table("device and driver", "global key", "pipelines", "binaries", "bytes", numbers=range(2, 5))
    for each in generations:
        about = each.about
        shown.add_row(
            styled(" ".join((about.device_name, about.driver_name, about.driver_info))),
            about.global_key.hex()[:12],
            f"{each.pipelines:,}",
            f"{each.binaries:,}",
            byte_text(each.bytes),
        )
    output.show(shown)
    for each in generations:
        if each.shared_driver_keys:
            keys = plural(each.shared_driver_keys, "driver key")
            verb = "belongs" if each.shared_driver_keys == 1 else "belong"
            output.line(f"{keys} {verb} to several states; pipelines are found by driver key and state key")


def _of_stat(stat: GenerationStat) -> BinariesGeneration:
    import msgspec

    return msgspec.structs.replace(
        _of_generation(stat.about),
        pipelines=stat.pipelines,
        binaries=stat.binaries,
        bytes=stat.bytes,
        shared_driver_keys=stat.shared_driver_keys,
        used_s=stat.used_s,
    )


def _of_generation(about: Generation) -> BinariesGeneration:
    from orchestrator.cli.documents import BinariesGeneration

    return BinariesGeneration(
        device_name=about.device_name,
        driver_name=about.driver_name,
        driver_info=about.driver_info,
        identity=about.identity,
        global_key=about.global_key.hex(),
    )
