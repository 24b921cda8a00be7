"""Packs: a directory of cache files for several devices, with a manifest that proves and explains them.

    PACK/
      manifest.json          targets, their files with size and hash, what was left out and why; its signature
      NAME.pipeline-cache    a cache file
      NAME.notes             compile times, what the cache file was made for, which pipelines it holds
      NAME.binaries          pipeline binaries of the device; see `binary_export`
      NAME.foz, NAME_idx.foz what Mesa's driver of the device keeps in its own cache, and an index

The manifest names each file by its SHA-256, and a signature is over the manifest, so it covers all of them.
Names of files are plain names of known kinds, and links are refused, so nothing outside of the directory is
read or written. The manifest is written last; until then `problems` tells which files differ from the older
one.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Final, Self

import msgspec
import numpy as np
from attrs import frozen
from msgspec.structs import replace

from orchestrator.errors import OrchestratorError, shown
from orchestrator.stores import binary_export
from orchestrator.stores.cache_file import (
    CACHE_FILE_CAP,
    CACHE_FILE_SUFFIX,
    PREFIX_HEADER_SIZE,
    CacheHeaderError,
    PipelineCachePrefixHeader,
    prove_content,
    stored_data_hash,
)
from orchestrator.stores.files.atomic_file import (
    MissingFileError,
    ReadError,
    SaveError,
    check_directory,
    ensure_directory,
    files,
    likely_cause,
    read_capped,
    write_atomically,
)
from orchestrator.stores.files.recovery import (
    LOADING_SUFFIX,
    PREVIOUS_SUFFIX,
    QUARANTINE_DIRECTORY,
    SweepReport,
    leftovers_in,
    previous_path,
    swept_of,
)
from orchestrator.stores.files.writer_lock import LOCK_SUFFIX, writer_lock
from orchestrator.stores.profile_file import ProfileIdentity
from orchestrator.stores.run_notes import (
    CompiledGroup,
    Durations,
    Keys,
    Nanoseconds,
    add_contents,
    add_durations,
    add_feature_groups,
    no_keys,
    read_contents,
    read_durations,
    read_feature_groups,
)
from orchestrator.stores.state import STATE_NAME, decoder_of, encoded
from orchestrator.version import VERSION

if TYPE_CHECKING:
    from orchestrator.stores.signing import PublicKey, SigningKey

FORMAT: Final = 3
MANIFEST: Final = "manifest.json"
NOTES_SUFFIX: Final = ".notes"
BINARIES_SUFFIX: Final = ".binaries"
DRIVER_CACHE_SUFFIXES: Final = ("_idx.foz", ".foz")  # Mesa's names

_LEFT_BESIDE: Final = (LOCK_SUFFIX, LOADING_SUFFIX, PREVIOUS_SUFFIX)
_SUFFIXES: Final = (CACHE_FILE_SUFFIX, NOTES_SUFFIX, BINARIES_SUFFIX, *DRIVER_CACHE_SUFFIXES)
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,160}")
_WHAT: Final = "orchestrator pack"
MANIFEST_CAP: Final = 64 << 20
_UNSIGNED: Final = "0" * 128  # in place of the signature, while it is computed
_ACCESS: Final = "check who owns it, and its mode (`ls -ld`); or name another directory"
_REMAKE: Final = "copy the pack again, or remove this file and run its compile again: it uses the rest"
_NAME_ONE: Final = "name a directory that `orchestrator compile --out` wrote to its end"

_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Ordinal = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
_Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Key = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
_Signature = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{128})?$")]


class PackError(OrchestratorError):
    """A pack, or the file of it at `path`, cannot be used; `next_step` says what to do."""

    def __init__(self, path: Path, reason: str, next_step: str = "copy or make the pack again") -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
        self.next_step = next_step


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """Pipelines that are not in the cache: "skipped", "failed", "quarantined" or "not_run"."""

    status: Annotated[str, msgspec.Meta(max_length=32)]
    reason: _Text
    keys: tuple[_Key, ...]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A set, or a shard of one, that was compiled for a target."""

    set_name: _Text  # its file name, for people
    set_hash: _Key  # over the names of its records
    shard: _Ordinal = 1
    shards: _Ordinal = 1
    chosen: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{32})?$")] = (
        ""  # hash of the keys that were chosen
    )
    pipelines: _Count  # to be compiled
    created: _Count  # of these, in the cache file
    left_out: tuple[LeftOut, ...] = ()

    @property
    def of(self) -> tuple[object, ...]:
        """What it is a part of, and which: equal for two compiles of the same."""
        return self.set_hash, self.shard, self.shards, self.chosen

    @property
    def text(self) -> str:
        """It in words: "game.foz, shard 2/4"."""
        shard = f", shard {self.shard}/{self.shards}" if self.shards > 1 else ""
        return f"{self.set_name}{shard}{', chosen by key' if self.chosen else ''}"


class PackedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a pack; `pipelines` is how many different ones it holds, 0 where that is not known."""

    name: Annotated[str, msgspec.Meta(max_length=200)]
    size: Annotated[int, msgspec.Meta(ge=0, le=CACHE_FILE_CAP)]
    sha256: _Sha256
    pipelines: _Count = 0


_Files = Annotated[tuple[PackedFile, ...], msgspec.Meta(max_length=len(_SUFFIXES))]


class PackTarget(msgspec.Struct, frozen=True, kw_only=True):
    """What a pack has for one device."""

    selector: _Text  # how the device was called on the machine that compiled
    identity: ProfileIdentity | None = None  # None where the device did not open
    device_name: _Text = ""
    driver: _Text = ""
    files: _Files = ()  # its cache file, its pipeline binaries, the driver's own cache, and notes
    parts: tuple[Part, ...] = ()
    problem: _Text = ""  # why there is nothing
    before: _Files = ()  # its files until now, while it is compiled again

    @property
    def cache(self) -> PackedFile | None:
        """The cache file."""
        return self._file(CACHE_FILE_SUFFIX)

    @property
    def binaries(self) -> PackedFile | None:
        """The file of its pipeline binaries."""
        return self._file(BINARIES_SUFFIX)

    @property
    def driver_cache(self) -> tuple[PackedFile, ...]:
        """The files of the driver's own cache: two, or none."""
        return tuple(each for each in self.files if each.name.endswith(DRIVER_CACHE_SUFFIXES))

    @property
    def has_data(self) -> bool:
        """Whether there is a cache of any kind, or there are binaries."""
        return self.cache is not None or self.binaries is not None or bool(self.driver_cache)

    @property
    def notes(self) -> PackedFile | None:
        """The file of notes."""
        return self._file(NOTES_SUFFIX)

    def _file(self, suffix: str) -> PackedFile | None:
        return next((each for each in self.files if each.name.endswith(suffix)), None)

    @property
    def name(self) -> str:
        """It in words, for messages."""
        of = ", ".join(filter(None, (self.device_name, self.driver)))
        return (self.selector or "the first device") + (f" ({of})" if of else "")

    @property
    def as_it_was(self) -> PackTarget:
        """It with the files that it had before it was compiled again."""
        return replace(self, files=self.before, before=(), problem="") if self.before else self

    def count(self, status: str) -> int:
        """How many pipelines have a status, "created" or one of `LeftOut`; what sets share counts once."""
        if status == "created":
            created = [each.created for each in self.parts]
            held = [each.pipelines for each in (self.cache, self.binaries) if each is not None]
            known = sum(held) if held and all(held) else sum(created)
            return max(min(sum(created), known), *created, 0)
        left_out = (each for part in self.parts for each in part.left_out if each.status == status)
        return len({key for each in left_out for key in each.keys})


class SignedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What signed documents of all formats have."""

    what: str = ""  # tells it from other JSON
    format: int = 0
    orchestrator: _Text = ""  # version of this program
    signature: _Signature = ""  # of all else, with zeros in its place; "" where it is not signed

    @property
    def signed(self) -> bool:
        """Whether it has a signature, which may be a wrong one."""
        return bool(self.signature)

    @classmethod
    def decode(cls, path: Path, content: bytes, trust: PublicKey | None) -> Self:
        """The document in a file with this content and path, signed by `trust`; None proves nothing.

        Raises:
            PackError: It is damaged, of something else or of another format, or not signed by that key.
        """
        expected = cls()
        try:
            head = msgspec.json.decode(content, type=SignedDocument)
            if head.what != expected.what:
                said = f"it is the {path.stem} of something else: {head.what[:40]!r}"
                raise PackError(path, said, _NAME_ONE)
            if head.format != expected.format:
                by = f" (orchestrator {shown(head.orchestrator)} made it)" if head.orchestrator else ""
                said = f"it has format {head.format}, and this version reads {expected.format}{by}"
                raise PackError(path, said, "make it again with this version, and sign it again")
            document = msgspec.json.decode(content, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise PackError(path, f"it is damaged: {error}", _REMAKE) from None
        if trust is not None:
            if not document.signature:
                raise PackError(path, "it is not signed", "have it made with --sign")
            signed = content.replace(document.signature.encode(), _UNSIGNED.encode(), 1)
            if not trust.proves(bytes.fromhex(document.signature), document.what, signed):
                why = "it was not signed by the trusted key, or was changed since"
                raise PackError(path, why, "check that --trust names the public key of who made it")
        return document

    def encode(self, key: SigningKey | None) -> bytes:
        """The content of its file, signed where there is a key."""
        unsigned = replace(self, signature="" if key is None else _UNSIGNED)
        content = msgspec.json.format(msgspec.json.encode(unsigned), indent=1) + b"\n"
        if key is None:
            return content
        return content.replace(_UNSIGNED.encode(), key.sign(self.what, content).hex().encode(), 1)


class PackManifest(SignedDocument, frozen=True, kw_only=True):
    """What a pack says of itself."""

    what: str = _WHAT
    format: int = FORMAT
    made_at: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # seconds since 1970
    targets: Annotated[tuple[PackTarget, ...], msgspec.Meta(max_length=4096)] = ()

    @property
    def names(self) -> frozenset[str]:
        """The names of all files, with those that unfinished targets had before."""
        return frozenset(file.name for each in self.targets for file in (*each.files, *each.before))

    def target_of(self, identity: ProfileIdentity) -> PackTarget | None:
        """The target of a device, or None."""
        return next((each for each in self.targets if each.identity == identity), None)

    def nearest(self, identity: ProfileIdentity) -> tuple[PackTarget, list[str]] | None:
        """The target of the same device, else of the same driver, that differs least, and where, in words.

        None where all targets are of other drivers for other devices.
        """
        near = []
        for place, each in enumerate(self.targets):
            if (of := each.identity) is not None:
                other = (of.vendor_id, of.device_id) != (identity.vendor_id, identity.device_id)
                if not other or of.driver_id == identity.driver_id:
                    wrong = of.differences(identity)
                    near.append((other, len(wrong), abs(of.device_id - identity.device_id), place, wrong))
        if not near:
            return None
        *_, place, wrong = min(near)
        return self.targets[place], wrong


def manifest_of(targets: Iterable[PackTarget]) -> PackManifest:
    """The manifest of these targets, made now."""
    return PackManifest(made_at=time.time(), orchestrator=VERSION, targets=tuple(targets))


class PackNotes(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What is known of a cache file, as NAME.notes has it: arrays of 64-bit numbers, little-endian."""

    timed: Keys = msgspec.field(default_factory=no_keys)  # pipelines whose compile time is known
    times_ns: Nanoseconds = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))
    groups: tuple[CompiledGroup, ...] = ()  # what the cache file was made for
    held: Keys = msgspec.field(default_factory=no_keys)  # pipelines that it holds; none if that is not known

    def __post_init__(self) -> None:
        if len(self.timed) != len(self.times_ns) or (self.times_ns < 0).any():
            raise ValueError("not one time for each key")

    @classmethod
    def of(cls, cache_file: Path) -> Self:
        """What is noted of a cache file, which need not be there."""
        times, (groups, _) = read_durations(cache_file), read_feature_groups(cache_file)
        return cls(timed=times.keys, times_ns=times.duration_ns, groups=groups, held=_held(cache_file))

    @property
    def times(self) -> Durations:
        """The recorded compile times."""
        return Durations().updated(self.timed, self.times_ns)

    @classmethod
    def joined(cls, notes: Sequence[Self]) -> Self:
        """Those of a cache that was joined of several, of which the last counts where they differ."""
        times = Durations()
        for each in notes:
            times = times.updated(each.timed, each.times_ns)
        is_known = all(len(each.held) for each in notes)
        return cls(
            timed=times.keys,
            times_ns=times.duration_ns,
            groups=tuple(dict.fromkeys(group for each in notes for group in each.groups)),
            held=np.unique(np.concatenate([each.held for each in notes])) if is_known else no_keys(),
        )

    def add_to(self, cache_file: Path, before: bytes = b"", *, is_joined: bool = True) -> None:
        """Add them to what is noted of a cache file; raises SaveError.

        `before`: the hash that it had before the pack's was joined with it; `is_joined`: whether it has all
        that both had.
        """
        if len(self.timed):
            add_durations(cache_file, self.timed, self.times_ns)
        if self.groups:
            add_feature_groups(cache_file, self.groups)
        if len(self.held) and is_joined and (now := stored_data_hash(cache_file)) is not None:
            add_contents(cache_file, self.held, now, (before,))


_NOTES: Final = decoder_of(PackNotes)


def _held(cache_file: Path) -> Keys:
    """The pipelines that a cache file is known to hold now."""
    contents = read_contents(cache_file)
    with suppress(ReadError):
        if contents.data_hash and contents.data_hash == stored_data_hash(cache_file):
            return contents.keys
    return contents.keys[:0]


def is_pack(path: Path) -> bool:
    """Whether a path is a directory with a manifest, which may be a damaged one."""
    return _no_pack(path) is None


def _no_pack(path: Path) -> str | None:
    try:
        return None if MANIFEST in files().list_directory(path) else "it has no manifest.json"
    except NotADirectoryError:
        return "it is not a directory"
    except OSError as error:
        return likely_cause(error)


@frozen
class Pack:
    """A pack whose manifest was read; its files may be damaged. Thread-safe."""

    directory: Path  # where it is
    manifest: PackManifest  # what it says of itself
    trust: PublicKey | None = None  # what proved its manifest; None: nothing proves where it comes from

    @classmethod
    def open(cls, directory: Path, trust: PublicKey | None = None) -> Pack:
        """Read a pack's manifest, which `trust` must have signed; None takes any pack and proves nothing.

        Raises:
            PackError: There is no manifest, it is damaged, of another format, or names files that a pack may
                not have; or it is not signed by the trusted key.
        """
        path = directory / MANIFEST
        try:
            content = read_capped(path, MANIFEST_CAP)
        except ReadError as error:
            if (why := _no_pack(directory)) is not None:
                raise PackError(directory, f"no pack: {why}", _NAME_ONE) from None
            raise PackError(path, error.reason, _ACCESS) from None
        return cls.of(directory, content, trust)

    @classmethod
    def of(cls, directory: Path, content: bytes, trust: PublicKey | None) -> Pack:
        """A pack by the content of its manifest, which need not be there yet; otherwise as `open`."""
        path = directory / MANIFEST
        manifest = PackManifest.decode(path, content, trust)
        _check_manifest(path, manifest)
        return cls(directory, manifest, trust)

    @property
    def signed(self) -> bool:
        """Whether it has a signature, which may be a wrong one."""
        return self.manifest.signed

    def read(self, file: PackedFile, *, trusted: bool = False) -> bytes:
        """The content of a file, proven by size and hash; raises PackError where it is missing or damaged.

        With `trusted`, what others own or may write is refused too.
        """
        path = self.directory / file.name
        try:
            content = read_capped(path, CACHE_FILE_CAP, trusted=trusted)
        except ReadError as error:
            raise PackError(path, error.reason) from None
        if len(content) != file.size:
            raise PackError(path, f"it is damaged: {len(content)} bytes, and the manifest says {file.size}")
        if (found := hashlib.sha256(content).hexdigest()) != file.sha256:
            raise PackError(path, f"it is damaged: its hash is {found}, and the manifest says {file.sha256}")
        return content

    def read_cache(self, target: PackTarget) -> bytes:
        """The cache file of a target, proven as a file and as a cache of that device and driver.

        Raises:
            PackError: The target has none, or it is damaged, or of another device than the target.
        """
        path, content = self._content(target, target.cache, "cache")
        _require_same(path, target, ProfileIdentity.of(_prove_cache(path, content)))
        return content

    def read_binaries(self, target: PackTarget) -> bytes:
        """The pipeline binaries of a target, as `read_cache`."""
        path, content = self._content(target, target.binaries, "binaries")
        try:
            generations = binary_export.prove_export(path, content).generations
        except binary_export.BinaryExportError as error:
            raise PackError(path, f"at byte {error.offset}: {error.reason}") from None
        for each in generations:
            _require_same(path, target, each.identity)
        return content

    def read_notes(self, target: PackTarget) -> PackNotes:
        """The notes of a target, empty where it has none; raises PackError where they are damaged."""
        if target.notes is None:
            return PackNotes()
        path, content = self._content(target, target.notes, "notes")
        try:
            return _NOTES.decode(content)
        except (ValueError, msgspec.MsgspecError) as error:
            raise PackError(path, f"it is damaged: {error}") from None

    def _content(self, target: PackTarget, file: PackedFile | None, what: str) -> tuple[Path, bytes]:
        if file is None or target.identity is None:
            raise PackError(self.directory, f"no {what} for {target.name}: {target.problem}")
        return self.directory / file.name, self.read(file)

    def problems(self) -> Iterator[tuple[Path, str]]:
        """What is wrong with each file that the manifest names, in its order."""
        for target in self.manifest.targets:
            readers = {CACHE_FILE_SUFFIX: self.read_cache, BINARIES_SUFFIX: self.read_binaries}
            for file in target.files:
                try:
                    if file in target.driver_cache:
                        self.read(file)
                    else:
                        readers.get(PurePath(file.name).suffix, self.read_notes)(target)
                except PackError as error:
                    yield error.path, str(error).removeprefix(f"{error.path}: ")

    def strays(self) -> list[str]:
        """Names in the directory that are not of the pack, such as locks of those who wrote it; sorted."""
        own = {MANIFEST, *self.manifest.names}
        return sorted(set(files().list_directory(self.directory)) - own)

    def foreign(self) -> list[str]:
        """The strays that no compile leaves in a pack, and every link; sorted."""

        def is_left(name: str) -> bool:
            known = name.startswith((STATE_NAME, ".")) or name.endswith(_LEFT_BESIDE)
            status = files().lstat(self.directory / name)
            is_link = not status.is_regular and not status.is_directory
            return (known or name == QUARANTINE_DIRECTORY) and not is_link

        return [each for each in self.strays() if not is_left(each)]


def _prove_cache(path: Path, content: bytes) -> PipelineCachePrefixHeader:
    try:
        return prove_content(content[:PREFIX_HEADER_SIZE], content[PREFIX_HEADER_SIZE:])
    except CacheHeaderError as error:
        raise PackError(path, f"{error.status.value}: {error.reason}") from None


def _require_same(path: Path, target: PackTarget, found: ProfileIdentity) -> None:
    if target.identity is not None and (differences := found.differences(target.identity)):
        said = ", ".join(differences)
        raise PackError(path, f"it is of another device than its target {target.name}: {said}")


def _check_manifest(path: Path, manifest: PackManifest) -> None:
    names: set[str] = set()
    identities: set[ProfileIdentity | None] = set()
    for target in manifest.targets:
        for file in (*target.files, *target.before):
            said = f"target {target.name}: the file {file.name!r}"
            if reason := refuse_name(file.name):
                step = "use the version that made it, or make the pack again"
                raise PackError(path, f"{said} {reason}", step)
            if file.name in names:
                raise PackError(path, f"{said} is there twice")
            names.add(file.name)
        pair = [each.name for each in target.as_it_was.driver_cache]
        stems = {each.removesuffix(".foz").removesuffix("_idx") for each in pair}
        if len(stems) > 1 or len(pair) != 2 * len(stems):
            raise PackError(path, f"target {target.name} has not the two files of one driver cache")
        if target.identity is None and (target.files or target.before):
            raise PackError(path, f"target {target.name} has files and no identity")
        if target.identity is not None and target.identity in identities:
            raise PackError(path, f"target {target.name} has the identity of another target")
        identities.add(target.identity)


def refuse_name(name: str) -> str:
    """Why a pack may not have a file of this name, or ""."""
    suffix = next((each for each in _SUFFIXES if name.endswith(each)), None)
    if suffix is not None and _NAME.fullmatch(name.removesuffix(suffix)):
        return ""
    if "/" in name or "\\" in name or name.startswith("."):
        return "is no plain name: a pack's files lie in its own directory"
    return f"is of no kind that a pack has ({', '.join(_SUFFIXES)})"


def sweep_pack(directory: Path, *, dry_run: bool = False) -> SweepReport:
    """As `sweep_directory`, of what only packs have; raises SaveError."""
    writer = PackWriter(directory)
    if not writer.sweep(dry_run=True).removed:
        return SweepReport()
    with writer_lock(directory / MANIFEST, wait_s=0, only_if_there=dry_run) as held:
        return writer.sweep(dry_run=dry_run) if held else SweepReport()


@frozen(eq=False)
class PackWriter:
    """Fills a directory and writes its manifest. One writer at a time; files that are in place stay.

    Every method raises SaveError where the disk refuses, and PackError where a pack cannot have that.
    """

    directory: Path  # created, mode 0700, where it is missing
    key: SigningKey | None = None  # what it is signed with; None: it is not

    def prepare(self) -> None:
        """Create the directory, and refuse one that others may write."""
        if reason := check_directory(self.directory / MANIFEST):
            raise PackError(self.directory, reason, _ACCESS)

    @contextmanager
    def alone(self, otherwise: str) -> Iterator[None]:
        """Be the only process that writes the pack, in a block; `otherwise`: what to do but wait."""
        self.prepare()
        with writer_lock(self.directory / MANIFEST, wait_s=0) as is_alone:
            if not is_alone:
                step = f"wait for it; or {otherwise}"
                raise PackError(self.directory, "another process writes this pack", step)
            yield

    def sweep(self, *, dry_run: bool = False) -> SweepReport:
        """Remove what a killed writer left, if the directory exists, or only find out what that is."""
        ends = (MANIFEST, NOTES_SUFFIX, BINARIES_SUFFIX)
        left = leftovers_in(self.directory).items()
        return swept_of((each for name, own in left if name.endswith(ends) for each in own), dry_run=dry_run)

    def files_at(self, cache_file: Path) -> tuple[PackedFile, ...]:
        """A cache file that is there, and its notes, copied where they do not lie in the pack."""
        if (content := self.content(cache_file)) is None:
            return ()
        _prove_cache(cache_file, content)
        return self.add_cache(cache_file.name, content, PackNotes.of(cache_file))

    def add_cache(self, name: str, content: bytes, notes: PackNotes) -> tuple[PackedFile, ...]:
        """A cache file and its notes, if there are any, as files of the pack."""
        return self.add(name, content, len(notes.held)), *self.add_notes(name, notes)

    def add_notes(self, name: str, notes: PackNotes) -> tuple[PackedFile, ...]:
        """The notes of a cache file with this name, if there are any."""
        if not (len(notes.timed) or notes.groups or len(notes.held)):
            return ()
        return (self.add(PurePath(name).stem + NOTES_SUFFIX, encoded(notes)),)

    def content(self, path: Path) -> bytes | None:
        """The content of a file that may be packed; None where there is none."""
        try:
            return read_capped(path, CACHE_FILE_CAP, trusted=True)
        except MissingFileError:
            return None
        except ReadError as error:
            raise PackError(path, error.reason, _ACCESS) from None

    def add(self, name: str, content: bytes, pipelines: int = 0) -> PackedFile:
        """Write a file of the pack where it does not have this content; what the manifest says of it."""
        path = self.directory / name
        if reason := refuse_name(name):
            raise PackError(path, reason)
        there = None
        with suppress(ReadError):
            there = read_capped(path, CACHE_FILE_CAP, trusted=True)
        if there != content:
            ensure_directory(self.directory)
            write_atomically(path, [content])
        found = hashlib.sha256(content).hexdigest()
        return PackedFile(name=name, size=len(content), sha256=found, pipelines=pipelines)

    def finish(self, manifest: PackManifest) -> None:
        """Write the manifest; then remove previous generations of its cache files, which nobody needs."""
        path = self.directory / MANIFEST
        content = manifest.encode(self.key)
        if len(content) > MANIFEST_CAP:
            raise PackError(path, f"it would have {len(content)} bytes, more than {MANIFEST_CAP}")
        _check_manifest(path, msgspec.json.decode(content, type=PackManifest))
        write_atomically(path, [content])
        for cache in filter(None, (each.cache for each in manifest.targets)):
            previous = previous_path(self.directory / cache.name)
            try:
                files().unlink(previous)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise SaveError(previous, "removing it", likely_cause(error)) from error


# --- what several compiles created


def with_created(part: Part, was_created: Callable[[str], bool]) -> Part:
    """A part with what it left out and was created all the same, by key."""
    left_out, created = [], part.created
    for each in part.left_out:
        keys = tuple(key for key in each.keys if not was_created(key))
        created += len(each.keys) - len(keys)
        if keys:
            left_out.append(replace(each, keys=keys))
    return replace(part, created=created, left_out=tuple(left_out))


def _joined(one: Part, other: Part) -> Part:
    """Two compiles of the same: what either created is there."""
    more, less = (other, one) if other.created > one.created else (one, other)
    lacked = {key for each in less.left_out for key in each.keys}
    if less.created + len(lacked) < less.pipelines:
        return more  # it does not say of each pipeline what became of it
    return with_created(more, lambda key: key not in lacked)


def joined_parts(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Parts of several packs, two compiles of the same as one; of a set and its shards, what created more.

    What was chosen by key counts only where the set is not all there: else it would count twice.
    """
    joined: dict[tuple[object, ...], Part] = {}
    for each in parts:
        known = joined.get(each.of)
        joined[each.of] = each if known is None else _joined(known, each)
    divided: dict[str, dict[int, list[int]]] = {}  # what each shard created, by set and number of shards
    for each in joined.values():
        if not each.chosen:
            divided.setdefault(each.set_hash, {}).setdefault(each.shards, []).append(each.created)

    def counts(part: Part) -> bool:
        if (divisions := divided.get(part.set_hash)) is None:
            return True
        # The division of the set that created the most; of equal ones the coarsest.
        best = min(divisions, key=lambda shards: (-sum(divisions[shards]), shards))
        return len(divisions[best]) < best if part.chosen else part.shards == best

    kept = filter(counts, joined.values())
    return tuple(sorted(kept, key=lambda each: (each.set_name, each.set_hash, each.shards, each.shard)))


def missing_shards(parts: Sequence[Part]) -> list[str]:
    """What is not there of sets of which some shards are: "game.foz: shards 3 and 4 of 4"."""
    there: dict[tuple[str, str, int], set[int]] = {}
    for each in parts:
        if not each.chosen and each.shards > 1:
            there.setdefault((each.set_name, each.set_hash, each.shards), set()).add(each.shard)
    missing = []
    for (name, _, shards), known in there.items():
        match [str(shard) for shard in range(1, min(shards, 1000) + 1) if shard not in known]:
            case [one]:
                missing.append(f"{name}: shard {one} of {shards}")
            case [*most, last]:
                missing.append(f"{name}: shards {', '.join(most)} and {last} of {shards}")
    return missing
