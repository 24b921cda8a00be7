"""Recomputes the keys of a set's records from their content.

A crc finds bytes that changed in storage. A recomputed key also proves that a record was not altered and
stored again, or stored under another record's name, which would compile something else. Where the rules of
today give another key, an earlier recorder may have named the record by its own rules, so that nothing is
proved: such a record is *not checked*, except a module, which is damaged then. Not checked either are records
with a structure that the registry or recorders do not know, and graphics pipelines whose render pass is
missing.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from orchestrator.errors import RecordError
from orchestrator.sets.archive.hashes import link_hash
from orchestrator.sets.archive.modules import decode_module
from orchestrator.sets.archive.reader import record_offset
from orchestrator.sets.archive.state_hashes import SubpassUse, state_hash, subpass_uses
from orchestrator.sets.groups import decode_application, decode_link
from orchestrator.sets.image.documents import TABLES, decode_document
from orchestrator.sets.records import Damage, RecordSource, RecordTag, UnknownContentError


@frozen
class Verified:
    """What came of reading all records."""

    unusable: int  # number of records that are damaged
    not_checked: tuple[tuple[RecordTag, int], ...]  # those whose content does not prove their keys


def prove_records(
    source: RecordSource, report: Callable[[Damage], None], progress: Callable[[int], object]
) -> Verified:
    """Recompute the keys of all records, those of render passes before those of pipelines.

    `report` takes damage that the source itself does not find, `progress` how many records were read.
    """
    unusable, read, not_checked = 0, 0, list[tuple[RecordTag, int]]()
    key_of = _key_computer()
    for tag in RecordTag:
        for key in source.keys(tag):
            read += 1
            progress(read)
            try:
                payload = source.payload(tag, key)
            except RecordError:  # it is in the source's own damage
                unusable += 1
                continue
            try:
                if key_of(tag, key, payload) != key:
                    not_checked.append((tag, key))
            except (UnknownContentError, LookupError):
                not_checked.append((tag, key))
            except RecordError as error:
                unusable += 1
                report(Damage(record_offset(source, tag, key), int(tag), key, error.reason))
    return Verified(unusable, tuple(not_checked))


def _key_computer() -> Callable[[RecordTag, int, bytes], int | None]:
    subpasses: dict[int, tuple[SubpassUse, ...]] = {}

    def key_of(tag: RecordTag, key: int, payload: bytes) -> int | None:
        if tag is RecordTag.APPLICATION_INFO:
            return decode_application(key, payload).hash
        if tag is RecordTag.APPLICATION_BLOB_LINK:
            link = decode_link(key, payload)
            return link_hash(link.application, link.tag, link.key)
        if tag is RecordTag.SHADER_MODULE:
            module = decode_module(key, payload)
            module.check_key()
            return module.actual_key
        if tag not in TABLES:
            return None
        value = decode_document(tag, key, payload)
        if tag is RecordTag.RENDER_PASS:
            subpasses[key] = subpass_uses(value)
        return state_hash(value, subpasses.__getitem__)

    return key_of
