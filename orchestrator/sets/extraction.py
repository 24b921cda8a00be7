"""Chosen pipelines of a set as a set of their own: these, what they need, and who used them. Nothing else."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from attrs import frozen

from orchestrator.errors import RecordError, UnknownPipelineError
from orchestrator.sets.archive.reader import FILE_HEADER_SIZE, RECORD_SIZE, Archive
from orchestrator.sets.archive.writer import ArchiveWriter, deflated
from orchestrator.sets.groups import decode_link, read_applications
from orchestrator.sets.records import KIND_OF_TAG, RecordSource, RecordTag

_HASH = re.compile(rb'"([0-9a-f]{16})"')
_NAMED = (
    *(RecordTag.SAMPLER, RecordTag.DESCRIPTOR_SET_LAYOUT, RecordTag.PIPELINE_LAYOUT),
    *(RecordTag.SHADER_MODULE, RecordTag.RENDER_PASS, *KIND_OF_TAG),
)
"""What records name by hash: other records of these tags."""
_BASE_BYTES: Final = 4096
"""What compiling takes beside the code, as bytes of code: 0.7 ms at 150 ns a byte, as the schedule has it."""

Name = tuple[RecordTag, int]
"""A record by its tag and hash."""


def pipelines_of(source: RecordSource) -> list[Name]:
    """All pipelines of a set: graphics, compute, ray tracing, each in the set's order."""
    return [(tag, key) for tag in KIND_OF_TAG for key in source.keys(tag)]


def listed_keys(path: str) -> frozenset[int]:
    """Keys of the pipelines that a list names: an archive whose payloads don't count and may be empty.

    Fossilize's layer writes such lists of the pipelines that a program really bound, and its tools take them
    as `--whitelist`.

    Raises:
        ArchiveError: It cannot be read.
    """
    with Archive.open(path) as archive:
        return frozenset(key for _, key in pipelines_of(archive))


class Dependencies:
    """What the pipelines of a set need. Remembers what records name; one thread at a time."""

    def __init__(self, source: RecordSource) -> None:
        """Read the links of a set; damaged ones don't count, as where a set is grouped."""
        self.source: Final = source
        self.pipelines: Final = pipelines_of(source)
        self.users: Final[dict[Name, list[int]]] = defaultdict(list)  # of each record, its applications' keys
        self.applications: Final = {each.key: each for each in read_applications(source)}
        self._links: dict[Name, list[Name]] = defaultdict(list)
        self._there = {tag: frozenset(source.keys(tag)) for tag in RecordTag}
        self._named: dict[Name, list[Name]] = {}
        for key in source.keys(RecordTag.APPLICATION_BLOB_LINK):
            with suppress(RecordError, ValueError):  # the tag may be none
                name = RecordTag.APPLICATION_BLOB_LINK, key
                link = decode_link(key, source.payload(*name))
                of = RecordTag(link.tag), link.key
                self._links[of].append(name)
                self.users[of].append(link.application)

    def of(self, pipelines: Iterable[Name]) -> set[Name]:
        """Pipelines with the records that they name, links of applications to these, and applications.

        Layouts, render passes, samplers, modules, libraries and base pipelines are named. A pipeline without
        a link needs the first application, as where a set is grouped.

        Raises:
            RecordError: A record that is needed is damaged.
        """
        found: set[Name] = set()
        waiting = list(pipelines)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self._named_by(name)
        links = {each for name in found for each in self._links.get(name, ())}
        users = {key for name in found for key in self.users.get(name, ())}
        if any(name[0] in KIND_OF_TAG and name not in self.users for name in found):
            users |= {*[*self.applications][:1]}
        users &= self.applications.keys()
        return found | links | {(RecordTag.APPLICATION_INFO, each) for each in users}

    def by_application(self) -> dict[int | None, set[Name]]:
        """Pipelines by the key of each application that is linked to them; None: no application is."""
        found: dict[int | None, set[Name]] = defaultdict(set)
        nobody: list[int | None] = [None]
        for name in self.pipelines:
            for user in self.users.get(name) or nobody:
                found[user].add(name)
        return found

    def _named_by(self, name: Name) -> list[Name]:
        if name[0] is RecordTag.SHADER_MODULE:
            return []
        if (known := self._named.get(name)) is None:
            hashes = {int(each, 16) for each in _HASH.findall(self.source.payload(*name))}
            known = [(tag, each) for tag in _NAMED for each in sorted(hashes & self._there[tag])]
            self._named[name] = known
        return known


def extract(source: RecordSource, keys: Iterable[int], writer: ArchiveWriter) -> list[Name]:
    """Write the pipelines of some keys with all that they need, as `Dependencies.of` says.

    Returns what was written, in order.

    Raises:
        UnknownPipelineError: The set has no pipeline with a key.
        RecordError: A record that is needed is damaged.
        ArchiveError: The writer's file cannot be written.
    """
    needs = Dependencies(source)
    wanted = frozenset(keys)
    chosen = [each for each in needs.pipelines if each[1] in wanted]
    if unknown := wanted.difference(key for _, key in chosen):
        raise UnknownPipelineError(source.name, min(unknown))
    return write_records(source, needs.of(chosen), writer)


def write_records(source: RecordSource, names: Iterable[Name], writer: ArchiveWriter) -> list[Name]:
    """Write records in the order of tags and hashes; returns their names. Raises as `extract`."""
    ordered = sorted(names)
    for tag, key in ordered:
        writer.add(tag, key, source.payload(tag, key))
    return ordered


@frozen
class Sampled:
    """A part of a set that stands for the whole."""

    names: set[Name]  # its records
    costs: dict[Name, float]  # of each pipeline of the whole set that can be read, in any unit

    @property
    def cost_share(self) -> float:
        """The part of the whole cost that it holds, 0 to 1."""
        held = sum(cost for name, cost in self.costs.items() if name in self.names)
        return held / (sum(self.costs.values()) or 1.0)


def sample(
    source: RecordSource,
    most_bytes: int,
    *,
    recorded: Mapping[int, float] | None = None,
    first: Collection[int] = (),
) -> Sampled:
    """Choose pipelines for an archive of at most so many bytes, the same ones each time.

    Each pipeline has a number from its key, u in (0, 1], and the largest cost / u is next: priority sampling.
    So the chance of a pipeline is as its cost. What does not fit is left out, and the next one tried.
    Pipelines that need a damaged record don't count.

    Args:
        source: The set.
        most_bytes: The size of the archive that `write_records` would write.
        recorded: Recorded costs of some pipelines by key; others are estimated from the size of their code.
            None: all cost the same.
        first: Keys of pipelines that are taken before all others.
    """
    needs = Dependencies(source)
    costs: dict[Name, float] = {}
    sizes: dict[Name, int] = {}
    codes: dict[Name, int] = {}
    for pipeline in needs.pipelines:
        with suppress(RecordError):
            names = needs.of([pipeline])
            for name in names - sizes.keys():
                payload = source.payload(*name)
                codes[name] = len(payload) if name[0] is RecordTag.SHADER_MODULE else 0
                sizes[name] = RECORD_SIZE + len(deflated(payload).data)
            costs[pipeline] = 1.0 if recorded is None else _BASE_BYTES + sum(codes[name] for name in names)
    if known := {name: recorded[name[1]] for name in costs if name[1] in recorded} if recorded else {}:
        scale = sum(known.values()) / sum(costs[each] for each in known)
        costs = {name: each * scale for name, each in costs.items()} | known
    chosen: set[Name] = set()
    left = most_bytes - FILE_HEADER_SIZE
    for pipeline in sorted(costs, key=lambda name: (name[1] not in first, -costs[name] / _part(name[1]))):
        new = needs.of([pipeline]) - chosen
        if (more := sum(sizes[each] for each in new)) <= left:
            chosen |= new
            left -= more
    return Sampled(chosen, costs)


def _part(key: int) -> float:
    mixed = blake2b(key.to_bytes(8, "little"), digest_size=8).digest()
    return (int.from_bytes(mixed, "little") + 1) / (1 << 64)
