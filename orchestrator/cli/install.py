"""The verb `install`: installs the cache and the binaries that a pack has for this device.

The installed data is proven whole, and the driver must accept a cache in a separate process before it is
merged with the device's cache file. The contents of a pack never determine a path.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.text import Text

from orchestrator.cli.application import CacheDirectory, DeviceSelector, Flag, JsonFlag, TrustedKey
from orchestrator.cli.documents import DeliveredDocument, InstallDocument, NearestTarget, filled
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.output import Output, byte_text, path_text, plural, styled, table
from orchestrator.cli.values import extra, trusted_key, usable_directory
from orchestrator.packs.delivery import INDEX, deliver
from orchestrator.packs.driver import Installed, PackDeviceOpened, install
from orchestrator.packs.fetching import Source, directory_source
from orchestrator.stores.pack import Pack, PackTarget, is_pack

if TYPE_CHECKING:
    from orchestrator.stores.signing import PublicKey


def install_verb(
    pack: str,
    /,
    *,
    device: DeviceSelector = "",
    cache_dir: CacheDirectory = None,
    trust: TrustedKey = None,
    unsigned: Flag = False,
    component: Annotated[list[str] | None, Parameter(negative="")] = None,
    json: JsonFlag = False,
) -> int:
    """Install the cache of this device and driver from a pack, so that `compile` has less to do.

    The cache is merged with the existing one. Pipeline binaries go into the store of `compile --mode
    binaries`. The exit code is 0 if the pack has data for this device and driver; 1 if not, and the nearest
    target is shown, or if the driver does not merge it with what is there, which is larger; 2 if the pack is
    damaged or not trusted.

    A release (`orchestrator publish`) is a directory or an address: only what this device needs and is not
    here is fetched, checked, and installed, one component after the other. The same command goes on after a
    break.

    **EXAMPLES**

        orchestrator install pack --trust team.pub
        orchestrator install pack --unsigned
        orchestrator install pack --unsigned -d radv:navi21 --cache-dir player
        orchestrator install https://cdn.example.org/game --trust team.pub

    Args:
        pack: The directory that `orchestrator compile --out` wrote; or the directory or address of a release.
        unsigned: Accept a pack without checking its signature. Its hashes detect damage, not attackers: trust
            its source as you would trust a program.
        component: Of a release: install only this component. May be given several times.
    """
    out = Output(json=json)
    if trust is not None and unsigned:
        raise UsageError("--trust and --unsigned contradict each other", "leave one out")
    if cache_dir is not None and is_pack(cache_dir):
        said = f"{path_text(cache_dir)}: it is a pack, whose manifest would not agree with its files any more"
        raise UsageError(said, "name another --cache-dir; `orchestrator merge` joins packs")
    key, release = trusted_key(trust), _release_at(pack)
    if release is None:
        if component:
            raise UsageError("--component is for releases: a pack is installed whole")
        opened = Pack.open(Path(pack), key)
    if key is None and not unsigned:
        said = f"{path_text(pack)}: the origin of this {'release' if release else 'pack'} is not proven"
        step = "name the public key of who signed it (--trust), or trust its source (--unsigned)"
        raise UsageError(said, step)
    place = usable_directory(cache_dir)
    if release is not None:
        return _install_release(release, place, key, device=device, components=component or (), out=out)
    there, done = install(opened, device, place)
    target = opened.manifest.targets[done.target] if done.target >= 0 else None
    _report(out, opened, target, there, done)
    return (
        ExitCode.OK
        if target is not None and target.has_data and not done.is_kept_out
        else ExitCode.PIPELINES_FAILED
    )


def _report(
    out: Output, pack: Pack, target: PackTarget | None, device: PackDeviceOpened, done: Installed
) -> None:
    nearest = None if target is not None else pack.manifest.nearest(device.identity)
    out.document(
        lambda: filled(
            InstallDocument,
            done,
            pack=path_text(pack.directory),
            proven=pack.trust is not None,
            device_name=device.device_name,
            driver=device.driver,
            identity=device.identity,
            target=None if target is None else target.selector,
            has_cache=target is not None and target.cache is not None,
            problem=None if target is None else target.problem or None,
            nearest=nearest and NearestTarget(target=nearest[0].selector, differs=tuple(nearest[1])),
            created=0 if target is None else target.count("created"),
            cache_file=done.path,
            not_saved=done.skipped or None,
            store=done.store or None,
        )
    )
    out.line(styled(device.device_name, "head"), styled(f"  {device.driver}", "dim"))
    if target is None:
        targets = plural(len(pack.manifest.targets), "target")
        of = "this device and driver" if nearest else "this driver"
        none = f"the pack has {targets}, and none is of {of}"
    else:
        none = f"the pack knows this device, but {target.problem}"
    if target is None or not target.has_data:
        out.problem(styled("no cache: ", "warn"), none)
        if nearest is not None:
            out.line(f"nearest is {nearest[0].name}: there {', '.join(nearest[1])}")
        out.line("`orchestrator compile` compiles everything here")
        return
    out.facts(_rows(target, done))
    for note in done.notes:
        out.line(styled("note: ", "warn"), note)
    if pack.trust is None:
        out.line(styled("note: ", "warn"), "the origin of this pack is not proven (--unsigned)")


def _rows(target: PackTarget, done: Installed) -> list[tuple[str, str | Text]]:
    left = len({key for part in target.parts for each in part.left_out for key in each.keys})
    rows: list[tuple[str, str | Text]] = [
        ("target", target.name),
        ("holds", f"{plural(target.count('created'), 'pipeline')}, {left:,} left out"),
    ]
    if target.cache is not None:
        saved = styled(byte_text(done.saved_bytes), "good")
        installed = saved if done.saved_bytes else styled(f"no: {done.skipped}", "warn")
        was_there = byte_text(done.bytes_before)
        rows += [("cache file", path_text(done.path)), ("was there", was_there), ("installed", installed)]
    if target.binaries is not None:
        new = f"{plural(done.binaries, 'pipeline')}, {byte_text(done.binaries_new)} new"
        rows += [("binaries", path_text(done.store)), ("installed", styled(new, "good"))]
    return rows


def _release_at(text: str) -> Source | None:
    if text.startswith(("http://", "https://")):
        with extra("deliver", text):
            from orchestrator.packs.http_source import http_source
        return http_source(text)
    return directory_source(Path(text)) if (Path(text) / INDEX).is_file() else None


def _install_release(
    source: Source,
    directory: Path,
    trust: PublicKey | None,
    *,
    device: str,
    components: Sequence[str],
    out: Output,
) -> int:
    say = out.message if out.live else lambda _: None
    done = deliver(source, directory, trust, selector=device, names=components, on_step=say)
    index = done.index
    out.document(
        lambda: filled(
            DeliveredDocument,
            done,
            source=path_text(source.address),
            proven=trust is not None,
            name=index.name,
            release=index.release,
            device_name=done.device.device_name,
            driver=done.device.driver,
        )
    )
    out.line(styled(done.device.device_name, "head"), styled(f"  {done.device.driver}", "dim"))
    made = table("component", "pipelines", "fetched", "", numbers=(1, 2))
    for each in done.components:
        state = styled("installed", "good") if each.installed else styled(each.not_saved or "", "warn")
        made.add_row(styled(each.name, "head"), f"{each.pipelines:,}", byte_text(each.fetched_bytes), state)
    out.show(made)
    for each in done.components:
        for note in each.notes:
            out.line(styled("note: ", "warn"), f"{each.name}: {note}")
    if trust is None:
        out.line(styled("note: ", "warn"), "the origin of this release is not proven (--unsigned)")
    out.line(
        f"{index.name}, release {index.release}: {plural(len(done.components), 'component')}, "
        f"{byte_text(done.fetched_bytes)} fetched"
    )
    is_whole = all(each.installed for each in done.components)
    return ExitCode.OK if is_whole else ExitCode.PIPELINES_FAILED
