r"""Packs of binaries: what a store holds, as one file for others of a team.

LMDB files are never exchanged: whoever opens one trusts its maker with his process. A pack is a row of
frames, little-endian:

    head     8 bytes magic "\x89OPCB\r\n\x1a" · u32 version = 1 · u32 zero
    frame    u8 kind · 3 zeros · u32 length · content                                            (repeated)
      1      a generation, MessagePack; what follows is of it
      2      a binary: 16 bytes xxh3_128 · u32 size · u8 how (0 as it is, 1 deflate) · data
      3      a pipeline, MessagePack: state key, driver's key, cost, [key, hash, size] of each binary, and
             what names its modules by identifiers
      4      the end, MessagePack: number of generations, binaries, pipelines
      5      the proof: 32 bytes MAC (mac.py, purpose "binaries") of the BLAKE2b of all before, or none

Binaries come before the pipelines that use them, each once. They are deflated unless the driver says that it
compresses them itself.

Guarantees: nothing of a pack is used before all of it was proven. Every length is checked before it is
trusted; what does not fit is a `BinaryPackError` that says where. Of what a pack inflates to, no more is held
than one binary to prove it, and one batch to take it.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from attrs import frozen

from orchestrator.devices.binaries import PipelineBinary
from orchestrator.errors import OrchestratorError
from orchestrator.stores.binary_store import BinaryStore, Generation, PutReport, StoredPipeline
from orchestrator.stores.files.atomic_file import (
    content_hash128,
    read_capped,
    write_atomically,
)
from orchestrator.stores.files.mac import MAC_SIZE, MacKey
from orchestrator.stores.kinds import BINARY_PACK_MAGIC
from orchestrator.stores.profile_file import ProfileIdentity

_HEAD: Final = struct.Struct("<8sII")
_FRAME: Final = struct.Struct("<B3xI")
_BINARY: Final = struct.Struct("<16sIB")
_VERSION: Final = 1
_GENERATION, _OF_BINARY, _PIPELINE, _END, _PROOF = 1, 2, 3, 4, 5
_PURPOSE: Final = "binaries"
_CAP: Final = 4 << 30
_MOST_BINARY: Final = 64 << 20
_MOST_OF_ONE: Final = 4096  # binaries of a pipeline
_MOST_PIPELINE: Final = 256 << 20  # bytes of a pipeline's different binaries
_AT_ONCE: Final = 256  # a batch ends with so many pipelines, bytes or uses of binaries
_BYTES_AT_ONCE: Final = 16 << 20
_USES_AT_ONCE: Final = 1 << 14

_Frame = tuple[int, int, memoryview]
"""Kind, offset and content."""


class BinaryPackError(OrchestratorError):
    """A pack cannot be used.

    Attributes:
        path: The file.
        offset: Where in it, bytes.
        reason: What is wrong there, and the likely cause.
        next_step: What to do.
    """

    def __init__(self, path: Path, offset: int, reason: str, next_step: str = "") -> None:
        super().__init__(f"{path}: at byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason
        self.next_step = next_step


class _Pipeline(msgspec.Struct, frozen=True, array_like=True):
    state_key: bytes
    driver_key: bytes
    cost_ns: int
    binaries: list[tuple[bytes, bytes, int]]
    identifiers: bytes = b""


class _End(msgspec.Struct, frozen=True, array_like=True):
    generations: int
    binaries: int
    pipelines: int


class PackReport(msgspec.Struct, frozen=True):
    """What a pack holds.

    Attributes:
        generations: Devices and global keys.
        binaries: Different binaries.
        pipelines: Pipelines.
        bytes: Size of the file.
        signed: Whether it has a MAC; of an import, whether that was checked.
        put: What the import did to the store; nothing for an export.
    """

    generations: int
    binaries: int
    pipelines: int
    bytes: int
    signed: bool
    put: PutReport = PutReport()


def export_binaries(store: BinaryStore, path: Path, key: MacKey | None = None) -> PackReport:
    """Write all that a store holds into a pack, atomically; signed where there is a key. Blocking.

    Raises:
        StoreError: The store cannot be read.
        SaveError: The pack cannot be written.
    """
    count = [0, 0, 0]
    held = ((each.about, store.pipelines(each.about)) for each in store.statistics().generations)
    size = write_atomically(path, _parts(held, key, count))
    generations, binaries, pipelines = count
    return PackReport(generations, binaries, pipelines, size, key is not None)


def device_binaries(store: BinaryStore, identity: ProfileIdentity) -> bytes:
    """What a store holds for one device, as an unsigned pack of binaries; b"" if that is nothing. Blocking.

    Raises:
        StoreError: The store cannot be read.
    """
    there = [each.about for each in store.statistics().generations if each.about.identity == identity]
    return b"".join(_parts(((each, store.pipelines(each)) for each in there), None)) if there else b""


def join_binaries(packs: Sequence[tuple[Path, bytes]]) -> bytes:
    """One unsigned pack of several, given as what messages call them and their contents.

    Of a pipeline that several have the last one counts.

    Raises:
        BinaryPackError: One is no pack, or damaged.
    """
    joined: dict[bytes, tuple[Generation, dict[bytes, Callable[[], StoredPipeline]]]] = {}
    for path, content in packs:
        read = _read(path, content)
        for generation, entry in read.entries():
            _, held = joined.setdefault(generation.digest, (generation, {}))
            held[entry.state_key] = partial(read.pipeline, entry)  # inflated when it is written
    each_of = ((about, (make() for make in held.values())) for about, held in joined.values())
    return b"".join(_parts(each_of, None))


def packed_states(path: Path, content: bytes) -> frozenset[bytes]:
    """State keys of the pipelines that a pack has binaries of; `path` is what messages call it.

    Raises:
        BinaryPackError: It is no pack, or damaged.
    """
    listed = (each for each in _frames(path, memoryview(content)) if each[0] == _PIPELINE)
    return frozenset(_decode(path, each, _Pipeline).state_key for each in listed)


@frozen
class ProvenPack:
    """A pack of binaries that is whole.

    Attributes:
        generations: The devices and drivers that it is for.
        pipelines: Number of pipelines.
        binaries: Number of different binaries.
        signed: Whether it is signed.
        checked: Whether its signature was checked.
    """

    generations: tuple[Generation, ...]
    pipelines: int
    binaries: int
    signed: bool
    checked: bool


def prove_binaries(path: Path, content: bytes | None = None, key: MacKey | None = None) -> ProvenPack:
    """Prove a pack whole, and its signature where there is a key.

    Args:
        path: What messages call it.
        content: The pack; None: what the file holds.
        key: The team's key.

    Raises:
        BinaryPackError: It is no pack, damaged, or not signed with the key.
        ReadError: The file cannot be read.
    """
    read = _read(path, read_capped(path, _CAP) if content is None else content, key, unsigned=key is None)
    found = {each.digest: each for each, _ in read.entries()}
    return ProvenPack(tuple(found.values()), read.end.pipelines, read.end.binaries, read.signed, read.checked)


def _parts(
    held: Iterable[tuple[Generation, Iterable[StoredPipeline]]],
    key: MacKey | None,
    count: list[int] | None = None,
) -> Iterator[bytes]:
    count = [0, 0, 0] if count is None else count
    digest = hashlib.blake2b()

    def told(part: bytes) -> bytes:
        digest.update(part)
        return part

    def frame(kind: int, content: bytes) -> bytes:
        return told(_FRAME.pack(kind, len(content)) + content)

    yield told(_HEAD.pack(BINARY_PACK_MAGIC, _VERSION, 0))
    packed: set[bytes] = set()
    for about, pipelines in held:
        count[0] += 1
        yield frame(_GENERATION, msgspec.msgpack.encode(about))
        for pipeline in pipelines:
            listed = []
            for binary in pipeline.binaries:
                name = content_hash128(binary.data)
                listed.append((binary.key, name, len(binary.data)))
                if name not in packed:
                    packed.add(name)
                    count[1] += 1
                    yield frame(_OF_BINARY, _packed(name, bytes(binary.data), about.compressed))
            count[2] += 1
            entry = _Pipeline(
                pipeline.state_key, pipeline.driver_key, pipeline.cost_ns, listed, pipeline.identifiers
            )
            yield frame(_PIPELINE, msgspec.msgpack.encode(entry))
    yield frame(_END, msgspec.msgpack.encode(_End(*count)))
    proof = b"" if key is None else key.sign(_PURPOSE, [digest.digest()])
    yield _FRAME.pack(_PROOF, len(proof)) + proof


def _packed(name: bytes, data: bytes, compressed: bool) -> bytes:
    small = data if compressed else zlib.compress(data, 6)
    if len(small) >= len(data):
        return _BINARY.pack(name, len(data), 0) + data
    return _BINARY.pack(name, len(data), 1) + small


def import_binaries(
    store: BinaryStore, path: Path, key: MacKey | None = None, *, unsigned: bool = False
) -> PackReport:
    """Take a pack into a store, after all of it was proven. Blocking.

    Args:
        store: The store.
        path: The pack.
        key: The team's key.
        unsigned: Take a pack that nobody signed, or whose MAC cannot be checked for want of a key.

    Raises:
        BinaryPackError: It is no pack, damaged, signed with another key, or not signed at all.
        ReadError: It cannot be read.
        StoreError: The store cannot be written; what was committed before stays.
    """
    return import_content(store, path, read_capped(path, _CAP), key, unsigned=unsigned)


def import_content(
    store: BinaryStore, path: Path, content: bytes, key: MacKey | None = None, *, unsigned: bool = False
) -> PackReport:
    """As `import_binaries`, of a pack that was read already; `path` is what messages call it."""
    read = _read(path, content, key, unsigned=unsigned)
    for _ in read.entries():  # once without using anything
        pass
    put = PutReport()
    for generation, batch in read.batches():
        put += store.put(generation, batch)
        del batch  # before the next one is inflated
    end = read.end
    return PackReport(end.generations, end.binaries, end.pipelines, len(content), read.checked, put)


def _read(path: Path, content: bytes, key: MacKey | None = None, *, unsigned: bool = True) -> _Reading:
    """A pack whose frames, and proof where there is a key, were checked."""
    view = memoryview(content)
    counts: Counter[int] = Counter()
    ends = deque[_Frame](maxlen=2)
    for frame in _frames(path, view):  # which are many, so none is kept
        counts[frame[0]] += 1
        ends.append(frame)
    kind, start, proof = ends[-1]
    if kind != _PROOF or ends[0][0] != _END:
        raise BinaryPackError(path, start, "the pack does not end as a pack does: it is cut")
    checked = _check_proof(path, view, start, proof, key, unsigned)
    end = _decode(path, ends[0], _End)
    counted = [counts[each] for each in (_GENERATION, _OF_BINARY, _PIPELINE)]
    if counted != [end.generations, end.binaries, end.pipelines]:
        raise BinaryPackError(path, ends[0][1], f"it has {counted} frames of each kind, and says {end}")
    binaries: dict[bytes, memoryview] = {}
    for kind, start, content_of in _frames(path, view):
        if kind == _OF_BINARY:
            if len(content_of) < _BINARY.size:
                raise BinaryPackError(path, start, "a binary is cut")
            if binaries.setdefault(bytes(content_of[:16]), content_of) is not content_of:
                raise BinaryPackError(path, start, "a binary stands twice")
    return _Reading(path, view, counts.total() - 2, binaries, end, bool(len(proof)), checked)


def _check_proof(
    path: Path,
    content: memoryview,
    start: int,
    proof: memoryview,
    key: MacKey | None,
    unsigned: bool,
) -> bool:
    if len(proof) not in (0, MAC_SIZE):
        raise BinaryPackError(path, start, f"a MAC has {MAC_SIZE} bytes, not {len(proof)}")
    digest = hashlib.blake2b(content[: start - _FRAME.size]).digest()
    if key is not None and proof:
        if not key.proves(bytes(proof), _PURPOSE, [digest]):
            raise BinaryPackError(
                path, start, "its MAC is not of this key: it was signed with another one, or changed since"
            )
        return True
    if not unsigned:
        raise BinaryPackError(
            path,
            start,
            "it is signed, and no key was given to check that" if proof else "nobody signed it",
            "name its key with --key, or take it as it is with --unsigned"
            if proof
            else "take it as it is with --unsigned, or have it signed: `binaries export --key FILE`",
        )
    return False


def _frames(path: Path, content: memoryview) -> Iterator[_Frame]:
    """Kind, offset and content of each frame."""
    if len(content) < _HEAD.size or _HEAD.unpack_from(content)[0] != BINARY_PACK_MAGIC:
        raise BinaryPackError(path, 0, "it is no pack of binaries")
    _, version, zero = _HEAD.unpack_from(content)
    if version != _VERSION or zero:
        raise BinaryPackError(path, 8, f"it has version {version}; this program reads {_VERSION}")
    at = _HEAD.size
    while at < len(content):
        if at + _FRAME.size > len(content):
            raise BinaryPackError(path, at, "a frame is cut")
        kind, length = _FRAME.unpack_from(content, at)
        start = at + _FRAME.size
        if any(content[at + 1 : at + 4]) or not _GENERATION <= kind <= _PROOF:
            raise BinaryPackError(path, at, "there is no frame")
        if length > len(content) - start:
            raise BinaryPackError(
                path, at, f"a frame says {length} bytes, and {len(content) - start} are left"
            )
        yield kind, start, content[start : start + length]
        if kind == _PROOF and start + length != len(content):
            raise BinaryPackError(path, start + length, "something follows the end")
        at = start + length
    if at == _HEAD.size:
        raise BinaryPackError(path, at, "it has no frames")


_T = TypeVar("_T")


def _decode(path: Path, frame: _Frame, kind: type[_T]) -> _T:
    _, start, content = frame
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BinaryPackError(path, start, f"a frame cannot be read: {error}") from None


@frozen
class _Reading:
    """A pack with so many frames between head and end; `binaries` are those of the binaries, by name."""

    path: Path
    content: memoryview
    frames: int
    binaries: dict[bytes, memoryview]
    end: _End
    signed: bool
    checked: bool

    def entries(self) -> Iterator[tuple[Generation, _Pipeline]]:
        """Each pipeline with its generation; all is checked on the way, and nothing inflated is kept."""
        proven: set[bytes] = set()
        generation: Generation | None = None
        for frame in islice(_frames(self.path, self.content), self.frames):
            kind, start, content = frame
            if kind == _OF_BINARY:
                self._inflated(start, content)
                proven.add(bytes(content[:16]))
                continue
            if kind == _GENERATION:
                generation = _decode(self.path, frame, Generation)
                continue
            if kind != _PIPELINE or generation is None:
                raise BinaryPackError(self.path, start, "a frame stands where it does not belong")
            entry = _decode(self.path, frame, _Pipeline)
            self._check(start, entry, proven)
            yield generation, entry

    def batches(self) -> Iterator[tuple[Generation, list[StoredPipeline]]]:
        """Pipelines in batches, each binary once in a batch."""
        held: dict[bytes, bytes] = {}
        batch: list[StoredPipeline] = []
        uses = 0
        of: Generation | None = None
        for generation, entry in self.entries():
            full = (
                len(batch) >= _AT_ONCE
                or uses >= _USES_AT_ONCE
                or sum(map(len, held.values())) >= _BYTES_AT_ONCE
            )
            if of is not None and batch and (full or generation is not of):
                yield of, batch
                held, batch, uses = {}, [], 0
            of = generation
            batch.append(self.pipeline(entry, held))
            uses += len(entry.binaries)
        if of is not None and batch:
            yield of, batch

    def pipeline(self, entry: _Pipeline, held: dict[bytes, bytes] | None = None) -> StoredPipeline:
        """A pipeline that `entries` gave; `held` is what was inflated before, and what is for it."""
        held = {} if held is None else held
        found = []
        for key, name, _ in entry.binaries:
            if name not in held:
                held[name] = self._inflated(0, self.binaries[name])
            found.append(PipelineBinary(key, held[name]))
        return StoredPipeline(
            entry.state_key, entry.driver_key, tuple(found), entry.cost_ns, entry.identifiers
        )

    def _check(self, start: int, entry: _Pipeline, proven: set[bytes]) -> None:
        """That a pipeline can be stored, and of binaries that were proven; without its data."""
        if len(entry.binaries) > _MOST_OF_ONE:
            raise BinaryPackError(self.path, start, f"a pipeline has {len(entry.binaries)} binaries")
        sizes = {}
        for _, name, size in entry.binaries:
            if name not in proven:
                raise BinaryPackError(
                    self.path, start, f"a pipeline needs the binary {name.hex()}, which is not there"
                )
            _, sizes[name], _ = _BINARY.unpack_from(self.binaries[name])
            if sizes[name] != size:
                raise BinaryPackError(self.path, start, f"the binary {name.hex()} has another size")
        if sum(sizes.values()) > _MOST_PIPELINE:
            raise BinaryPackError(self.path, start, f"a pipeline has {sum(sizes.values())} bytes of binaries")
        keys = tuple(PipelineBinary(key, b"") for key, _, _ in entry.binaries)
        try:
            StoredPipeline(entry.state_key, entry.driver_key, keys, entry.cost_ns, entry.identifiers).check()
        except ValueError as error:
            raise BinaryPackError(self.path, start, str(error)) from None

    def _inflated(self, start: int, content: memoryview) -> bytes:
        name, size, how = _BINARY.unpack_from(content)
        packed = content[_BINARY.size :]
        if size > _MOST_BINARY or how > 1:
            raise BinaryPackError(self.path, start, f"a binary of {size} bytes, packed in way {how}")
        if how:
            inflater = zlib.decompressobj()
            try:
                data = inflater.decompress(packed, size + 1)
            except zlib.error as error:
                raise BinaryPackError(self.path, start, f"a binary cannot be inflated: {error}") from None
        else:
            data = bytes(packed)
        if len(data) != size or content_hash128(data) != name:
            raise BinaryPackError(self.path, start, f"the binary {name.hex()} is not what was packed")
        return data
