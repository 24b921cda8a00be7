"""How fast is a set read: varint decoding and encoding, module hashes, and the index of an archive?

Prints one JSON line. Rates refer to decoded SPIR-V, module by module, on one core, by the thread's CPU clock:
the median of the rounds, the slowest and the fastest. The index is that of a synthetic archive of 100,000
small records.

Command: python benchmarks/bench_varint.py game.foz > benchmarks/results/2-cores/varint.jsonl
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.fresh import machine
from orchestrator.sets.archive.hashes import module_hash, module_hashes
from orchestrator.sets.archive.modules import decode_varint, encode_varint
from orchestrator.sets.archive.reader import Archive
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import RecordTag

RECORDS = 100_000


def seconds(work: Callable[[], object], rounds: int) -> list[float]:
    """CPU time of each round, after one that is not counted."""
    work()
    durations = []
    for _ in range(rounds):
        start = time.thread_time()
        work()
        durations.append(time.thread_time() - start)
    return durations


def rates(durations: list[float], size: int) -> dict[str, float]:
    """Megabytes a second."""
    each = [size / duration / 1e6 for duration in durations]
    return {
        "median": round(statistics.median(each), 1),
        "slowest": round(min(each), 1),
        "fastest": round(max(each), 1),
    }


def index_seconds(rounds: int) -> list[float]:
    """CPU times of opening an archive of 100,000 records."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "many.foz"
        payload = b'{"version":6,"link":{"application":"%016x","tag":6,"hash":"%016x"}}'
        with ArchiveWriter(path, compress=False) as writer:
            for key in range(RECORDS):
                tag = RecordTag.APPLICATION_BLOB_LINK if key % 2 else RecordTag.GRAPHICS_PIPELINE
                writer.add(tag, key * 0x9E3779B97F4A7C15 % 2**64, payload % (1, key))
        return seconds(lambda: Archive.open(path).close(), rounds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How fast is a set read?")
    parser.add_argument("archives", nargs="+", type=Path, metavar="SET.foz")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    with PipelineSet.open(arguments.archives) as pipelines:
        keys = pipelines.records.keys(RecordTag.SHADER_MODULE)
        modules = [pipelines.module(key) for key in keys]
        content_hash = pipelines.content_hash()
    words = [np.frombuffer(module.code, "<u4") for module in modules]
    encoded = [(encode_varint(each), len(each)) for each in words]
    codes = [(module.code, module.flags) for module in modules]
    size = sum(len(module.code) for module in modules)
    rounds = arguments.rounds
    index = index_seconds(rounds)
    row = {
        "benchmark": "varint",
        "set": [path.name for path in arguments.archives],
        "set_hash": f"{content_hash:016x}",
        "modules": len(modules),
        "spirv_bytes": size,
        "rounds": rounds,
        "decode_mb_s": rates(seconds(lambda: [decode_varint(*each) for each in encoded], rounds), size),
        "encode_mb_s": rates(seconds(lambda: [encode_varint(each) for each in words], rounds), size),
        "module_hash_mb_s": rates(seconds(lambda: [module_hash(*each) for each in codes], rounds), size),
        "module_hashes_mb_s": rates(seconds(lambda: module_hashes(codes), rounds), size),
        "index_records": RECORDS,
        "index_cpu_s": {"median": round(statistics.median(index), 4), "slowest": round(max(index), 4)},
        "numpy": np.__version__,
        **machine(),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
