"""What do saving, proving and loading a cache file cost, depending on its size?

The data is a valid header and random bytes, which do not compress; no driver gets it. Lower bounds: writing
the same bytes with fsync, and reading them. The cost of fsync depends on the disk; choose one with --folder.

Command: python benchmarks/bench_cache_file.py --output benchmarks/results/2-cores/cache_file.jsonl
"""

from __future__ import annotations

import os
import random
import struct
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, parser_of
from orchestrator.devices.simulated import simulated_identity
from orchestrator.stores.cache_file import LoadStatus, cache_path, read_cache_file, save_cache_file


def measure(job: Job) -> Figures:
    """Save and load once, ours or the floor."""
    identity = simulated_identity()
    header = struct.pack(
        "<IIII16s", 32, 1, identity.vendor_id, identity.device_id, identity.pipeline_cache_uuid
    )
    data = header + random.Random(1).randbytes(job["bytes"] - len(header))
    with tempfile.TemporaryDirectory(dir=job["folder"] or None) as folder:
        Path(folder).chmod(0o700)
        path = cache_path(Path(folder), identity)
        began = time.perf_counter()
        if job["ours"]:
            save_cache_file(path, identity, data)
        else:
            with path.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        saved = time.perf_counter()
        if job["ours"]:
            loaded = read_cache_file(path, identity)
            if loaded.status is not LoadStatus.LOADED:
                raise SystemExit(f"not loaded: {loaded.detail}")
        else:
            path.read_bytes()
        ended = time.perf_counter()
    return {"seconds": ended - began, "save_s": saved - began, "load_s": ended - saved, "bytes": len(data)}


def main() -> None:
    """Measure sizes."""
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", default="1,16,64", help="sizes, MiB")
    parser.add_argument("--folder", default="", help="where to write; default: the system's temporary folder")
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    for size in map(int, options.sizes.split(",")):
        jobs = {
            f"{size} MiB, {'ours' if ours else 'bare'}": {
                "bytes": size << 20,
                "ours": ours,
                "folder": options.folder,
            }
            for ours in (False, True)
        }
        compare(__file__, jobs, options, figure="seconds")


if __name__ == "__main__":
    main()
