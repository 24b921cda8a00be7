"""What the fuzz suite throws bytes at: every place where bytes of unknown origin are first looked at.

Each has good inputs to start from, and a ceiling on the memory that it may take for so many bytes.

Guarantees: a target raises typed errors only, or it has a bug; whatever else it lets out is a finding. The
ceiling is on what Python and numpy allocate at a time (tracemalloc), the input apart.
"""

from __future__ import annotations

import functools
import tempfile
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
from attrs import frozen

from orchestrator.children.protocol import FrameError, FrameReader, pack_frame
from orchestrator.devices.request import DeviceRequest
from orchestrator.errors import OrchestratorError, RecordError
from orchestrator.sets.archive.modules import decode_module
from orchestrator.sets.archive.reader import MAGIC, Archive
from orchestrator.sets.groups import decode_application, decode_link
from orchestrator.sets.image.documents import decode_document
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import RecordTag
from orchestrator.sets.sample import sample_path
from orchestrator.sets.spirv.validation import without_source_notes
from orchestrator.sets.spirv.walk import HEADER_WORDS, instructions, spirv_words, walk_spirv
from orchestrator.stores.cache_file import (
    PREFIX_HEADER_SIZE,
    PipelineCacheHeader,
    PipelineCachePrefixHeader,
    prove_content,
)
from orchestrator.stores.inspection import inspect_cache_file
from orchestrator.supervise.messages import Answer, Exited, Open, Raised, Request, Survived, Try
from tests.stores.faults.sets import OURS, file_of

MIB = 1 << 20
# The most that deflate can make of a byte (zlib, "Technical Details").
DEFLATE_RATIO = 1032


@frozen
class Target:
    """Something that takes bytes."""

    name: str  # For messages and counts.
    call: Callable[[bytes], object]  # Takes the bytes; raises typed errors only.
    seeds: Callable[[], tuple[bytes, ...]]  # Good inputs, and bad ones worth starting from.
    base_bytes: int  # What it may allocate for any input.
    bytes_a_byte: int  # What it may allocate for each byte of input beyond that.
    tokens: tuple[bytes, ...] = ()  # Pieces that mutations may put in.


def judge(target: Target, data: bytes) -> str | None:
    """Give a target bytes; what is wrong with how it took them, or None."""
    tracemalloc.start()
    try:
        target.call(data)
    except OrchestratorError:
        pass  # what it should do with bad bytes
    except Exception as error:  # noqa: BLE001 - that it is none of the typed ones is the finding
        return f"{type(error).__name__}: {error}"
    finally:
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    ceiling = target.base_bytes + target.bytes_a_byte * len(data)
    return (
        None
        if taken <= ceiling
        else f"{taken} bytes allocated for {len(data)}, over the ceiling of {ceiling}"
    )


# --- archives


@functools.cache
def _record(tag: RecordTag, key: int, payload: bytes, size: int | None = None, flags: int = 2) -> bytes:
    stored = zlib.compress(payload) if flags == 2 else payload
    numbers = (len(stored), flags, zlib.crc32(stored), len(payload) if size is None else size)
    name = f"{int(tag):024x}{key:016x}".encode()
    return name + b"".join(each.to_bytes(4, "little") for each in numbers) + stored


@functools.cache
def archives() -> tuple[bytes, ...]:
    """A small good archive, an empty one, one of a bomb that says what it is, and one of a bomb that lies."""
    head = MAGIC + bytes([6])
    with Archive.open(sample_path()) as sample:
        records = [
            _record(tag, key, sample.payload(tag, key)) for tag in RecordTag for key in sample.keys(tag)[:2]
        ]
    zeros = bytes(48 * MIB)
    return (
        head + b"".join(records),
        head,
        head + _record(RecordTag.SHADER_MODULE, 1, zeros),
        head + _record(RecordTag.SHADER_MODULE, 1, zeros, size=64),
        head + _record(RecordTag.COMPUTE_PIPELINE, 1, b"{}", flags=1),
    )


@functools.cache
def _scratch() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="orchestrator-fuzz-")
    # Kept open as long as the process lives.
    _KEPT.append(folder)
    return Path(folder.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def read_archive(data: bytes) -> None:
    """Open an archive, read every record, hash every module, group the pipelines."""
    path = _scratch() / "fuzz.foz"
    path.write_bytes(data)
    with PipelineSet.open(path) as opened:
        opened.verify()
        assert len(opened.groups) >= 1
        assert opened.damage is not None
        opened.content_hash()


# --- JSON


@functools.cache
def documents() -> tuple[bytes, ...]:
    """One payload of each tag, the tag in front as a byte; and some that are deep, wide or circular."""
    found = []
    with Archive.open(sample_path()) as sample:
        for tag in RecordTag:
            found += [bytes([tag]) + sample.payload(tag, key) for key in sample.keys(tag)[:2]]
    for tag in (RecordTag.GRAPHICS_PIPELINE, RecordTag.SAMPLER, RecordTag.APPLICATION_INFO):
        found += [
            bytes([tag]) + b"[" * 20_000,
            bytes([tag]) + b'{"pNext":' * 5_000,
            bytes([tag]) + b'{"version":6,"graphicsPipelines":{"1":' + b'{"pNext":[' * 2_000,
        ]
    return tuple(found)


def read_document(data: bytes) -> None:
    """Decode a payload as that of the tag that its first byte names."""
    if not data:
        return
    tags = tuple(RecordTag)
    tag, payload = tags[data[0] % len(tags)], data[1:]
    if tag is RecordTag.SHADER_MODULE:
        decode_module(1, payload)
    elif tag is RecordTag.APPLICATION_INFO:
        decode_application(1, payload)
    elif tag is RecordTag.APPLICATION_BLOB_LINK:
        decode_link(1, payload)
    elif tag is not RecordTag.BUCKET_INFO:  # nothing of it is read
        decode_document(tag, 1, payload)


# --- SPIR-V


@functools.cache
def modules() -> tuple[bytes, ...]:
    """Some modules of the sample, and headers with the largest bound."""
    with PipelineSet.open(sample_path()) as sample:
        keys = sample.records.keys(RecordTag.SHADER_MODULE)
        found = [sample.module(key).code for key in keys[:12]]
    header = b"\x03\x02\x23\x07\x00\x06\x01\x00\x00\x00\x00\x00\xff\xff\x3f\x00\x00\x00\x00\x00"
    return (*found, header, header + b"\x11\x00\x02\x00\x01\x00\x00\x00")


def read_module(data: bytes) -> None:
    """Walk a module, all of it and its preamble alone, and leave out its notes."""
    assert len(without_source_notes(data)) <= len(data)
    module = walk_spirv(data)
    for each in module.entry_points:
        module.local_size(each.id, {})
    assert sum(end - at for _, at, end in instructions(spirv_words(data))) == len(data) // 4 - HEADER_WORDS


# --- headers of cache files


def headers() -> tuple[bytes, ...]:
    """A good cache file, its parts, and bare data of a driver."""
    good = file_of(OURS)
    return good, good[:PREFIX_HEADER_SIZE], good[PREFIX_HEADER_SIZE:], good[:40]


def read_header(data: bytes) -> None:
    """Prove a cache file; inspect it as a stranger's; parse each header alone."""
    path = _scratch() / "fuzz.pipeline-cache"
    path.write_bytes(data)
    assert inspect_cache_file(path).size <= len(data)
    failures = 0
    for parse in (
        lambda: prove_content(data[:PREFIX_HEADER_SIZE], data[PREFIX_HEADER_SIZE:]),
        lambda: PipelineCachePrefixHeader.unpack(data),
        lambda: PipelineCacheHeader.unpack(data),
    ):
        try:
            parse()
        except OrchestratorError:
            failures += 1
    if failures == 3:
        raise RecordError(0, 0, "none of them")


# --- frames


def frames() -> tuple[bytes, ...]:
    """Good messages in both directions, and bodies that claim much."""
    request = DeviceRequest(features=frozenset({("VkPhysicalDeviceFeatures", "robustBufferAccess")}))
    messages: list[msgspec.Struct] = [
        Open(("set.foz",), 3, 4, "", "radv:navi21"),
        Try(1, b"", msgspec.msgpack.encode(request), (("graphics", 7),)),
        Raised.of(0, OrchestratorError("no")),
        Survived(1, 7, 1_000),
        Exited(1, -11),
    ]
    each = [pack_frame(message) for message in messages]
    claims = [
        b"\xff\xff\xff\xff",
        b"\x05\x00\x00\x00\xdd\xff\xff\xff\xff",
        b"\x05\x00\x00\x00\xc6\xff\xff\xff\xff",
    ]
    deep = (4_000).to_bytes(4, "little") + b"\x91" * 4_000
    return (*each, b"".join(each), *claims, deep)


def taken(kind: object, data: bytes, size: int) -> tuple[list[object], bool]:
    """The messages in some bytes that come in pieces, and whether nothing is left."""
    reader: FrameReader[object] = FrameReader(kind)
    found = []
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size])
        while (message := reader.take()) is not None:
            found.append(message)
    try:
        reader.end()
    except FrameError:
        return found, False
    return found, True


def read_frames(data: bytes) -> None:
    """Read both directions, whole and in pieces."""
    for kind in (Request, Answer):
        try:
            expected = taken(kind, data, max(1, len(data)))
        except OrchestratorError:
            continue
        assert taken(kind, data, 7) == expected


TARGETS = (
    Target(
        ".foz",
        read_archive,
        archives,
        64 * MIB,
        DEFLATE_RATIO * 4,
        (b"0" * 23, b"FOSSILIZEDB", b"\x02\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x04"),
    ),
    Target(
        "JSON",
        read_document,
        documents,
        16 * MIB,
        400,
        (
            b"{",
            b"[",
            b'"pNext":[',
            b'"sType":',
            b"1e999",
            b"-1",
            b"18446744073709551616",
            b'"\\ud800"',
            b"null",
        ),
    ),
    Target(
        "SPIR-V",
        read_module,
        modules,
        4 * MIB,
        64,
        (b"\x11\0\x02\0", b"\x0f\0\xff\xff", b"\x36\0\x05\0", b"\0\0\0\0", b"\xff\xff\xff\xff"),
    ),
    Target("headers", read_header, headers, 2 * MIB, 16, (b"\x89OPCF\r\n\x1a", b"\0" * 16, b"\xff" * 8)),
    Target(
        "frames", read_frames, frames, 4 * MIB, 64, (b"\xdd\xff\xff\xff\xff", b"\x91", b"\0\0\0\0", b"\x81")
    ),
)
