"""Writes a large set of compute pipelines: shaders of other sets, each with many specializations.

No shader has the specialized constant, so all permutations of a shader compile to the same code in the same
time, under different keys. A set of any size thus has realistic work for the driver, and is reproducible.

Run as a script it writes the set: python benchmarks/permuted.py OUT.foz --each 100 game.foz other.foz
With --longest 1000 --by REPORT.json it writes only those that took longest by the report of a cold compile
of the whole set (`orchestrator compile --json`), with --shortest those that took least.
"""

from __future__ import annotations

import argparse
import base64
import struct
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec
import numpy as np

from orchestrator.errors import RecordError
from orchestrator.run.options import available_workers
from orchestrator.run.records import OutcomeTable, Record, decode_json
from orchestrator.sets.archive.state_hashes import state_hash
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.image.documents import decode_document
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import RecordTag
from orchestrator.sets.sample import sample_path

_Entry = dict[str, dict[str, object]]
_CONSTANT_ID = 0x7000
_PART = 1_000
_TAG = RecordTag.COMPUTE_PIPELINE
_SHARED_TAGS = (
    RecordTag.SAMPLER,
    RecordTag.DESCRIPTOR_SET_LAYOUT,
    RecordTag.PIPELINE_LAYOUT,
    RecordTag.SHADER_MODULE,
)


def write_permuted(
    out: Path, sources: Sequence[str], each: int, most: int, wanted: Container[int] | None = None
) -> int:
    """Write the set.

    Args:
        out: The archive.
        sources: Archives whose compute shaders are taken, one pipeline a shader.
        each: Permutations of each.
        most: Shaders, at most.
        wanted: Keys of the permutations that are written; None for all.

    Returns:
        Number of pipelines that were written.
    """
    shaders: set[str] = set()
    entries: list[_Entry] = []
    count = 0
    with ArchiveWriter(out) as writer, ProcessPoolExecutor(available_workers()) as pool:
        for path in sources:
            with PipelineSet.open(path) as source:
                for tag in _SHARED_TAGS:
                    for key in source.records.keys(tag):
                        writer.add(tag, key, source.records.payload(tag, key))
                for key in source.records.keys(_TAG):
                    payload = source.records.payload(_TAG, key)
                    try:
                        decode_document(_TAG, key, payload)
                    except RecordError:
                        continue
                    entry = msgspec.json.decode(payload.split(b"\0", 1)[0])["computePipelines"][f"{key:016x}"]
                    module = entry["stage"]["module"]
                    if module in shaders or len(shaders) == most:
                        continue
                    shaders.add(module)
                    entries.append(entry)
        parts = [
            (entry, range(start, min(start + _PART, each)))
            for entry in entries
            for start in range(0, each, _PART)
        ]
        for some in pool.map(_permuted, parts) if len(parts) > len(entries) else map(_permuted, parts):
            for permuted_key, permuted in some:
                if wanted is None or permuted_key in wanted:
                    writer.add(_TAG, permuted_key, permuted)
                    count += 1
    return count


def _permuted(part: tuple[_Entry, range]) -> list[tuple[int, bytes]]:
    return list(permutations(*part))


def permutations(entry: _Entry, values: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """Key and payload of permutations of a pipeline, given as its document's entry."""
    for value in values:
        info = {
            "dataSize": 4,
            "data": base64.b64encode(struct.pack("<I", value)).decode(),
            "mapEntries": [{"offset": 0, "size": 4, "constantID": _CONSTANT_ID}],
        }
        permuted = {**entry, "stage": {**entry["stage"], "specializationInfo": info}}
        key = state_hash(decode_document(_TAG, 0, _document(0, permuted)), lambda _: ())
        yield key, _document(key, permuted)


def _document(key: int, entry: dict[str, object]) -> bytes:
    return msgspec.json.encode({"version": 6, "computePipelines": {f"{key:016x}": entry}})


class _Recorded(Record, frozen=True):
    """What is read of a report; an earlier version's lacks fields that others have now."""

    pipelines: OutcomeTable


def recorded_pipelines(report: Path) -> OutcomeTable:
    """The outcome of each pipeline in the report of a compile, also of an earlier version."""
    return decode_json(report.read_bytes(), _Recorded).pipelines


def chosen_by(report: Path, longest: int | None, shortest: int | None) -> frozenset[int]:
    """Keys of the pipelines that took the driver longest, or shortest, by the report of a cold compile."""
    table = recorded_pipelines(report)
    ascending = table.keys[np.argsort(table.driver_ns, kind="stable")].tolist()
    return frozenset(ascending[:shortest] if longest is None else ascending[::-1][:longest])


def main() -> None:
    """Write the set."""
    parser = argparse.ArgumentParser(description="Write a large set of permuted compute pipelines.")
    parser.add_argument("out", type=Path, help="the archive to write")
    parser.add_argument(
        "sources", nargs="*", default=[str(sample_path())], help="archives with compute shaders"
    )
    parser.add_argument("--each", type=int, default=100, help="permutations of each shader")
    parser.add_argument("--shaders", type=int, default=102, help="shaders, at most")
    few = parser.add_mutually_exclusive_group()
    few.add_argument("--longest", type=int, metavar="N", help="write only those N that took longest")
    few.add_argument("--shortest", type=int, metavar="N", help="write only those N that took least")
    parser.add_argument(
        "--by", type=Path, metavar="REPORT", help="by this report of a cold compile of the set"
    )
    options = parser.parse_intermixed_args()
    if (options.longest is options.shortest is None) != (options.by is None):
        parser.error("--by goes with --longest or --shortest: how many, and by which report")
    wanted = None if options.by is None else chosen_by(options.by, options.longest, options.shortest)
    count = write_permuted(options.out, options.sources, options.each, options.shaders, wanted)
    print(count, "pipelines")
    if wanted is not None and count < len(wanted):
        sys.exit(
            f"{options.by}: {len(wanted) - count} of the {len(wanted)} are not in this set; "
            "give the sources, --each and --shaders of the set that it is of"
        )


if __name__ == "__main__":
    main()
