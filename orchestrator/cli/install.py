"""The verb `install`: takes what a pack has for this device out of it, and says so where that is nothing.

Guarantees: what is installed was proven whole. A cache was given to the driver in a process of its own and
kept by it, and is merged with what the device's cache file held; binaries are added to the store. Nothing of
the pack decides where it is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from orchestrator.cli.application import CacheDirectory, DeviceSelector, Flag, JsonFlag, KeyFile
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.output import Output, byte_text, path_text, plural, styled
from orchestrator.cli.values import read_key, usable_directory

if TYPE_CHECKING:
    from orchestrator.cli.documents import InstallDocument
    from orchestrator.run.packs import Installation
    from orchestrator.stores.pack import Pack


def install_verb(
    pack: Path,
    /,
    *,
    device: DeviceSelector = "",
    cache_dir: CacheDirectory = None,
    key: KeyFile = None,
    unsigned: Flag = False,
    json: JsonFlag = False,
) -> int:
    """Take the cache of this device and driver out of a pack, so that `compile` has only the rest to do.

    Pipeline binaries, where the pack has some, go into the store that `compile --mode binaries` uses. The
    exit code is 0 where the pack has either, 1 where it has neither for this device and driver, with what is
    nearest and how it differs, and 2 where the pack is damaged or nobody vouches for it. What is there
    already is kept: the two are merged.

    **EXAMPLES**

        orchestrator install pack --key team.key
        orchestrator install pack --unsigned
        orchestrator install pack --unsigned -d radv:navi21 --cache-dir player

    Args:
        pack: The directory that `orchestrator compile --out` wrote.
        unsigned: Take a pack whose origin nothing proves here. Its hashes find damage, not attackers: whoever
            brought the pack must be trusted as a program would be.
    """
    from orchestrator.run.packs import install
    from orchestrator.stores.pack import Pack

    out = Output(json=json)
    if key is not None and unsigned:
        raise UsageError("--key and --unsigned contradict each other", "leave one out")
    secret = read_key(key)
    opened = Pack.open(pack, secret)
    if secret is None and not unsigned:
        raise UsageError(
            f"{path_text(pack)}: nothing proves who made this pack",
            "name the key file that it was signed with (--key), or trust whoever brought it (--unsigned)",
        )
    done = install(opened, device, usable_directory(cache_dir), key_file=key)
    out.document(lambda: _document(opened, done))
    _show(out, opened, done)
    target = opened.manifest.targets[done.done.target] if done.done.target >= 0 else None
    has = target is not None and (target.cache is not None or target.binaries is not None)
    return ExitCode.OK if has else ExitCode.PIPELINES_FAILED


def _document(pack: Pack, done: Installation) -> InstallDocument:
    from orchestrator.cli.documents import InstallDocument, NearestTarget

    found, manifest, device = done.done, pack.manifest, done.device
    target = manifest.targets[found.target] if found.target >= 0 else None
    nearest = None if target is not None else manifest.nearest(device.identity)
    return InstallDocument(
        pack=path_text(pack.directory),
        proven=pack.key is not None,
        device_name=device.device_name,
        driver=device.driver,
        identity=device.identity,
        target=None if target is None else target.selector,
        has_cache=target is not None and target.cache is not None,
        problem=None if target is None else target.problem or None,
        nearest=None
        if nearest is None
        else NearestTarget(target=nearest[0].selector, differs=tuple(nearest[1])),
        created=0 if target is None else target.count("created"),
        cache_file=found.path,
        saved_bytes=found.saved_bytes,
        not_saved=found.skipped or None,
        bytes_before=found.bytes_before,
        bytes_after=found.bytes_after,
        store=found.store or None,
        binaries=found.binaries,
        binaries_new=found.binaries_new,
        notes=found.notes,
    )


def _show(out: Output, pack: Pack, done: Installation) -> None:
    device, found, manifest = done.device, done.done, pack.manifest
    out.line(styled(device.device_name, "head"), styled(f"  {device.driver}", "dim"))
    if found.target < 0:
        out.line(
            styled("no cache: ", "warn"),
            f"the pack has {plural(len(manifest.targets), 'target')}, and none is this device and driver",
        )
        nearest = manifest.nearest(device.identity)
        if nearest is not None:
            out.line(f"nearest is {nearest[0].name}: there {', '.join(nearest[1])}")
        out.line("`orchestrator compile` compiles everything here")
        return
    target = manifest.targets[found.target]
    if target.cache is None and target.binaries is None:
        out.line(styled("no cache: ", "warn"), f"the pack knows this device, but {target.problem}")
        out.line("`orchestrator compile` compiles everything here")
        return
    left = sum(len(each.keys) for part in target.parts for each in part.left_out)
    rows: list[tuple[str, str | Text]] = [
        ("target", target.name),
        ("holds", f"{plural(target.count('created'), 'pipeline')}, {left:,} left out"),
    ]
    if target.cache is not None:
        installed = (
            styled(byte_text(found.saved_bytes), "good")
            if found.saved_bytes
            else styled(f"no: {found.skipped}", "warn")
        )
        was_there = byte_text(found.bytes_before)
        rows += [("cache file", found.path), ("was there", was_there), ("installed", installed)]
    if target.binaries is not None:
        new = f"{plural(found.binaries, 'pipeline')}, {byte_text(found.binaries_new)} new"
        rows += [("binaries", found.store), ("installed", styled(new, "good"))]
    out.facts(rows)
    for note in found.notes:
        out.line(styled("note: ", "warn"), note)
    if pack.key is None:
        out.line(styled("note: ", "warn"), "nothing proves who made this pack (--unsigned)")
