"""Small archives made in code, for the tests of this folder."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable

from orchestrator.sets.archive.hashes import link_hash
from orchestrator.sets.archive.modules import encode_module
from orchestrator.sets.records import RecordSource, RecordTag

MAGIC = b"\x81FOSSILIZEDB\0\0\0"


def spirv(*words: int) -> bytes:
    """A SPIR-V header and some words."""
    return struct.pack(f"<{5 + len(words)}I", 0x07230203, 0x10000, 0, 100, 0, *words)


def record(
    tag: int,
    key: int,
    payload: bytes,
    *,
    flags: int = 1,
    crc: int | None = None,
    stored: bytes | None = None,
    stored_size: int | None = None,
    size: int | None = None,
    name: bytes | None = None,
) -> bytes:
    """One record, each field as it should be or as it is asked for."""
    if stored is None:
        stored = zlib.compress(payload) if flags == 2 else payload
    return b"".join(
        (
            f"{tag:024x}{key:016x}".encode() if name is None else name,
            struct.pack(
                "<4I",
                len(stored) if stored_size is None else stored_size,
                flags,
                zlib.crc32(stored) if crc is None else crc,
                len(payload) if size is None else size,
            ),
            stored,
        )
    )


def archive(*records: bytes, version: int = 6) -> bytes:
    """A whole file."""
    return MAGIC + bytes([version]) + b"".join(records)


def application(name: str, robust: int, chain: str = "") -> bytes:
    """Payload of an application info."""
    features = f'"robustBufferAccess":{robust}' + (f',"pNext":[{chain}]' if chain else "")
    return (
        f'{{"version":6,"applicationInfo":{{"applicationName":"{name}","applicationVersion":1,'
        f'"engineVersion":2,"apiVersion":4206592}},"physicalDeviceFeatures":{{{features}}}}}'
    ).encode()


def link(app: int, tag: int, key: int) -> tuple[int, bytes]:
    """Hash and payload of a link."""
    payload = f'{{"version":6,"link":{{"application":"{app:016x}","tag":{tag},"hash":"{key:016x}"}}}}'
    return link_hash(app, tag, key), payload.encode()


def small_records() -> list[tuple[int, int, bytes]]:
    """Records of several tags, as a capture might have them; the payloads are long enough to deflate."""
    result = [(0, 0xA, application("one", 0))]
    for index in range(6):
        code = spirv(*range(index, index + 40), 0xDEADBEEF)
        result.append((4, 0x4000 + index, encode_module(code, 0, 0x4000 + index)))
        pipeline = b'{"version":6,"graphicsPipelines":{"%016x":{"flags":%d}}}' % (0x6000 + index, index)
        result.append((6, 0x6000 + index, pipeline + b" " * 40))
        key, payload = link(0xA, 6, 0x6000 + index)
        result.append((8, key, payload))
    result.append((7, 0x7000, b'{"version":6,"computePipelines":{"0000000000007000":{"flags":0}}}'))
    result.append((3, 0x3000, b""))
    return result


def small_archive(
    records: Iterable[tuple[int, int, bytes]] | None = None, *, crc: int | None = None
) -> bytes:
    """An archive of them, every second record deflated."""
    chosen = small_records() if records is None else list(records)
    return archive(
        *(
            record(tag, key, payload, flags=1 + (index % 2 if payload else 0), crc=crc)
            for index, (tag, key, payload) in enumerate(chosen)
        )
    )


def read_all(source: RecordSource) -> dict[tuple[int, int], bytes]:
    """All payloads of a source."""
    return {(tag, key): source.payload(tag, key) for tag in RecordTag for key in source.keys(tag)}
