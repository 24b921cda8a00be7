"""Proves that records match their names, by recomputing every key from the content.

A crc finds bytes that changed in storage. A recomputed key also finds a record that was altered and stored
again, or stored under another record's name, which would compile something else. A key is valid under today's
rules, under those of an older recorder (`Era`), and, in documents of format 5, if its hash starts with the
application's key.

A wrong key is reported only where it is certain. Not judged are records with a structure that the registry,
sets or recorders do not know, graphics pipelines whose render pass is missing, and records whose recorder
hashed more than it wrote (`is_written_in_full`).

Guarantees: reads only; damaged records are reported and not raised. Cheap: 0.1 ms a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from orchestrator.devices.request import RECORDED_STRUCTURES
from orchestrator.errors import RecordError
from orchestrator.registry import registry, structs_by_type
from orchestrator.sets.archive.hashes import (
    OFFSET,
    application_info_hash,
    features_hash,
    hash_u64,
    hash_values,
    hash_words,
    link_hash,
)
from orchestrator.sets.archive.modules import ShaderModule
from orchestrator.sets.archive.reader import record_offset
from orchestrator.sets.archive.state_hashes import (
    CHAINED,
    Era,
    SubpassUse,
    is_written_in_full,
    state_hash,
    subpass_uses,
)
from orchestrator.sets.groups import Application, decode_application, decode_link
from orchestrator.sets.image.documents import TABLES, SharedStates, UnknownStructureError, decode_document
from orchestrator.sets.records import Damage, RecordSource, RecordTag, document_text


class _Head(msgspec.Struct):
    """What every document says about itself."""

    version: int = 0
    application: str = ""


_head_decoder = msgspec.json.Decoder(_Head)


class RecordProof:
    """Recomputes the keys of a set's records, render passes before pipelines. One thread."""

    def __init__(self, source: RecordSource) -> None:
        self._source = source
        self._states = SharedStates()
        self._subpasses: dict[int, tuple[SubpassUse, ...]] = {}

    def unusable(self, report: Callable[[Damage], None], progress: Callable[[int], object]) -> int:
        """Read all records except modules and recompute their keys; returns how many are unusable.

        Args:
            report: Called with each record whose key is wrong.
            progress: Called with the number of records read so far.
        """
        bad = read = 0
        for tag in RecordTag:
            if tag is RecordTag.SHADER_MODULE:
                continue
            for key in self._source.keys(tag):
                read += 1
                progress(read)
                try:
                    payload = self._source.payload(tag, key)
                except RecordError:
                    bad += 1
                    continue
                reason = self._refusal(tag, key, payload)
                if reason is not None:
                    report(Damage(record_offset(self._source, tag, key), int(tag), key, reason))
                    bad += 1
        return bad

    def _refusal(self, tag: RecordTag, key: int, payload: bytes) -> str | None:
        """Why a record cannot be used, or None."""
        try:
            if tag is RecordTag.APPLICATION_INFO:
                return _application_refusal(decode_application(key, payload), payload)
            if tag is RecordTag.APPLICATION_BLOB_LINK:
                link = decode_link(key, payload)
                return _named(key, link_hash(link.application, link.tag, link.key))
            if tag in TABLES:
                return self._state_refusal(tag, key, payload)
        except UnknownStructureError:
            return None
        except RecordError as error:
            return error.reason
        return None

    def _state_refusal(self, tag: RecordTag, key: int, payload: bytes) -> str | None:
        value = decode_document(tag, key, payload, self._states)
        if tag is RecordTag.RENDER_PASS:
            self._subpasses[key] = subpass_uses(value)
        try:
            actual = state_hash(value, self._subpasses.__getitem__)
            if actual == key or any(
                state_hash(value, self._subpasses.__getitem__, era=era, start=start) == key
                for start in (OFFSET, *application_start(payload))
                for era in Era
            ):
                return None
        except LookupError:
            return None
        if not is_written_in_full(value) or _unknown_to_recorders(value):
            return None
        return _named(key, actual)


def application_start(payload: bytes) -> tuple[int, ...]:
    """Start value of the hash of a record of format 5, the key of its application; else empty."""
    try:
        head = _head_decoder.decode(document_text(payload))
        return (int(head.application, 16),) if head.version == 5 and head.application else ()
    except ValueError:  # msgspec's errors are ValueErrors
        return ()


def is_module_of_format_5(module: ShaderModule, payload: bytes) -> bool:
    """Whether a module's key is right in format 5, where the hash starts with the application's key."""
    return any(
        hash_values((module.flags,), hash_words(module.code, start)) == module.key
        for start in application_start(payload)
    )


def _named(key: int, actual: int) -> str | None:
    """The message for a record whose key is not that of its content, or None."""
    if key == actual:
        return None
    return (
        f"its content has the key {actual:016x}: not the record that was recorded under this name, or named "
        "by a program with a rule of its own"
    )


def _application_refusal(application: Application, payload: bytes) -> str | None:
    known = structs_by_type()
    if any(
        s_type not in known or known[s_type].name not in RECORDED_STRUCTURES
        for s_type, _ in application.features
    ):
        return None
    try:
        document_text(payload).decode()
        encoding = "utf-8"
    except UnicodeDecodeError:
        encoding = "latin-1"  # as it was decoded: recorders copy names byte by byte
    encoded = [
        None if each is None else each.encode(encoding) for each in (application.name, application.engine)
    ]
    names = (encoded[0], encoded[1])
    versions = (application.application_version, application.engine_version, application.api_version)
    info = application_info_hash(versions, names)
    features = features_hash(int(application.robust_buffer_access), application.features)
    # A recorder without application info, or without features, wrote nothing and hashed a zero.
    infos = (info,) if any(versions) or any(each is not None for each in names) else (info, 0)
    devices = (features,) if application.robust_buffer_access or application.features else (features, 0)
    if any(hash_u64(device, hash_u64(each)) == application.key for each in infos for device in devices):
        return None
    return _named(application.key, hash_u64(features, hash_u64(info)))


def _unknown_to_recorders(value: Any) -> bool:
    """Whether a pNext chain anywhere in a record holds a structure that recorders do not know."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending.extend(each)
        elif isinstance(each, msgspec.Struct):
            chain: Sequence[Any] = getattr(each, "pNext", None) or ()
            if any(registry().struct(type(entry).__name__).name not in CHAINED for entry in chain):
                return True
            pending.extend(getattr(each, name) for name in each.__struct_fields__)
    return False
