"""The child's side of `packs`: the device that caches of packs are given to.

Whatever it is given was read from the pack and proven in this process.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Self

import msgspec
from attrs import evolve, field, frozen
from msgspec.structs import replace

from orchestrator.children.protocol import SentError
from orchestrator.children.serving import Channel
from orchestrator.devices import open_for_child
from orchestrator.devices.device import Device
from orchestrator.devices.request import DeviceRequest
from orchestrator.errors import DeviceError, OrchestratorError
from orchestrator.packs.packs import (
    Answer,
    Install,
    Installed,
    Join,
    Joined,
    Opened,
    Request,
    Setup,
    driver_words,
)
from orchestrator.run.cache_joining import join_loaded, taken
from orchestrator.stores.cache_file import (
    PREFIX_HEADER_SIZE,
    LoadResult,
    LoadStatus,
    PipelineCachePrefixHeader,
    cache_path,
    save_cache_file,
    save_merged,
    stored_data_hash,
)
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.files.mac import MacKey
from orchestrator.stores.kinds import CONTENTS, DURATIONS, FEATURE_GROUPS
from orchestrator.stores.pack import Pack, PackError, Target
from orchestrator.stores.profile_file import ProfileIdentity
from orchestrator.stores.run_notes import (
    CacheContents,
    Durations,
    MadeFor,
    add_contents,
    add_durations,
    add_feature_groups,
    decode_contents,
    decode_durations,
    decode_groups,
)


def serve(channel: Channel[Request, Answer]) -> None:
    """Open what `Setup` says, then do what is asked for."""
    setup = channel.receive()
    if not isinstance(setup, Setup):
        raise TypeError("it begins with its setup")
    try:
        device = open_for_child(setup.opener, setup.selector, DeviceRequest())
    except OrchestratorError as error:
        channel.send(_sent(error))
        return
    with closing(device):
        identity = device.identity
        channel.send(Opened(ProfileIdentity.of(identity), identity.device_name, driver_words(identity)))
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


def _pack(path: str, key: str) -> Pack:
    return Pack.open(Path(path), MacKey.read(Path(key)) if key else None)


def _data(pack: Pack, target: Target) -> bytes:
    return pack.read_cache(target)[PREFIX_HEADER_SIZE:]


def _join(device: Device, request: Join) -> Joined:
    path = cache_path(Path(request.directory), device.identity)
    found = []
    for each in request.packs:
        pack = _pack(each, request.key)
        target = pack.manifest.target_of(request.identity)
        if target is None:
            raise PackError(pack.directory, "it was changed meanwhile", "try again")
        found.append((pack, target))
    loaded = [
        (pack.directory / (target.cache.name if target.cache else ""), _data(pack, target))
        for pack, target in found
    ]
    joined, data = join_loaded(
        device, [(at, LoadResult(LoadStatus.LOADED, at, data=data)) for at, data in loaded]
    )
    for one in joined:
        if one.status != LoadStatus.LOADED:
            raise PackError(one.path, f"the driver did not take it: {one.status}: {one.detail}")
    saved = save_cache_file(path, device.identity, data)
    if saved.skipped is not None:
        raise PackError(path, f"it was not written: {saved.skipped}")
    for pack, target in found:
        _Notes.of(pack, target).add_to(path)
    return Joined(len(data))


def _install(device: Device, request: Install) -> Installed:
    pack = _pack(request.pack, request.key)
    target = pack.manifest.target_of(ProfileIdentity.of(device.identity))
    path = cache_path(Path(request.directory), device.identity)
    if target is None:
        return Installed(-1, str(path))
    index = pack.manifest.targets.index(target)
    if request.again:
        target = target.as_it_was
    done = Installed(index, str(path))
    # All is proven before anything is written.
    notes = _Notes.of(pack, target)
    binaries = b"" if target.binaries is None or request.again else pack.read_binaries(target)
    if target.cache is not None:
        done = _install_cache(device, pack, target, notes, done)
    if binaries:
        done = _install_binaries(pack, target, binaries, notes, done)
    return done


def _install_cache(device: Device, pack: Pack, target: Target, notes: _Notes, done: Installed) -> Installed:
    assert target.cache is not None  # noqa: S101 - asked before
    path, data = Path(done.path), _data(pack, target)
    with taken(device, data, target.cache.name) as (cache, _, problem):
        if problem:
            raise PackError(pack.directory / target.cache.name, problem)
        saved = save_merged(device, path, cache)
    if saved.locked_out or saved.lost:
        step = "try again" if saved.locked_out else "move what is there away, or name another --cache-dir"
        raise PackError(path, f"it was not written: {saved.skipped}", step)
    if saved.saved_bytes:
        before = b"" if saved.found is None else saved.found.data_hash
        # With a note one of the two may have been dropped.
        done = _noted(done, notes, before, is_joined=not saved.note)
    found, unused = saved.found, ""
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


def _install_binaries(
    pack: Pack, target: Target, content: bytes, notes: _Notes, done: Installed
) -> Installed:
    """Take the binaries into the store; the driver is asked about each when it is used."""
    from orchestrator.stores.binary_pack import import_content
    from orchestrator.stores.binary_store import BinaryStore, StoreError

    assert target.binaries is not None  # noqa: S101 - asked before
    try:
        with BinaryStore.open(Path(done.path).parent) as store:
            put = import_content(store, pack.directory / target.binaries.name, content, unsigned=True).put
            where = str(store.path)
    except StoreError as error:
        raise SaveError(error.path, "storing the binaries", error.reason) from error
    done = _noted(done, notes)
    notes_now = (*done.notes, *filter(None, [put.lost]))
    return replace(done, store=where, binaries=put.pipelines, binaries_new=put.stored_bytes, notes=notes_now)


def _noted(done: Installed, notes: _Notes, before: bytes = b"", *, is_joined: bool = True) -> Installed:
    """Do `_Notes.add_to`. Its failure is only a note for the user, because the cache is installed already."""
    try:
        lost = notes.add_to(Path(done.path), before, is_joined=is_joined)
        said = [f"what was noted before is lost, and what the pack has was noted: {each}" for each in lost]
    except SaveError as error:
        said = [f"what the pack knows of it was not noted: {error}"]
    return replace(done, notes=(*done.notes, *said))


@frozen
class _Notes:
    """What lies beside a pack's cache file, proven and decoded.

    Attributes:
        durations: Compile times of its pipelines.
        groups: What it was made for.
        held: The pipelines that it holds; nothing where they were noted for another file.
    """

    durations: Durations = field(factory=Durations)
    groups: tuple[MadeFor, ...] = ()
    held: CacheContents = field(factory=CacheContents)

    @classmethod
    def of(cls, pack: Pack, target: Target) -> Self:
        """Read those of a target.

        Raises:
            PackError: One is missing or damaged.
        """
        found = cls()
        for file in target.files:
            try:
                if file.name.endswith(DURATIONS.suffix):
                    found = evolve(found, durations=decode_durations(pack.read(file)))
                elif file.name.endswith(FEATURE_GROUPS.suffix):
                    found = evolve(found, groups=decode_groups(pack.read(file)))
                elif file.name.endswith(CONTENTS.suffix) and target.cache is not None:
                    held = decode_contents(pack.read(file))
                    packed = PipelineCachePrefixHeader.unpack(pack.read_cache(target)).data_hash
                    found = evolve(found, held=held) if held.data_hash == packed else found
            except (ValueError, msgspec.MsgspecError) as error:
                raise PackError(pack.directory / file.name, f"it is damaged: {error}") from None
        return found

    def add_to(self, cache_file: Path, before: bytes = b"", *, is_joined: bool = True) -> list[str]:
        """Add them to what lies beside another cache file.

        Args:
            cache_file: The other one.
            before: Hash that it had before the pack's was joined with it.
            is_joined: Whether it has all that both had.

        Returns:
            Why existing records were not used, and were replaced.

        Raises:
            SaveError: They cannot be written.
        """
        lost = []
        if len(self.durations):
            lost.append(add_durations(cache_file, self.durations.keys, self.durations.duration_ns).problem)
        if self.groups:
            lost.append(add_feature_groups(cache_file, self.groups))
        if self.held.data_hash and is_joined and (now := stored_data_hash(cache_file)) is not None:
            lost.append(add_contents(cache_file, self.held.keys, now, (before,)))
        return [each for each in lost if each]
