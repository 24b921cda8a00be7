"""Does our cache hit in another program, on its own device, with compiling forbidden?

Two runs of ours use the same device code, so they cannot show every miss. So `orchestrator compile` compiles
each set, and a replayer gets the driver's bytes of the cache file: Fossilize's `fossilize-replay`, built by
the user from its public sources. It opens its device as the capture recorded it, and fails if a compile would
be required. Then the reverse: the replayer fills a cache, and `compile` loads it.

    hits       pipelines that the replayer found in our cache
    misses     pipelines that it would have had to compile
    own        its misses with a cache that it filled itself: the control, since drivers do not keep all
    theirs     pipelines that `compile` found in the replayer's cache, and pipelines that it compiled
    left       pipelines that the replayer skips because the device lacks something, or without feedback from
               the driver (RADV for linked libraries)

Prints one JSON line per set. The exit code is 1 if more was missed than in the control.

Command: ORCHESTRATOR_REPLAYER=fossilize-replay
         python benchmarks/foreign_hits.py --device radv:navi21 SET.foz...
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from orchestrator.devices.opening import list_devices, own_process
from orchestrator.devices.selectors import environment_of
from orchestrator.stores.cache_file import cache_path, read_cache_file, save_cache_file

REPLAYER = "ORCHESTRATOR_REPLAYER"
_HITS = re.compile(r"Pipeline cache hits reported: (\d+)")
_REQUIRED = re.compile(r"(?:Graphics|Compute|Raytracing) pipeline compile required count: (\d+)")
_FORBID = ("--fail-on-pipeline-compile-required", "--skip-pipelines-on-compile-required")


def replay(program: str, selector: str, archive: Path, cache: Path, *, forbid: bool) -> tuple[int, int]:
    """Replay a set with a cache of the driver's own bytes, which it writes back; its hits and misses."""
    environment = {**os.environ, **environment_of(selector)}
    command = [program, "--num-threads", "2", "--on-disk-pipeline-cache", str(cache)]
    done = subprocess.run(
        [*command, *(_FORBID if forbid else ()), str(archive)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    hits = _HITS.search(said)
    if done.returncode or hits is None:
        raise SystemExit(f"{program} {archive.name}: exit {done.returncode}: {said[-2000:]}")
    return int(hits[1]), sum(int(each) for each in _REQUIRED.findall(said))


def compile_set(selector: str, archive: Path, folder: Path) -> dict[str, Any]:
    """The JSON document of `orchestrator compile`."""
    command = [sys.executable, "-m", "orchestrator", "compile", str(archive), "--device", selector]
    done = subprocess.run(
        [*command, "--cache-dir", str(folder), "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"compile {archive.name}: exit {done.returncode}: {done.stderr[-2000:]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def check(program: str, selector: str, archive: Path, folder: Path) -> dict[str, Any]:
    """One set, both ways."""
    own_process(selector)
    (identity,) = list_devices(selector)[:1]
    ours = folder / "ours"
    compiled = compile_set(selector, archive, ours)
    loaded = read_cache_file(cache_path(ours, identity), identity)
    raw = folder / "ours.bin"
    raw.write_bytes(loaded.data)
    hits, misses = replay(program, selector, archive, raw, forbid=True)
    theirs = folder / "theirs.bin"
    replay(program, selector, archive, theirs, forbid=False)
    save_cache_file(cache_path(folder / "theirs", identity), identity, theirs.read_bytes())
    own_hits, own_misses = replay(program, selector, archive, theirs, forbid=True)
    found = compile_set(selector, archive, folder / "theirs")
    return {
        "set": archive.name,
        "device": identity.device_name,
        "driver": f"{identity.driver_name} {identity.driver_info}",
        "pipelines": compiled["set"]["unique"],
        "created": compiled["outcomes"]["compiled"] + compiled["outcomes"]["cache_hits"],
        "hits": hits,
        "misses": misses,
        "own_hits": own_hits,
        "own_misses": own_misses,
        "left": compiled["set"]["unique"] - hits - misses,
        "theirs_hits": found["outcomes"]["cache_hits"],
        "theirs_compiled": found["outcomes"]["compiled"],
    }


def main() -> int:
    """Check every set; 0 where nothing was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+", type=Path)
    parser.add_argument("--device", default="radv:navi21")
    parser.add_argument("--replayer", default=os.environ.get(REPLAYER, "fossilize-replay"))
    parser.add_argument("--output", type=Path, help="file for the JSON lines, instead of stdout")
    given = parser.parse_args()
    program = shutil.which(given.replayer)
    if program is None:
        raise SystemExit(
            f"{given.replayer}: no such program; name fossilize-replay with --replayer or {REPLAYER}"
        )
    rows = []
    for archive in given.sets:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(check(program, given.device, archive, Path(folder)))
        line = "{set}: hits {hits} misses {misses} (own {own_misses}) left {left}, "
        line += "theirs {theirs_hits} + {theirs_compiled}"
        print(line.format(**rows[-1]), file=sys.stderr)
    lines = "".join(json.dumps(each) + "\n" for each in rows)
    if given.output:
        given.output.write_text(lines)
    else:
        print(lines, end="")
    return int(
        any(each["misses"] > each["own_misses"] or each["theirs_hits"] < each["own_hits"] for each in rows)
    )


if __name__ == "__main__":
    sys.exit(main())
