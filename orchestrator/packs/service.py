"""The child's side of `packs.driver`. Whatever the device is given was read and proven in this process."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from orchestrator.children.protocol import SentError
from orchestrator.children.serving import Channel
from orchestrator.devices.device import Device
from orchestrator.devices.opening import open_for_child
from orchestrator.devices.request import DeviceRequest
from orchestrator.errors import DeviceError, OrchestratorError, shell_text
from orchestrator.packs.driver import (
    Install,
    Installed,
    Join,
    Joined,
    PackAnswer,
    PackDevice,
    PackDeviceOpened,
    PackRequest,
)
from orchestrator.packs.growing import driver_words
from orchestrator.run.cache_joining import join_loaded, taken
from orchestrator.stores.binary_export import import_binaries
from orchestrator.stores.binary_store import BinaryStore
from orchestrator.stores.cache_file import (
    PREFIX_HEADER_SIZE,
    LoadResult,
    LoadStatus,
    cache_path,
    save_cache_file,
    save_merged,
)
from orchestrator.stores.files.atomic_file import ReadError, SaveError
from orchestrator.stores.pack import Pack, PackError, PackNotes, PackTarget
from orchestrator.stores.profile_file import ProfileIdentity

Request = PackRequest


def serve(channel: Channel[PackRequest, PackAnswer]) -> None:
    """Open what `PackDevice` says, then do what is asked for."""
    setup = channel.receive()
    if not isinstance(setup, PackDevice):
        raise TypeError("it begins with its device")
    try:
        device = open_for_child(setup.opener, setup.selector, DeviceRequest())
    except OrchestratorError as error:
        channel.send(_sent(error))
        return
    with closing(device):
        identity = device.identity
        words = identity.device_name, driver_words(identity)
        channel.send(PackDeviceOpened(ProfileIdentity.of(identity), *words))
        for request in channel:
            try:
                match request:
                    case Join():
                        channel.send(_join(device, request))
                    case Install():
                        channel.send(_install(device, request))
            except OrchestratorError as error:
                channel.send(_sent(error))


def _sent(error: OrchestratorError) -> SentError:
    path = getattr(error, "path", None)
    if path and not isinstance(error, SaveError | DeviceError):
        step = getattr(error, "next_step", "")
        error = PackError(Path(path), str(error).removeprefix(f"{path}: "), step)
    return SentError.of(error)


def _pack(path: str, trust: bytes) -> Pack:
    if not trust:
        return Pack.open(Path(path))
    from orchestrator.stores.signing import PublicKey

    return Pack.open(Path(path), PublicKey(trust))


def _join(device: Device, request: Join) -> Joined:
    path = cache_path(Path(request.directory), device.identity)
    loaded = []
    for each in request.packs:
        pack = _pack(each, request.trust)
        target = pack.manifest.target_of(request.identity)
        if target is None or target.cache is None:
            raise PackError(pack.directory, "it was changed meanwhile", "try again")
        at, data = pack.directory / target.cache.name, pack.read_cache(target)[PREFIX_HEADER_SIZE:]
        loaded.append((at, LoadResult(LoadStatus.LOADED, at, data=data)))
    joined, data = join_loaded(device, loaded)
    for one in joined:
        if one.status != LoadStatus.LOADED:
            raise PackError(one.path, f"the driver did not take it: {one.status}: {one.detail}")
    saved = save_cache_file(path, device.identity, data)
    if saved.skipped is not None:
        raise PackError(path, f"it was not written: {saved.skipped}")
    return Joined()


def _install(device: Device, request: Install) -> Installed:
    pack = _pack(request.pack, request.trust)
    target = pack.manifest.target_of(ProfileIdentity.of(device.identity))
    path = cache_path(Path(request.directory), device.identity)
    if target is None:
        return Installed(-1, str(path))
    done = Installed(pack.manifest.targets.index(target), str(path))
    if request.again:
        target = target.as_it_was
    # All is proven before anything is written.
    notes = pack.read_notes(target)
    binaries = b"" if target.binaries is None or request.again else pack.read_binaries(target)
    if target.cache is not None:
        done = _install_cache(device, pack, target, notes, done)
    if target.binaries is not None and binaries:
        done = _install_binaries(pack.directory / target.binaries.name, binaries, notes, done)
    if target.driver_cache and not request.again:
        how = f"`orchestrator run {shell_text(pack.directory)} -- PROGRAM`"
        done = replace(done, notes=(*done.notes, f"there is a cache of the driver's own: it serves {how}"))
    return done


def _install_cache(
    device: Device, pack: Pack, target: PackTarget, notes: PackNotes, done: Installed
) -> Installed:
    path, data = Path(done.path), pack.read_cache(target)[PREFIX_HEADER_SIZE:]
    with taken(device, data, path.name) as (cache, _, problem):
        if problem:
            raise PackError(pack.directory / path.name, problem)
        saved = save_merged(device, path, cache)
    if saved.locked_out or (saved.lost and not saved.note):
        step = "try again" if saved.locked_out else "move what is there away, or name another --cache-dir"
        raise PackError(path, f"it was not written: {saved.skipped}", step)
    found, unused = saved.found, ""
    if saved.saved_bytes:
        before = b"" if found is None else found.data_hash
        # With a note one of the two may have been dropped.
        done = _noted(done, notes, before, is_joined=not saved.note)
    if found is not None and found.status not in (LoadStatus.LOADED, LoadStatus.MISSING):
        unused = f"the cache file that was there was not used: {found.status}: {found.detail}"
    return replace(
        done,
        saved_bytes=saved.saved_bytes,
        skipped=saved.skipped or "",
        bytes_before=saved.bytes_before,
        bytes_after=saved.bytes_after,
        is_kept_out=bool(saved.note) and not saved.saved_bytes,
        notes=(*filter(None, [saved.note, unused]), *done.notes),
    )


def _install_binaries(path: Path, content: bytes, notes: PackNotes, done: Installed) -> Installed:
    """Take the binaries into the store; the driver is asked about each when it is used."""
    try:
        with BinaryStore.open(Path(done.path).parent) as store:
            put = import_binaries(store, path, content=content, unsigned=True).put
            where = str(store.path)
    except ReadError as error:
        raise SaveError(error.path, "storing the binaries", error.reason) from error
    done = _noted(done, notes)
    notes_now = (*done.notes, *filter(None, [put.lost]))
    return replace(done, store=where, binaries=put.pipelines, binaries_new=put.stored_bytes, notes=notes_now)


def _noted(done: Installed, notes: PackNotes, before: bytes = b"", *, is_joined: bool = True) -> Installed:
    """Note what the pack knows of the cache; if that fails, the cache is installed all the same."""
    try:
        notes.add_to(Path(done.path), before, is_joined=is_joined)
    except SaveError as error:
        return replace(done, notes=(*done.notes, f"what the pack knows of it was not noted: {error}"))
    return done
