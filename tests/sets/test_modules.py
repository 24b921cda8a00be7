"""Contract: shader modules between payload and SPIR-V."""

from __future__ import annotations

import base64
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import RecordError
from orchestrator.sets.archive.hashes import module_hash
from orchestrator.sets.archive.modules import (
    CODE_SIZE_MAX,
    ShaderModule,
    decode_module,
    encode_module,
    encode_varint,
)
from tests.sets.archive.small_archives import spirv

CODE = spirv(1, 0x80, 0xFFFFFFFF)
KEY = module_hash(CODE, 2)


def payload(binary: bytes | None = None, *, key: int = KEY, version: object = 6, **changes: object) -> bytes:
    """A payload of CODE, with changes; a change to None removes the field."""
    encoded = encode_varint(struct.unpack(f"<{len(CODE) // 4}I", CODE)) if binary is None else binary
    fields = {"varintOffset": 0, "varintSize": len(encoded), "codeSize": len(CODE), "flags": 2} | changes
    module = {name: value for name, value in fields.items() if value is not None}
    document = {"version": version, "shaderModules": {f"{key:016x}": module}}
    return msgspec.json.encode(document) + b"\0" + encoded


def old_payload(code: str, size: int) -> bytes:
    document = {"version": 5, "shaderModules": {f"{KEY:016x}": {"flags": 2, "codeSize": size, "code": code}}}
    return msgspec.json.encode(document)


def test_the_encoded_form_is_the_varint_form() -> None:
    assert encode_module(CODE, 2) == encode_module(CODE, 2, KEY) == payload()


def test_the_old_form() -> None:
    text = base64.b64encode(CODE).decode()
    assert decode_module(KEY, old_payload(text, len(CODE))) == ShaderModule(KEY, CODE, 2, 5)


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (b"", "shader module"),
        (b"\0", "shader module"),
        (b"{", "truncated"),
        (b"[1]", "object"),
        (b'{"version":6}', "shaderModules"),
        (payload(version=7), "version 7"),
        (payload(version="6"), "int"),
        (payload(key=KEY ^ 1), "no module of that hash"),
        (payload(codeSize=len(CODE) - 1), "multiple of four"),
        (payload(codeSize=len(CODE) - 4), "varint too long"),
        (payload(codeSize=len(CODE) + 4), "varint truncated"),
        (payload(codeSize=1 << 50), f"cap of {CODE_SIZE_MAX}"),
        (payload(codeSize=-4), ">= 0"),
        (payload(codeSize=None), "codeSize"),
        (payload(flags=1 << 32), "<= 4294967295"),
        (payload(varintOffset=1), "binary part"),
        (payload(varintSize=1 << 60), "binary part"),
        (payload(varintOffset=None), "neither"),
        (payload().split(b"\0")[0], "binary part"),
        (payload(b"\1", codeSize=4, varintSize=1), "fewer than the header"),
        (payload(b"", codeSize=0, varintSize=0), "fewer than the header"),
        (old_payload("!!!!", 24), "base64"),
        (old_payload(base64.b64encode(CODE).decode()[:-1], len(CODE)), "base64"),
        (old_payload(base64.b64encode(CODE).decode(), len(CODE) - 4), "bytes"),
        (b'{"version":6,"shaderModules":{},"x":' + b"[" * 100_000, "shader module"),
        (b'{"version":6,"shaderModules":{"\xff":1}}', "shader module"),
    ],
)
def test_damage_is_a_record_error(damaged: bytes, reason: str) -> None:
    with pytest.raises(RecordError, match=reason) as error:
        decode_module(KEY, damaged)
    assert (error.value.tag, error.value.key) == (4, KEY)


@given(st.integers(0, len(payload()) - 1), st.integers(0, 255))
def test_a_changed_byte_gives_a_module_or_a_record_error(at: int, value: int) -> None:
    changed = bytearray(payload())
    changed[at] = value
    try:
        module = decode_module(KEY, bytes(changed))
    except RecordError:
        return
    # The hash proves the bytes: a module that decodes is either the same, or found out.
    assert (module_hash(module.code, module.flags) == KEY) == ((module.code, module.flags) == (CODE, 2))


@given(st.lists(st.integers(0, 0xFFFFFFFF), max_size=50), st.integers(0, 3))
def test_modules_survive(words: list[int], flags: int) -> None:
    code = spirv(*words)
    key = module_hash(code, flags)
    assert decode_module(key, encode_module(code, flags)) == ShaderModule(key, code, flags)
