"""Recomputes the keys of a set's records from their content.

A crc finds bytes that changed in storage. A recomputed key also proves that a record was not altered and
stored again, or stored under another record's name, which would compile something else. Where the rules of
today give another key, an earlier recorder may have named the record by its own rules, so that nothing is
proved: such a record is *not checked*. Not checked either are records with a structure that the registry or
recorders do not know, and graphics pipelines whose render pass is missing.

Guarantees: reads only; damaged records are reported and not raised. Cheap: 0.1 ms a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import field, frozen

from orchestrator.errors import RecordError
from orchestrator.sets.archive.hashes import link_hash
from orchestrator.sets.archive.reader import record_offset
from orchestrator.sets.archive.state_hashes import SubpassUse, state_hash, subpass_uses
from orchestrator.sets.groups import decode_application, decode_link
from orchestrator.sets.image.documents import TABLES, SharedStates, UnknownStructureError, decode_document
from orchestrator.sets.records import Damage, RecordSource, RecordTag


@frozen
class Verified:
    """What came of reading all records."""

    unusable: int  # number of records that are damaged
    # Tag and key of those whose content does not prove their keys.
    not_checked: tuple[tuple[RecordTag, int], ...]


@frozen
class RecordProof:
    """Recomputes keys, those of render passes before those of pipelines. One thread."""

    source: RecordSource  # the set
    report: Callable[[Damage], None]  # takes damage that the source itself does not find
    _states: SharedStates = field(factory=SharedStates, init=False)
    _subpasses: dict[int, tuple[SubpassUse, ...]] = field(factory=dict, init=False)

    def read(self, progress: Callable[[int], object]) -> Verified:
        """Read all records except modules; `progress` is told how many were read so far."""
        unusable, read = 0, 0
        not_checked: list[tuple[RecordTag, int]] = []
        for tag in RecordTag:
            for key in self.source.keys(tag) if tag is not RecordTag.SHADER_MODULE else ():
                read += 1
                progress(read)
                try:
                    payload = self.source.payload(tag, key)
                except RecordError:  # it is in the source's own damage
                    unusable += 1
                    continue
                try:
                    if self._key_of(tag, key, payload) != key:
                        not_checked.append((tag, key))
                except (UnknownStructureError, LookupError):
                    not_checked.append((tag, key))
                except RecordError as error:
                    unusable += 1
                    self.report(Damage(record_offset(self.source, tag, key), int(tag), key, error.reason))
        return Verified(unusable, tuple(not_checked))

    def _key_of(self, tag: RecordTag, key: int, payload: bytes) -> int | None:
        if tag is RecordTag.APPLICATION_INFO:
            return decode_application(key, payload).hash
        if tag is RecordTag.APPLICATION_BLOB_LINK:
            link = decode_link(key, payload)
            return link_hash(link.application, link.tag, link.key)
        if tag not in TABLES:
            return None
        value = decode_document(tag, key, payload, self._states)
        if tag is RecordTag.RENDER_PASS:
            self._subpasses[key] = subpass_uses(value)
        return state_hash(value, self._subpasses.__getitem__)
