"""Packs: a directory of cache files for several devices, with a manifest that proves and explains them.

    PACK/
      manifest.json      what is in it: targets, their files with size and hash, what was left out and why
      manifest.mac       its MAC, 64 hex digits, if it was signed; that of the one before while it is replaced
      NAME.pipeline-cache, NAME.durations, ...    named as in a cache directory; see `kinds`
      NAME.binaries      pipeline binaries of the device; see `binary_pack`

A target is one device identity. Its parts are the sets, or shards of sets, that were compiled for it, so that
packs of several machines add up. Whoever has a pack may change it together with its hashes: they find
accidents. The MAC of the manifest covers a keyed digest of each file, so it finds attackers too.

Guarantees: a manifest is decoded against its type, within bounds. Names of files are plain names of known
kinds; any other is refused by name, and so are links and what is no regular file. Nothing is written outside
of the pack's directory. The manifest is written last: until then an older one, or none, is there, and
`problems` tells which files do not agree with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from attrs import define, frozen

from orchestrator.errors import OrchestratorError, shown
from orchestrator.stores.cache_file import (
    DEFAULT_CAP,
    PREFIX_HEADER_SIZE,
    CacheHeaderError,
    PipelineCachePrefixHeader,
    prove_content,
)
from orchestrator.stores.files.atomic_file import (
    REAL_FILE_OPERATIONS,
    FileOperations,
    MissingFileError,
    ReadError,
    SaveError,
    content_hash128,
    ensure_directory,
    likely_cause,
    read_capped,
    write_atomically,
)
from orchestrator.stores.files.mac import MAC_SIZE, MacKey
from orchestrator.stores.files.recovery import SweepReport, leftovers_in, previous_path, sweep_file
from orchestrator.stores.files.writer_lock import lock_that_is_there, writer_lock
from orchestrator.stores.kinds import (
    CACHE_FILE_SUFFIX,
    CONTENTS,
    DURATIONS,
    FEATURE_GROUPS,
    Kind,
    check_directory,
)
from orchestrator.stores.profile_file import ProfileIdentity
from orchestrator.stores.run_notes import read_contents

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
MANIFEST_MAC: Final = "manifest.mac"

NOTES: Final[tuple[Kind, ...]] = (DURATIONS, FEATURE_GROUPS, CONTENTS)
"""What goes into a pack beside the cache file: what any machine may know. A calibration is of one machine."""

BINARIES_SUFFIX: Final = ".binaries"
"""How the names of files of pipeline binaries end."""

_WHAT: Final = "orchestrator pack"
_CAP: Final = 64 << 20
_MAC_CAP: Final = 256
_SIGNS_MANIFEST: Final = "pack manifest"
_SIGNS_FILE: Final = "pack file"
_ACCESS: Final = "check who owns it, and its mode (`ls -ld`); or name another directory"
_REMAKE: Final = "copy the pack again, or remove this file and run its compile again: it uses the rest"
_NAME_ONE: Final = "name a directory that `orchestrator compile --out` wrote to its end"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,160}")

_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Ordinal = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
_Hash128 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
_Key = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
_Mac = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")]


class PackError(OrchestratorError):
    """A pack cannot be used.

    Attributes:
        path: The pack, or the file of it.
        next_step: What to do.
    """

    def __init__(self, path: Path, reason: str, next_step: str = "copy or make the pack again") -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.next_step = next_step


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """Pipelines that are not in the cache, for one reason.

    Attributes:
        status: "skipped", "failed", "quarantined" or "not_run".
        reason: Why.
        keys: Their keys, 16 hex digits each, ascending.
    """

    status: Annotated[str, msgspec.Meta(max_length=32)]
    reason: _Text
    keys: tuple[_Key, ...]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A set, or a shard of one, that was compiled for a target.

    Attributes:
        set_name: The file name of the set, for people.
        set_hash: Hash over the names of its records, 16 hex digits.
        shard: Which shard of it, 1 to `shards`.
        shards: How many shards it is divided into.
        chosen: Where pipelines were chosen by their keys: a hash of those, 32 hex digits. Otherwise "".
        pipelines: How many were to be compiled.
        created: How many of them the cache file holds.
        left_out: The others, by status and reason.
    """

    set_name: _Text
    set_hash: _Key
    shard: _Ordinal = 1
    shards: _Ordinal = 1
    chosen: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{32})?$")] = ""
    pipelines: _Count
    created: _Count
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
    """A file of a pack.

    Attributes:
        name: Its name in the pack's directory.
        size: Bytes.
        xxh3_128: Hash of its content, canonical order, 32 hex digits.
        mac: Its keyed digest where the pack was signed, 64 hex digits, else "".
        pipelines: How many different pipelines a cache file or a file of binaries holds; 0 where that is not
            known, and of any other file.
    """

    name: Annotated[str, msgspec.Meta(max_length=200)]
    size: _Count
    xxh3_128: _Hash128
    mac: _Mac = ""
    pipelines: _Count = 0


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a pack has for one device.

    Attributes:
        selector: How the device was called on the machine that compiled.
        identity: Which device and driver; None where the device did not open.
        device_name: For people.
        driver: Name and version of the driver, for people.
        files: Its cache file, its pipeline binaries, and what lies beside them; none where nothing was kept.
        parts: What was compiled.
        problem: Why there is nothing, or "".
        before: While it is compiled again: the files that it had. Their hashes tell whoever goes on whether
            they are still what they were.
    """

    selector: _Text
    identity: ProfileIdentity | None = None
    device_name: _Text = ""
    driver: _Text = ""
    files: tuple[PackedFile, ...] = ()
    parts: tuple[Part, ...] = ()
    problem: _Text = ""
    before: tuple[PackedFile, ...] = ()

    @property
    def cache(self) -> PackedFile | None:
        """The cache file."""
        return next((each for each in self.files if each.name.endswith(CACHE_FILE_SUFFIX)), None)

    @property
    def binaries(self) -> PackedFile | None:
        """The file of its pipeline binaries."""
        return next((each for each in self.files if each.name.endswith(BINARIES_SUFFIX)), None)

    @property
    def name(self) -> str:
        """It in words, for messages."""
        of = ", ".join(filter(None, (self.device_name, self.driver)))
        return (self.selector or "the first device") + (f" ({of})" if of else "")

    @property
    def as_it_was(self) -> Target:
        """It with the files that it had before it was compiled again."""
        return msgspec.structs.replace(self, files=self.before or self.files, before=())

    def count(self, status: str) -> int:
        """How many pipelines have a status: "created" or one of `LeftOut`. What two sets share counts once.

        Of those that were created that is so as far as it is known what the files hold.
        """
        if status == "created":
            created = [each.created for each in self.parts]
            held = [each.pipelines for each in (self.cache, self.binaries) if each is not None]
            known = sum(held) if held and all(held) else sum(created)
            return max(min(sum(created), known), *created, 0)
        left_out = (each for part in self.parts for each in part.left_out if each.status == status)
        return len({key for each in left_out for key in each.keys})


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a pack says of itself.

    Attributes:
        what: Tells the file from other JSON.
        format: Version of the layout; fields may be added without counting it up.
        made_at: When it was written, seconds since 1970.
        orchestrator: Version of this program.
        targets: The devices, one entry each.
    """

    what: str = _WHAT
    format: int = FORMAT
    made_at: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    orchestrator: _Text = ""
    targets: Annotated[tuple[Target, ...], msgspec.Meta(max_length=4096)] = ()

    @property
    def names(self) -> frozenset[str]:
        """The names of all files, with those that unfinished targets had before."""
        return frozenset(file.name for each in self.targets for file in (*each.files, *each.before))

    def target_of(self, identity: ProfileIdentity) -> Target | None:
        """The target of a device, or None."""
        return next((each for each in self.targets if each.identity == identity), None)

    def nearest(self, identity: ProfileIdentity) -> tuple[Target, list[str]] | None:
        """The target that has most in common with a device that has none, and where it differs, in words."""
        found = [
            (each, each.identity.differences(identity)) for each in self.targets if each.identity is not None
        ]
        return min(found, key=lambda each: len(each[1]), default=None)


_decoder: Final = msgspec.json.Decoder(Manifest)


def is_pack(path: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> bool:
    """Whether a path is a directory with a manifest, which may be a damaged one."""
    return _no_pack(path, operations) is None


def is_signed(pack: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> bool:
    """Whether a pack has a MAC, which may be a wrong one."""
    return stored_macs(pack, operations) is not None


def _no_pack(path: Path, operations: FileOperations) -> str | None:
    """Why a path is no directory with a manifest; None if it is one."""
    try:
        return None if MANIFEST in operations.list_directory(path) else "it has no manifest.json"
    except NotADirectoryError:
        return "it is not a directory"
    except OSError as error:
        return likely_cause(error)


@frozen
class Pack:
    """A pack whose manifest was read; its files may be damaged. Thread-safe.

    Attributes:
        directory: Where it is.
        manifest: What it says of itself.
        signed: Whether it has a MAC.
        key: The key with which its manifest was proven, and with which its files are; None: nothing proves
            where it comes from.
    """

    directory: Path
    manifest: Manifest
    signed: bool
    key: MacKey | None
    operations: FileOperations = REAL_FILE_OPERATIONS

    @classmethod
    def open(
        cls, directory: Path, key: MacKey | None = None, operations: FileOperations = REAL_FILE_OPERATIONS
    ) -> Pack:
        """Read a pack's manifest.

        Args:
            directory: The pack.
            key: The key with which it must be signed; None takes any pack and proves nothing.
            operations: The calls to use.

        Raises:
            PackError: There is no manifest, it is damaged, of another format, or names files that a pack may
                not have; or it is not signed with the key.
        """
        path = directory / MANIFEST
        try:
            content = read_capped(path, _CAP, operations)
        except ReadError as error:
            if (why := _no_pack(directory, operations)) is not None:
                raise PackError(directory, f"no pack: {why}", _NAME_ONE) from None
            raise PackError(path, error.reason, _ACCESS) from None
        signed = stored_macs(directory, operations)
        if key is not None:
            _prove_manifest(directory, content, signed, key)
        try:
            manifest = _decoder.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise PackError(path, f"it is damaged: {error}", _REMAKE) from None
        _check_manifest(path, manifest)
        return cls(directory, manifest, signed is not None, key, operations)

    def read(self, file: PackedFile) -> bytes:
        """The content of a file, proven by size and hash, and by its MAC where the pack is proven.

        Raises:
            PackError: It is missing, damaged, or not signed with the key.
        """
        path = self.directory / file.name
        try:
            content = read_capped(path, DEFAULT_CAP, self.operations)
        except ReadError as error:
            raise PackError(path, error.reason) from None
        if len(content) != file.size:
            raise PackError(path, f"it is damaged: {len(content)} bytes, and the manifest says {file.size}")
        if (found := content_hash128(content).hex()) != file.xxh3_128:
            raise PackError(
                path, f"it is damaged: its hash is {found}, and the manifest says {file.xxh3_128}"
            )
        if self.key is not None and not self.key.proves(
            bytes.fromhex(file.mac), _SIGNS_FILE, _signed_parts(file.name, content)
        ):
            raise PackError(path, "it is not what was signed with this key", "ask who made the pack")
        return content

    def read_cache(self, target: Target) -> bytes:
        """The cache file of a target, proven as a file and as a cache of that device and driver.

        Raises:
            PackError: The target has none, or it is damaged, or of another device than the target.
        """
        file, identity = target.cache, target.identity
        if file is None or identity is None:
            raise PackError(self.directory, f"no cache for {target.name}: {target.problem}")
        content = self.read(file)
        path = self.directory / file.name
        header = _prove_cache(path, content)
        if differences := ProfileIdentity.of(header).differences(identity):
            said = ", ".join(differences)
            raise PackError(path, f"it is of another device than its target {target.name}: {said}")
        return content

    def read_binaries(self, target: Target) -> bytes:
        """The pipeline binaries of a target, proven as a file and as of that device and driver.

        Raises:
            PackError: The target has none, or they are damaged, or of another device than the target.
        """
        from orchestrator.stores import binary_pack

        file, identity = target.binaries, target.identity
        if file is None or identity is None:
            raise PackError(self.directory, f"no binaries for {target.name}: {target.problem}")
        content, path = self.read(file), self.directory / file.name
        try:
            generations = binary_pack.prove_binaries(path, content).generations
        except binary_pack.BinaryPackError as error:
            raise PackError(path, f"at byte {error.offset}: {error.reason}") from None
        for each in generations:
            if differences := each.identity.differences(identity):
                said = ", ".join(differences)
                raise PackError(path, f"it is of another device than its target {target.name}: {said}")
        return content

    def problems(self) -> Iterator[tuple[Path, str]]:
        """What is wrong with each file that the manifest names, in its order."""
        for target in self.manifest.targets:
            for file in target.files:
                try:
                    if file is target.cache:
                        self.read_cache(target)
                    elif file is target.binaries:
                        self.read_binaries(target)
                    else:
                        self.read(file)
                except PackError as error:
                    yield error.path, str(error).removeprefix(f"{error.path}: ")

    def strays(self) -> list[str]:
        """Names in the directory that are not of the pack, such as locks of those who wrote it; sorted."""
        own = {MANIFEST, MANIFEST_MAC, *self.manifest.names}
        return sorted(set(self.operations.list_directory(self.directory)) - own)


def _prove_cache(path: Path, content: bytes) -> PipelineCachePrefixHeader:
    try:
        return prove_content(content[:PREFIX_HEADER_SIZE], content[PREFIX_HEADER_SIZE:])
    except CacheHeaderError as error:
        raise PackError(path, f"{error.status.value}: {error.reason}") from None


def _check_manifest(path: Path, manifest: Manifest) -> None:
    if manifest.what != _WHAT:
        raise PackError(path, f"it is the manifest of something else: {manifest.what[:40]!r}", _NAME_ONE)
    if manifest.format != FORMAT:
        by = f" (orchestrator {shown(manifest.orchestrator)} made it)" if manifest.orchestrator else ""
        said = f"it has format {manifest.format}, and this version reads {FORMAT}{by}"
        raise PackError(path, said, "use that version, or make the pack again with this one")
    names: set[str] = set()
    identities: set[ProfileIdentity] = set()
    for target in manifest.targets:
        for file in (*target.files, *target.before):
            if reason := refuse_name(file.name):
                said = f"target {target.name}: the file {file.name!r} {reason}"
                raise PackError(path, said, "use the version that made it, or make the pack again")
            if file.name in names:
                raise PackError(path, f"target {target.name}: the file {file.name!r} is there twice")
            names.add(file.name)
        if target.identity is None:
            if target.files or target.before:
                raise PackError(path, f"target {target.name} has files and no identity")
        elif target.identity in identities:
            raise PackError(path, f"target {target.name} has the identity of another target")
        else:
            identities.add(target.identity)


def refuse_name(name: str) -> str:
    """Why a pack may not have a file of this name, or ""."""
    suffixes = (CACHE_FILE_SUFFIX, BINARIES_SUFFIX, *(each.suffix for each in NOTES))
    suffix = next((each for each in suffixes if name.endswith(each)), None)
    if suffix is not None and _NAME.fullmatch(name.removesuffix(suffix)):
        return ""
    if "/" in name or "\\" in name or name.startswith("."):
        return "is no plain name: a pack's files lie in its own directory"
    return f"is of no kind that a pack has ({', '.join(suffixes)})"


def _signed_parts(name: str, content: bytes) -> tuple[bytes, ...]:
    encoded = name.encode()
    return len(encoded).to_bytes(8, "little"), encoded, content


def stored_macs(directory: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> list[bytes] | None:
    """The MACs of a pack's manifest and those before; None if it is not signed, empty if there is no MAC."""
    try:
        lines = read_capped(directory / MANIFEST_MAC, _MAC_CAP, operations).decode("ascii").splitlines()
        macs = [bytes.fromhex(each) for each in lines]
    except MissingFileError:
        return None
    except (ReadError, ValueError):
        return []
    return macs if {len(each) for each in macs} == {MAC_SIZE} else []


def _prove_manifest(directory: Path, content: bytes, macs: list[bytes] | None, key: MacKey) -> None:
    if macs is None:
        raise PackError(directory, "the pack is not signed", "have it made with --key")
    if not any(key.proves(each, _SIGNS_MANIFEST, [content]) for each in macs):
        raise PackError(
            directory / MANIFEST,
            "it was not signed with this key, or was changed since",
            "check that --key names the key file that the pack was made with",
        )


def sweep_pack(
    directory: Path, operations: FileOperations = REAL_FILE_OPERATIONS, *, dry_run: bool = False
) -> SweepReport:
    """As `sweep_directory`, of what only packs have: the manifest, its MAC, and pipeline binaries.

    Raises:
        SaveError: The directory could not be listed, or the lock file not be opened.
    """
    writer = PackWriter(directory, operations=operations)
    if not (there := writer.sweep(dry_run=True).removed):
        return SweepReport()
    path = directory / MANIFEST
    lock = lock_that_is_there(path, operations) if dry_run else writer_lock(path, operations, wait_s=0)
    with lock as held:
        return writer.sweep(dry_run=dry_run) if held else SweepReport(busy=there)


@define(eq=False)
class PackWriter:
    """Fills a directory and writes its manifest. One writer at a time; files that are in place stay.

    Attributes:
        directory: Created, mode 0700, where it is missing.
        key: What it is signed with; None: it is not.
    """

    directory: Path
    key: MacKey | None = None
    operations: FileOperations = REAL_FILE_OPERATIONS

    def prepare(self) -> None:
        """Create the directory, and refuse one that others may write.

        Raises:
            PackError: Others may write it.
            SaveError: It cannot be created.
        """
        if reason := check_directory(self.directory / MANIFEST, self.operations):
            raise PackError(self.directory, reason, _ACCESS)

    def sweep(self, *, dry_run: bool = False) -> SweepReport:
        """Remove what a killed writer left, if the directory exists, or only find out what that is.

        Raises:
            SaveError: The directory could not be listed.
        """
        swept = SweepReport()
        for name, own in leftovers_in(self.directory, self.operations).items():
            if name in (MANIFEST, MANIFEST_MAC) or name.endswith(BINARIES_SUFFIX):
                swept += sweep_file(self.directory / name, self.operations, names=own, dry_run=dry_run)
        return swept

    def files_at(self, cache_file: Path) -> tuple[PackedFile, ...]:
        """A cache file and what lies beside it, copied where it does not lie in the pack.

        Returns:
            What the manifest says of them, the cache file first; nothing where there is none.

        Raises:
            PackError: One that is there cannot be read, or is not whole.
            SaveError: One cannot be written.
        """
        content = self.content(cache_file)
        if content is None:
            return ()
        header, held = _prove_cache(cache_file, content), read_contents(cache_file, self.operations)
        pipelines = len(held) if held.data_hash == header.data_hash else 0
        return self.add(cache_file.name, content, pipelines), *self.notes_at(cache_file)

    def notes_at(self, cache_file: Path) -> tuple[PackedFile, ...]:
        """What lies beside a cache file, which need not be there itself; as `files_at`."""
        notes = [each.path(cache_file) for each in NOTES]
        found = [(each, content) for each in notes if (content := self.content(each)) is not None]
        return tuple(self.add(path.name, content) for path, content in found)

    def content(self, path: Path) -> bytes | None:
        """The content of a file that may be packed; None where there is none.

        Raises:
            PackError: It cannot be read.
        """
        try:
            return read_capped(path, DEFAULT_CAP, self.operations, trusted=True)
        except MissingFileError:
            return None
        except ReadError as error:
            raise PackError(path, error.reason, _ACCESS) from None

    def add(self, name: str, content: bytes, pipelines: int = 0) -> PackedFile:
        """A file of the pack with this content, written where it is not there; what the manifest says of it.

        Args:
            name: Its name.
            content: Its content.
            pipelines: As in `PackedFile`.

        Raises:
            PackError: A pack may not have a file of this name.
            SaveError: It cannot be written.
        """
        path = self.directory / name
        if reason := refuse_name(name):
            raise PackError(path, reason)
        try:
            there = read_capped(path, DEFAULT_CAP, self.operations, trusted=True)
        except ReadError:
            there = None
        if there != content:
            ensure_directory(self.directory, self.operations)
            write_atomically(path, [content], self.operations)
        mac = "" if self.key is None else self.key.sign(_SIGNS_FILE, _signed_parts(name, content)).hex()
        found = content_hash128(content).hex()
        return PackedFile(name=name, size=len(content), xxh3_128=found, mac=mac, pipelines=pipelines)

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest, and its MAC; then remove previous generations of its cache files.

        Those would double what is shipped, and the current ones were proven when they were packed.

        Raises:
            PackError: The manifest would be refused when it is read.
            SaveError: It cannot be written, or what is not of the pack any more cannot be removed.
        """
        path, mac_path = self.directory / MANIFEST, self.directory / MANIFEST_MAC
        content = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
        if len(content) > _CAP:
            raise PackError(
                path, f"it would have {len(content)} bytes, more than the {_CAP} that are allowed"
            )
        _check_manifest(path, _decoder.decode(content))
        if self.key is None:
            write_atomically(path, [content], self.operations)
            # One of an older manifest would say that this one was changed.
            self._remove(mac_path)
        else:
            mac = self.key.sign(_SIGNS_MANIFEST, [content])
            there = stored_macs(self.directory, self.operations) if is_pack(self.directory) else None
            # Whoever is killed between the two files leaves a MAC of the manifest that is there.
            self._write_macs([mac, *(there or [])[:2]])
            write_atomically(path, [content], self.operations)
            if there:
                self._write_macs([mac])
        for cache in filter(None, (each.cache for each in manifest.targets)):
            self._remove(previous_path(self.directory / cache.name))

    def _write_macs(self, macs: Sequence[bytes]) -> None:
        lines = [b"%s\n" % each.hex().encode() for each in macs]
        write_atomically(self.directory / MANIFEST_MAC, lines, self.operations)

    def _remove(self, path: Path) -> None:
        try:
            self.operations.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise SaveError(path, "removing it", likely_cause(error)) from error


def with_created(part: Part, was_created: Callable[[str, str], bool]) -> Part:
    """A part with what it left out and was created all the same; by status and key."""
    left_out, created = [], part.created
    for each in part.left_out:
        keys = tuple(key for key in each.keys if not was_created(each.status, key))
        created += len(each.keys) - len(keys)
        if keys:
            left_out.append(msgspec.structs.replace(each, keys=keys))
    return msgspec.structs.replace(part, created=created, left_out=tuple(left_out))


def _joined(one: Part, other: Part) -> Part:
    """Two compiles of the same: what either created is there."""
    more, less = (other, one) if other.created > one.created else (one, other)
    lacked = {key for each in less.left_out for key in each.keys}
    if less.created + len(lacked) < less.pipelines:
        return more  # it does not say of each pipeline what became of it
    return with_created(more, lambda _, key: key not in lacked)


def joined_parts(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Parts of several packs, two compiles of the same as one; of a set and its shards, what created more.

    What was chosen by key counts only where the set is not all there: else it would count twice.
    """
    best: dict[tuple[object, ...], Part] = {}
    for each in parts:
        known = best.get(each.of)
        best[each.of] = each if known is None else _joined(known, each)
    created: dict[str, dict[int, list[int]]] = {}  # by each shard, by set and number of shards
    for each in best.values():
        if not each.chosen:
            created.setdefault(each.set_hash, {}).setdefault(each.shards, []).append(each.created)
    # The division of a set that created the most; of equal ones the coarsest.
    most = {of: min(divided, key=lambda n: (-sum(divided[n]), n)) for of, divided in created.items()}

    def counts(part: Part) -> bool:
        shards = most.get(part.set_hash)
        if shards is None:
            return True
        return len(created[part.set_hash][shards]) < shards if part.chosen else part.shards == shards

    kept = filter(counts, best.values())
    return tuple(sorted(kept, key=lambda each: (each.set_name, each.set_hash, each.shards, each.shard)))


def missing_shards(parts: Sequence[Part]) -> list[str]:
    """What is not there of sets of which some shards are: "game.foz: shards 3 and 4 of 4"."""
    there: dict[tuple[str, str, int], set[int]] = {}
    for each in parts:
        if not each.chosen and each.shards > 1:
            there.setdefault((each.set_name, each.set_hash, each.shards), set()).add(each.shard)
    said = []
    for (name, _, shards), known in there.items():
        missing = [str(shard) for shard in range(1, min(shards, 1000) + 1) if shard not in known]
        if missing:
            *most, last = missing
            words = f"shards {', '.join(most)} and {last}" if most else f"shard {last}"
            said.append(f"{name}: {words} of {shards}")
    return said
