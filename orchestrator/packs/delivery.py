"""Releases: packs as static files that any web server, CDN or object store serves.

    DIRECTORY/
      index.json        signed: the number of the release, and its components in the order of their priority
      files/SHA256      the files of the packs and their manifests, by the hash of their content

A component is a pack, so its manifest says what it has, for which device, and with which hashes. The index is
written last and files are never changed, so a player takes a whole release at any time. What a player took
lies in `delivered/NAME` of the cache directory: the index, and each component as a pack. Blocking.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from attrs import evolve, frozen
from msgspec.structs import replace

from orchestrator.errors import shell_text
from orchestrator.packs.driver import PackDeviceOpened, pack_driver
from orchestrator.packs.fetching import DeliveryError, Source, fill
from orchestrator.stores.files.atomic_file import (
    MissingFileError,
    ReadError,
    SaveError,
    ensure_directory,
    files,
    likely_cause,
    read_capped,
    write_atomically,
    write_document,
)
from orchestrator.stores.pack import (
    MANIFEST,
    MANIFEST_CAP,
    Pack,
    PackError,
    PackWriter,
    SignedDocument,
)
from orchestrator.stores.profile_file import ProfileIdentity
from orchestrator.version import VERSION

if TYPE_CHECKING:
    from orchestrator.stores.signing import PublicKey, SigningKey

INDEX: Final = "index.json"
_FILES: Final = "files"
_NOTHING: Final = "nothing for this device and driver"
_INDEX_CAP: Final = 16 << 20
_NAME: Final = "[a-z0-9][a-z0-9-]{0,60}"
_Name = Annotated[str, msgspec.Meta(pattern=rf"^{_NAME}\Z")]


class ReleaseComponent(msgspec.Struct, frozen=True, kw_only=True):
    """A pack of a release: its manifest, and the devices and drivers that it has something for."""

    name: _Name
    size: Annotated[int, msgspec.Meta(ge=1, le=MANIFEST_CAP)]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    identities: Annotated[tuple[ProfileIdentity, ...], msgspec.Meta(max_length=4096)]


class ReleaseIndex(SignedDocument, frozen=True, kw_only=True):
    """What a release says of itself."""

    what: str = "orchestrator release"
    format: int = 1
    name: _Name = "release"
    release: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)] = 1
    components: Annotated[tuple[ReleaseComponent, ...], msgspec.Meta(max_length=256)] = ()


# --- whoever publishes


@frozen
class Published:
    """A release that was written; the files that the directory did not have, and their bytes."""

    index: ReleaseIndex
    files: int
    bytes: int


def publish(packs: Sequence[Pack], out: Path, key: SigningKey | None, name: str) -> Published:
    """Write the next release into a directory. Files of earlier ones stay.

    Args:
        packs: The components, the most urgent first, each called as its directory; opened with the public
            key of `key`.
        out: The directory; the umask decides who reads what is in it.
        key: Signs the index; None: it is not signed.
        name: Of the program, the same for all its releases.

    Raises:
        PackError: A pack is damaged, a name cannot be one, or the release before is not of this key or name.
        SaveError: Something could not be written.
    """
    names = [Path(os.path.realpath(each.directory)).name for each in packs]
    for each in (name, *names):
        if not re.fullmatch(_NAME, each):
            why = f"the name {each!r} cannot be used: names have small letters, digits and -"
            raise PackError(out, why, "rename the directory of the pack, or choose another --name")
        if names.count(each) > 1:
            raise PackError(out, f"two packs are called {each}", "rename the directory of one")
    try:
        (out / _FILES).mkdir(0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(out, "creating the directory", likely_cause(error)) from error
    with PackWriter(out).alone("name another directory"):
        before = _release_in(out, None if key is None else key.public)
        if before is not None and before.name != name:
            raise PackError(out, f"the releases there are called {before.name}", f"add --name {before.name}")
        if before is not None and before.signed and key is None:
            raise PackError(out, "the release there is signed", "name the same key (--sign)")
        components, new = list[ReleaseComponent](), list[int]()
        for component, pack in zip(names, packs, strict=True):
            targets = [each for each in pack.manifest.targets if each.has_data]
            new += [_put(out, pack.read(file)) for target in targets for file in target.files]
            manifest = read_capped(pack.directory / MANIFEST, MANIFEST_CAP)
            new.append(_put(out, manifest))
            components.append(
                ReleaseComponent(
                    name=component,
                    size=len(manifest),
                    sha256=hashlib.sha256(manifest).hexdigest(),
                    identities=tuple(each.identity for each in targets if each.identity is not None),
                )
            )
        number = 1 if before is None else before.release + 1
        index = ReleaseIndex(orchestrator=VERSION, name=name, release=number, components=tuple(components))
        write_document(out / INDEX, index.encode(key))
    return Published(index, sum(map(bool, new)), sum(new))


def _put(out: Path, content: bytes) -> int:
    """Bytes that were written: none where the file is there."""
    path = out / _FILES / hashlib.sha256(content).hexdigest()
    with suppress(ReadError):
        if read_capped(path, len(content)) == content:
            return 0
    return write_document(path, content)


def _release_in(directory: Path, trust: PublicKey | None) -> ReleaseIndex | None:
    path = directory / INDEX
    try:
        return ReleaseIndex.decode(path, read_capped(path, _INDEX_CAP), trust)
    except MissingFileError:
        return None
    except ReadError as error:
        raise PackError(path, error.reason) from None


# --- whoever installs


class DeliveredComponent(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a component of a release."""

    name: str
    pipelines: int = 0  # Number of pipelines that it has for this device and driver.
    fetched_bytes: int = 0  # Bytes that were transferred; 0 if everything was here.
    installed: bool = False  # Whether the device now has what the component has for it.
    not_saved: str | None = None  # Why no cache file was written, or null.
    notes: tuple[str, ...] = ()  # What a user should know.


@frozen
class Delivered:
    """A release that was installed."""

    index: ReleaseIndex
    device: PackDeviceOpened
    fetched_bytes: int  # of the index, manifests and files
    components: tuple[DeliveredComponent, ...]


def deliver(
    source: Source,
    directory: Path,
    trust: PublicKey | None,
    *,
    selector: str = "",
    names: Collection[str] = (),
    on_step: Callable[[str], None] = lambda _: None,
) -> Delivered:
    """Install what a release has for a device, each component as soon as it is there.

    Args:
        source: Where the release is.
        directory: The cache directory.
        trust: Whose signature it must have; None proves nothing.
        selector: Which device, as `open_device` takes it.
        names: The components; none stands for all.
        on_step: Told what is done, before it is.

    Raises:
        DeliveryError: The release is damaged, not signed by that key, older than the one that is here, or
            has no such component; a file is not what it says; or the connection broke.
        PackError: As `packs.driver.install`, as are all others; or another process installs the release.
    """
    content, index = _fetched_index(source, trust)
    wanted = [each for each in index.components if not names or each.name in names]
    if unknown := set(names) - {each.name for each in wanted}:
        there = ", ".join(each.name for each in index.components)
        said = f"it has no component {min(unknown)}; there is: {there}"
        raise DeliveryError(source.path_of(INDEX), said, "name one of these")
    place = directory.absolute() / "delivered" / index.name
    done: list[DeliveredComponent] = []
    with pack_driver(selector) as driver, PackWriter(place).alone("name another --cache-dir"):
        _refuse_older(place, index, trust, source.path_of(INDEX))
        write_atomically(place / INDEX, [content])
        for dropped in {each.name for each in place.iterdir()} - {each.name for each in index.components}:
            shutil.rmtree(place / dropped, ignore_errors=True)  # files, such as the index, stay
        for each in wanted:
            on_step(f"fetching {each.name}")
            fetched, pack = _fetched_pack(source, each, place / each.name, trust, driver.device.identity)
            component = DeliveredComponent(name=each.name, fetched_bytes=fetched, not_saved=_NOTHING)
            if pack is not None:
                on_step(f"installing {each.name}")
                installed = driver.install(pack, directory)
                component = replace(
                    component,
                    pipelines=pack.manifest.targets[installed.target].count("created"),
                    installed=not installed.is_kept_out,
                    not_saved=installed.skipped or None,
                    notes=installed.notes,
                )
            done.append(component)
    total = len(content) + sum(each.fetched_bytes for each in done)
    return Delivered(index, driver.device, total, tuple(done))


def _fetched_index(source: Source, trust: PublicKey | None) -> tuple[bytes, ReleaseIndex]:
    sink = io.BytesIO()
    fill(source, INDEX, sink, _INDEX_CAP, is_known=False)
    content = sink.getvalue()
    try:
        index = ReleaseIndex.decode(Path(INDEX), content, trust)
    except PackError as error:
        step = "check the address and --trust; else tell who publishes it"
        raise DeliveryError(source.path_of(INDEX), error.reason, step) from None
    if len({each.name for each in index.components}) < len(index.components):
        raise DeliveryError(source.path_of(INDEX), "two components have one name")
    return content, index


def _refuse_older(place: Path, index: ReleaseIndex, trust: PublicKey | None, path: str) -> None:
    before = None
    with suppress(PackError):  # of another key, or damaged: then it says nothing
        before = _release_in(place, trust)
    if before is not None and index.release < before.release:
        raise DeliveryError(
            path,
            f"it is release {index.release} of {index.name}, older than {before.release}, which was here",
            f"tell who publishes it; to go back all the same, remove {shell_text(place)}",
        )


def _fetched_pack(
    source: Source,
    component: ReleaseComponent,
    place: Path,
    trust: PublicKey | None,
    identity: ProfileIdentity,
) -> tuple[int, Pack | None]:
    """Bytes that were transferred, and the pack with all files of a device; None where there are none."""
    if identity not in component.identities:
        return 0, None
    ensure_directory(place)
    manifest = _staged(source, place / MANIFEST, component.size, component.sha256)
    try:
        pack = Pack.of(place, read_capped(manifest.at, component.size), trust)
    except PackError as error:
        manifest.at.unlink()
        raise DeliveryError(source.path_of(f"{_FILES}/{component.sha256}"), error.reason) from None
    if (target := pack.manifest.target_of(identity)) is None or not target.has_data:
        return manifest.fetched, None
    staged = [_staged(source, place / each.name, each.size, each.sha256) for each in target.files]
    try:
        for each in (*staged, manifest):  # until then the pack is the one before
            files().rename(each.at, each.path)
    except OSError as error:
        raise SaveError(place, "putting what was fetched in place", likely_cause(error)) from error
    for stray in pack.strays():  # of earlier releases
        with suppress(OSError):
            (place / stray).unlink()
    return manifest.fetched + sum(each.fetched for each in staged), pack


@frozen
class _Staged:
    """A file that is here and proven, at its place or beside it; and how many bytes were transferred."""

    path: Path
    at: Path
    fetched: int = 0


def _staged(source: Source, path: Path, size: int, sha256: str) -> _Staged:
    name, part = f"{_FILES}/{sha256}", path.with_name(f".{sha256}.part")
    for at in (path, part):
        with suppress(ReadError):
            if hashlib.sha256(read_capped(at, size)).hexdigest() == sha256:
                return _Staged(path, at)
    try:
        with os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b") as sink:
            if sink.seek(0, os.SEEK_END) >= size:
                sink.truncate(0)
            kept = sink.seek(0, os.SEEK_END)
            fetched = fill(source, name, sink, size)
            sink.flush()
            sink.seek(0)
            is_proven = hashlib.file_digest(sink, "sha256").hexdigest() == sha256
            os.fsync(sink.fileno())
        if is_proven:
            return _Staged(path, part, fetched)
        part.unlink()
    except DeliveryError:
        if not part.stat().st_size:
            part.unlink()
        raise
    except OSError as error:
        raise SaveError(path, "writing what was fetched", likely_cause(error)) from error
    if kept:  # by a server that sent something else, or by a disk that lost it
        again = _staged(source, path, size, sha256)
        return evolve(again, fetched=again.fetched + fetched)
    raise DeliveryError(source.path_of(name), "it is not what was published: its hash is another")
