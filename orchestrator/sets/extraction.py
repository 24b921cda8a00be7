"""Chosen pipelines of a set as a set of their own: these, what they need, and who used them. Nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

from orchestrator.errors import RecordError, UnknownPipelineError
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.groups import decode_link
from orchestrator.sets.records import KIND_OF_TAG, RecordSource, RecordTag

_HASH = re.compile(rb'"([0-9a-f]{16})"')
_NAMED = (
    *(RecordTag.SAMPLER, RecordTag.DESCRIPTOR_SET_LAYOUT, RecordTag.PIPELINE_LAYOUT),
    *(RecordTag.SHADER_MODULE, RecordTag.RENDER_PASS, *KIND_OF_TAG),
)
"""What records name by hash: other records of these tags."""

_Name = tuple[RecordTag, int]


def extract(source: RecordSource, keys: Iterable[int], writer: ArchiveWriter) -> list[_Name]:
    """Write pipelines with the records that they name, links of applications to these, and applications.

    Layouts, render passes, samplers, modules, libraries and base pipelines are named. Returns what was
    written, in order.

    Raises:
        UnknownPipelineError: The set has no pipeline with a key.
        RecordError: A record that is needed is damaged.
        ArchiveError: The writer's file cannot be written.
    """
    there = {tag: frozenset(source.keys(tag)) for tag in RecordTag}
    waiting: list[_Name] = []
    for key in keys:
        found = [(tag, key) for tag in KIND_OF_TAG if key in there[tag]]
        if not found:
            raise UnknownPipelineError(source.name, key)
        waiting += found
    payloads: dict[_Name, bytes] = {}
    while waiting:
        name = waiting.pop()
        if name in payloads:
            continue
        payload = payloads[name] = source.payload(*name)
        if name[0] is not RecordTag.SHADER_MODULE:
            hashes = {int(each, 16) for each in _HASH.findall(payload)}
            waiting += [(tag, each) for tag in _NAMED for each in hashes & there[tag]]
    chosen = payloads | _applications(source, payloads)
    names = sorted(chosen, key=lambda each: (each[0], each[1]))
    for tag, key in names:
        writer.add(tag, key, chosen[tag, key])
    return names


def _applications(source: RecordSource, chosen: dict[_Name, bytes]) -> dict[_Name, bytes]:
    found: dict[_Name, bytes] = {}
    linked: set[_Name] = set()
    there = source.keys(RecordTag.APPLICATION_INFO)
    for key in source.keys(RecordTag.APPLICATION_BLOB_LINK):
        name = RecordTag.APPLICATION_BLOB_LINK, key
        with suppress(RecordError):  # as where a set is grouped
            payload = source.payload(*name)
            link = decode_link(key, payload)
            if (link.tag, link.key) in chosen:
                found[name] = payload
                linked.add((RecordTag(link.tag), link.key))
                if link.application in there:
                    of = RecordTag.APPLICATION_INFO, link.application
                    found[of] = source.payload(*of)
    if there and any(name[0] in KIND_OF_TAG and name not in linked for name in chosen):
        first = RecordTag.APPLICATION_INFO, there[0]  # what counts for pipelines without a link
        found[first] = source.payload(*first)
    return found
