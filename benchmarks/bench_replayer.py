"""Question: what does a whole process take, from a file on disk to the last pipeline, against a replayer?

Both compile the same set on the same device with the same number of threads, first with no cache, then
with the one that they kept. The replayer is the user's: Fossilize's `fossilize-replay`, built from its
public sources. It runs twice in each round, which is the A/A control. Contenders take turns; the
driver's own caches are off.

    wall_s, cpu_s, peak_mib   of the whole process, from outside: fork to reaping; CPU time with all that it
                              started
    clock                     where our process says that its time went, and `told`, the share of wall_s that
                              it tells of

A set of one pipeline is measured in the end against an interpreter that imports what a run needs.

Python's byte code must be written, as it is where the package is installed: PYTHONDONTWRITEBYTECODE is taken
out of the environment. On a busy machine compare CPU time.

Command: python benchmarks/bench_replayer.py --replayer fossilize-replay --threads 16 --samples 5
         --output FILE SET.foz...
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fresh import CONTROL, Figures, machine, parser_of, table
from orchestrator.devices import environment_of
from orchestrator.sets.authoring.manifest import pack_manifest
from orchestrator.sets.sample import sample_path

OURS, LIBRARIES = "orchestrator", "import trio, numpy, attrs, msgspec, cffi"
_SET_CHILD_SUBREAPER = 36  # prctl(2): orphans among the processes below this one become its children
_FIGURES = ("wall_s", "cpu_s", "peak_mib")


def measured(command: Sequence[str], environment: Mapping[str, str], output: Path) -> Figures:
    """Run a process and wait for it; what it prints goes to a file.

    CPU time is that of all processes that it started, also of those that it does not wait for: a
    supervised compile is one.
    """
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    cpu_s, peak, wall_s = 0.0, 0, 0.0
    with output.open("wb") as stdout:
        began = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=stdout, stderr=subprocess.DEVNULL)
        with suppress(ChildProcessError):  # until there is none
            while True:
                ended, status, used = os.wait4(-1, 0)
                cpu_s, peak = cpu_s + used.ru_utime + used.ru_stime, max(peak, used.ru_maxrss)
                if ended == process.pid:
                    wall_s = time.perf_counter() - began
                    process.returncode = os.waitstatus_to_exitcode(status)
    return {"wall_s": wall_s, "cpu_s": cpu_s, "peak_mib": peak / 1024, "exit": process.returncode}


def one_pipeline(folder: Path) -> Path:
    """A set of one compute pipeline."""
    shader = sample_path().parent / "shaders" / "blur.comp.spv"
    manifest, path = folder / "one.toml", folder / "one.foz"
    manifest.write_text(f'manifest = 1\n\n[compute.blur]\nshader = "{shader}"\n', "utf-8")
    pack_manifest(manifest, path)
    return path


class Contest:
    """Our program and a replayer, on one device."""

    def __init__(
        self, replayer: str, device: str, threads: int, folder: Path, more: Sequence[str] = ()
    ) -> None:
        self._more = more
        self._replayer, self._device, self._threads, self._folder = replayer, device, threads, folder
        self._environment = {**os.environ, **environment_of(device)}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self.named: Figures = {"device": device, "threads": threads, "options": list(more)}

    def take(self, contender: str, set_path: Path, start: str) -> Figures:
        """One process; a cold one forgets what its contender kept."""
        own = self._folder / contender.replace(" ", "-")
        if start == "cold":
            shutil.rmtree(own, ignore_errors=True)
            own.mkdir(mode=0o700)
        output = self._folder / "output"
        threads = str(self._threads)
        if contender != OURS:
            cache = str(own / "cache.bin")
            command = [
                self._replayer,
                "--num-threads",
                threads,
                "--on-disk-pipeline-cache",
                cache,
                str(set_path),
            ]
            return measured(command, self._environment, output)
        arguments = [
            str(set_path),
            "--device",
            self._device,
            "--workers",
            threads,
            "--cache-dir",
            str(own),
            "--json",
            *self._more,
        ]
        figures = measured(
            [sys.executable, "-m", "orchestrator", "compile", *arguments], self._environment, output
        )
        report = json.loads(output.read_bytes())
        if "error" in report:
            raise SystemExit(f"{set_path.name}: {report['error']['message']}")
        found = report["device"]
        self.named |= {
            "device_name": found["device_name"],
            "driver": f"{found['driver_name']} {found['driver_info']}",
        }
        clock = {name: round(seconds, 6) for name, seconds in report["clock"].items() if seconds}
        return {
            **figures,
            "outcomes": report["outcomes"],
            "mode": report["mode"],
            "clock": clock,
            "told": sum(clock.values()) / figures["wall_s"],
        }

    def interpreter(self) -> Figures:
        """An interpreter that imports what every run needs, and no more."""
        return measured([sys.executable, "-c", LIBRARIES], self._environment, self._folder / "output")


def rounds_of(contest: Contest, set_path: Path, samples: int) -> Iterator[dict[str, Any]]:
    """The samples of a set; round -1 is a warm-up."""
    names = ("replayer", OURS, "replayer" + CONTROL)
    for number in range(-1, samples):
        turn = max(number, 0) % len(names)
        for name in (*names[turn:], *names[:turn]):
            for start in ("cold", "warm"):
                yield {
                    "contender": name,
                    "round": number,
                    "start": start,
                    **contest.take(name, set_path, start),
                }


def alone(contest: Contest, set_path: Path, samples: int) -> Iterator[dict[str, Any]]:
    """A process for one pipeline, and the interpreter that it needs, in turn; the cache is warm."""
    names = (LIBRARIES, OURS, LIBRARIES + CONTROL)
    contest.take(OURS, set_path, "cold")
    for number in range(-1, samples):
        turn = max(number, 0) % len(names)
        for name in (*names[turn:], *names[:turn]):
            taken = contest.take(name, set_path, "warm") if name == OURS else contest.interpreter()
            yield {"contender": name, "round": number, "start": "one pipeline", **taken}


def show(rows: Sequence[dict[str, Any]], title: str) -> None:
    """Medians and ratios of what was taken, and where our time went."""
    names = list(dict.fromkeys(row["contender"] for row in rows if not row["contender"].endswith(CONTROL)))
    print(f"\n{title}", file=sys.stderr)
    for figure in _FIGURES:
        table(rows, names, figure, lower_is_better=True)
    ours = [row for row in rows if row["contender"] == OURS and row["round"] >= 0]
    stages = {
        stage: statistics.median(row["clock"].get(stage, 0.0) for row in ours)
        for stage in dict.fromkeys(stage for row in ours for stage in row["clock"])
    }
    told = [row["told"] for row in ours]
    words = ", ".join(f"{stage.removesuffix('_s')} {seconds * 1e3:.1f}" for stage, seconds in stages.items())
    print(f"clock, ms: {words}", file=sys.stderr)
    print(
        f"of the process's time {statistics.median(told):.1%} [{min(told):.1%}, {max(told):.1%}]",
        file=sys.stderr,
    )


def main() -> None:
    """Measure the sets, cold and warm, and one pipeline."""
    parser = parser_of(__doc__.splitlines()[0].removeprefix("Question: ") if __doc__ else "")
    parser.add_argument("sets", nargs="*", type=Path, help="archives")
    parser.add_argument("--replayer", default="fossilize-replay", help="its program")
    parser.add_argument("--in-process", action="store_true", help="compile without supervision")
    parser.add_argument("--device", default="radv:navi21", help="as in `orchestrator compile --device`")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="workers, and the replayer's threads"
    )
    options = parser.parse_args()
    if shutil.which(options.replayer) is None:
        parser.error(f"{options.replayer}: no such program; name one with --replayer")
    with (
        tempfile.TemporaryDirectory() as folder,
        options.output.open("a", encoding="utf-8")
        if options.output
        else open(1, "w", closefd=False) as stream,
    ):
        more = ["--in-process"] if options.in_process else []
        contest = Contest(options.replayer, options.device, options.threads, Path(folder), more)
        one = one_pipeline(Path(folder))
        for path, taken in [
            *((path, rounds_of(contest, path, options.samples)) for path in options.sets),
            (one, alone(contest, one, options.samples)),
        ]:
            rows = []
            for row in taken:
                rows.append(
                    {"benchmark": "bench_replayer", "set": path.name, **row, **contest.named, **machine()}
                )
                stream.write(json.dumps(rows[-1]) + "\n")
                stream.flush()
            for start in dict.fromkeys(row["start"] for row in rows):
                title = f"{path.name}, {start}, {options.threads} threads, {contest.named.get('driver', '')}"
                show([row for row in rows if row["start"] == start], title)


if __name__ == "__main__":
    main()
