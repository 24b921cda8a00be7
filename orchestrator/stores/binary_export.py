r"""Exports of binaries: what a store holds, as one file for others of a team.

    head     8 bytes magic "\x89OPCB\r\n\x1a" · u32 version = 3 · u32 zero, little-endian
    frame    u32 length · one MessagePack array (repeated): a generation; a binary; a pipeline of the last
             generation, whose binaries stood before it; at the end the number of each
    proof    u32 length · Ed25519 signature (purpose "binaries") of the BLAKE2b of all before, or nothing

Nothing of an export is used before all of it was proven; what does not fit is an error that says where.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from attrs import field, frozen
from msgspec.msgpack import encode

from orchestrator.devices.binary_data import PipelineBinary
from orchestrator.errors import OrchestratorError
from orchestrator.stores.binary_store import BinaryStore, Generation, PutReport, StoredPipeline
from orchestrator.stores.files.atomic_file import content_hash128, read_capped, write_atomically
from orchestrator.stores.profile_file import ProfileIdentity

if TYPE_CHECKING:
    from orchestrator.stores.signing import PublicKey, SigningKey

EXPORT_MAGIC: Final = b"\x89OPCB\r\n\x1a"
_HEAD: Final = struct.Struct("<8sII")
_LENGTH: Final = struct.Struct("<I")
_VERSION: Final = 3
_PURPOSE: Final = "binaries"
_CAP: Final = 4 << 30
_MOST_BINARY: Final = 64 << 20
_MOST_PIPELINE: Final = 256 << 20  # bytes of a pipeline's different binaries
_STORED_AT_ONCE: Final = 256  # pipelines


class BinaryExportError(OrchestratorError):
    """An export cannot be used: `reason` says what is wrong at byte `offset`, `next_step` what to do."""

    def __init__(self, path: Path, offset: int, reason: str, next_step: str = "") -> None:
        super().__init__(f"{path}: at byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason
        self.next_step = next_step


class _Generation(msgspec.Struct, frozen=True, array_like=True, tag="generation"):
    about: Generation


class _Binary(msgspec.Struct, frozen=True, array_like=True, tag="binary"):
    name: bytes
    size: int
    is_deflated: bool
    data: bytes

    def inflated(self) -> bytes:
        """Raises ValueError where it is not what its name says."""
        if not 0 <= self.size <= _MOST_BINARY:
            raise ValueError(f"a binary of {self.size} bytes")
        data = self.data
        if self.is_deflated:
            try:
                data = zlib.decompressobj().decompress(data, self.size + 1)
            except zlib.error as error:
                raise ValueError(f"a binary cannot be inflated: {error}") from None
        if len(data) != self.size or content_hash128(data) != self.name:
            raise ValueError(f"the binary {self.name.hex()} is not what was exported")
        return data


class _Pipeline(msgspec.Struct, frozen=True, array_like=True, tag="pipeline"):
    state_key: bytes
    driver_key: bytes
    binaries: list[tuple[bytes, bytes]]  # key of the driver, name
    identifiers: bytes


class _End(msgspec.Struct, array_like=True, tag="end"):
    generations: int = 0
    binaries: int = 0
    pipelines: int = 0


_decoder: Final = msgspec.msgpack.Decoder(_Generation | _Binary | _Pipeline | _End)
_Held = Iterable[tuple[Generation, Iterable[StoredPipeline]]]


class ExchangeReport(msgspec.Struct, frozen=True):
    """What was exported or imported: different binaries, pipelines, bytes of the file.

    `signed`: whether it has a signature; of an import, whether that was checked. `put`: what the import did.
    """

    binaries: int
    pipelines: int
    bytes: int
    signed: bool
    put: PutReport = PutReport()


# --- writing


def export_binaries(store: BinaryStore, path: Path, key: SigningKey | None = None) -> ExchangeReport:
    """Write all that a store holds into a file, atomically; signed where there is a key. Blocking.

    Raises:
        ReadError: The store cannot be read.
        SaveError: The file cannot be written.
    """
    held = ((each.about, store.pipelines(each.about)) for each in store.statistics().generations)
    count = _End()
    size = write_atomically(path, _encoded(held, key, count))
    return ExchangeReport(count.binaries, count.pipelines, size, key is not None)


def device_export(store: BinaryStore, identity: ProfileIdentity) -> bytes:
    """What a store holds for one device, as an unsigned export; b"" if that is nothing. Raises ReadError."""
    there = [each.about for each in store.statistics().generations if each.about.identity == identity]
    return b"".join(_encoded((each, store.pipelines(each)) for each in there)) if there else b""


def join_exports(exports: Sequence[tuple[Path, bytes]]) -> bytes:
    """One unsigned export of several, given as what messages call them and their contents; b"" of none.

    Of a pipeline that several have the last one counts.

    Raises:
        BinaryExportError: One is damaged.
    """
    if len(exports) <= 1:
        return exports[0][1] if exports else b""
    joined: dict[bytes, tuple[Generation, dict[bytes, Callable[[], StoredPipeline]]]] = {}
    for path, content in exports:
        for about, state, make in prove_export(path, content).stored():
            joined.setdefault(about.digest, (about, {}))[1][state] = make
    return b"".join(
        _encoded((about, (make() for make in states.values())) for about, states in joined.values())
    )


def _encoded(held: _Held, key: SigningKey | None = None, count: _End | None = None) -> Iterator[bytes]:
    """An export in parts; `count` gets the numbers of what is in it."""
    digest = hashlib.blake2b()
    for part in _frames_of(held, _End() if count is None else count):
        digest.update(part)
        yield part
    proof = b"" if key is None else key.sign(_PURPOSE, digest.digest())
    yield _LENGTH.pack(len(proof)) + proof


def _frames_of(held: _Held, count: _End) -> Iterator[bytes]:
    def frame(content: _Generation | _Binary | _Pipeline | _End) -> bytes:
        encoded = encode(content)
        return _LENGTH.pack(len(encoded)) + encoded

    yield _HEAD.pack(EXPORT_MAGIC, _VERSION, 0)
    exported: set[bytes] = set()
    for about, pipelines in held:
        count.generations += 1
        yield frame(_Generation(about))
        for each in pipelines:
            names = [content_hash128(binary.data) for binary in each.binaries]
            for name, binary in zip(names, each.binaries, strict=True):
                if name not in exported:
                    exported.add(name)
                    yield frame(_binary(name, bytes(binary.data), deflate=not about.compressed))
            listed = [(binary.key, name) for name, binary in zip(names, each.binaries, strict=True)]
            count.pipelines += 1
            yield frame(_Pipeline(each.state_key, each.driver_key, listed, each.identifiers))
    count.binaries = len(exported)
    yield frame(count)


def _binary(name: bytes, data: bytes, *, deflate: bool) -> _Binary:
    small = zlib.compress(data, 6) if deflate else data
    return (
        _Binary(name, len(data), True, small)
        if len(small) < len(data)
        else _Binary(name, len(data), False, data)
    )


# --- reading


@frozen
class ProvenExport:
    """An export that is whole; whether it has a signature, and whether that was checked."""

    signed: bool
    checked: bool
    _binaries: dict[bytes, _Binary] = field(factory=dict, repr=False)
    _pipelines: list[tuple[Generation, list[_Pipeline]]] = field(factory=list, repr=False)

    @property
    def generations(self) -> tuple[Generation, ...]:
        """The devices and drivers that it is for."""
        return tuple({each.digest: each for each, _ in self._pipelines}.values())

    @property
    def pipelines(self) -> int:
        """Number of pipelines."""
        return sum(len(pipelines) for _, pipelines in self._pipelines)

    @property
    def binaries(self) -> int:
        """Number of different binaries."""
        return len(self._binaries)

    def states(self) -> frozenset[bytes]:
        """State keys of its pipelines."""
        return frozenset(state for _, state, _ in self.stored())

    def stored(self) -> Iterator[tuple[Generation, bytes, Callable[[], StoredPipeline]]]:
        """Generation and state key of its pipelines, and what inflates each."""
        for about, pipelines in self._pipelines:
            for each in pipelines:
                yield about, each.state_key, partial(self._inflated, each)

    def _inflated(self, pipeline: _Pipeline) -> StoredPipeline:
        binaries = (PipelineBinary(key, self._binaries[name].inflated()) for key, name in pipeline.binaries)
        return StoredPipeline(pipeline.state_key, pipeline.driver_key, tuple(binaries), pipeline.identifiers)

    def take(self, frame: _Generation | _Binary | _Pipeline) -> None:
        """Add a frame; raises ValueError where it is wrong."""
        if isinstance(frame, _Generation):
            self._pipelines.append((frame.about, []))
            return
        if isinstance(frame, _Binary):
            frame.inflated()
            if self._binaries.setdefault(frame.name, frame) is not frame:
                raise ValueError("a binary stands twice")
            return
        if not self._pipelines:
            raise ValueError("a pipeline stands before its generation")
        names = {name for _, name in frame.binaries}
        if missing := names - self._binaries.keys():
            raise ValueError(f"a pipeline needs the binary {min(missing).hex()}, which is not there")
        if (size := sum(self._binaries[name].size for name in names)) > _MOST_PIPELINE:
            raise ValueError(f"a pipeline has {size} bytes of binaries")
        keys = tuple(PipelineBinary(key, b"") for key, _ in frame.binaries)
        StoredPipeline(frame.state_key, frame.driver_key, keys, frame.identifiers).check()
        self._pipelines[-1][1].append(frame)


def import_binaries(
    store: BinaryStore,
    path: Path,
    trust: PublicKey | None = None,
    *,
    content: bytes | None = None,
    unsigned: bool = False,
) -> ExchangeReport:
    """Take an export into a store, after all of it was proven; otherwise as `prove_export`. Blocking.

    Raises:
        SaveError: The store cannot be written; what was committed before stays.
    """
    content = read_capped(path, _CAP) if content is None else content
    proven = prove_export(path, content, trust, unsigned=unsigned)
    put = PutReport()
    batch: list[StoredPipeline] = []
    for about, pipelines in groupby(proven.stored(), key=itemgetter(0)):
        for _, _, make in pipelines:
            batch.append(make())
            if len(batch) == _STORED_AT_ONCE:
                put, batch = put + store.put(about, batch), []
        put, batch = put + store.put(about, batch), []
    return ExchangeReport(proven.binaries, proven.pipelines, len(content), proven.checked, put)


def prove_export(
    path: Path, content: bytes | None = None, trust: PublicKey | None = None, *, unsigned: bool = True
) -> ProvenExport:
    """Prove an export whole, and its signature where a key is trusted.

    `path` is what messages call it; without `content`, the file is read. `unsigned` takes one that nobody
    signed, or whose signature cannot be checked for want of a key.

    Raises:
        BinaryExportError: It is no export, damaged, signed by another key, or not signed at all.
        ReadError: The file cannot be read.
    """
    view = memoryview(read_capped(path, _CAP) if content is None else content)
    frames = [*_frames(path, view)]
    if len(frames) < 2:
        raise BinaryExportError(path, len(view), "it is cut")
    at, proof = frames.pop()
    end: _End | None = None
    checked = _check_proof(path, view, at, bytes(proof), trust, unsigned=unsigned)
    proven = ProvenExport(bool(proof), checked)
    for start, frame in frames:
        try:
            decoded = _decoder.decode(frame)
            if isinstance(decoded, _End):
                end = decoded
            else:
                proven.take(decoded)
        except (ValueError, msgspec.MsgspecError) as error:
            raise BinaryExportError(path, start, f"a frame cannot be used: {error}") from None
    found = _End(len(proven._pipelines), proven.binaries, proven.pipelines)
    if end != found:
        raise BinaryExportError(path, at, f"it is cut: it says {end}, and has {found}")
    return proven


def _frames(path: Path, content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Offset and content of each frame, and of the proof."""
    if len(content) < _HEAD.size or (head := _HEAD.unpack_from(content))[0] != EXPORT_MAGIC:
        raise BinaryExportError(path, 0, "it is no export of binaries")
    if head[1:] != (_VERSION, 0):
        step = "export it again with this version, and sign it again"
        raise BinaryExportError(path, 8, f"it has version {head[1]}; this program reads {_VERSION}", step)
    at = _HEAD.size
    while at < len(content):
        start = at + _LENGTH.size
        length = _LENGTH.unpack_from(content, at)[0] if start <= len(content) else 1 << 32
        if length > len(content) - start:
            raise BinaryExportError(path, at, f"it is cut: {max(0, len(content) - start)} bytes are left")
        yield start, content[start : start + length]
        at = start + length


def _check_proof(
    path: Path, content: memoryview, start: int, proof: bytes, trust: PublicKey | None, *, unsigned: bool
) -> bool:
    """Whether the signature was checked."""
    if trust is not None and proof:
        if not trust.proves(proof, _PURPOSE, hashlib.blake2b(content[: start - _LENGTH.size]).digest()):
            why = "it was not signed by the trusted key, or was changed since"
            raise BinaryExportError(path, start, why)
        return True
    if unsigned:
        return False
    if proof:
        step = "name the public key of who signed it with --trust, or take it as it is with --unsigned"
        raise BinaryExportError(path, start, "it is signed, and no public key was given to check that", step)
    step = "take it as it is with --unsigned, or have it signed: `binaries export --sign KEY`"
    raise BinaryExportError(path, start, "nobody signed it", step)
