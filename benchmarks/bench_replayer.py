"""How long does a whole process take, from a file to the last pipeline, compared with a replayer?

Both compile the same set on the same device with the same number of threads, first without a cache, then with
the cache that they saved. The replayer is Fossilize's `fossilize-replay`, built by the user from its public
sources. It runs twice in each round, which is the A/A control. Contenders take turns; the driver's own caches
are off.

    wall_s, cpu_s, peak_mib   of the whole process, measured from outside; CPU time includes its children
    clock                     the time of each stage, as our process reports it
    told                      the share of wall_s that these stages explain

At the end, one pipeline is compared with an interpreter that imports what a run needs. On a busy machine
compare CPU time. A set that crashes the driver ends the replayer, unless it is told to use processes of its
own: --replayer-options "--master-process --quiet-slave". With --beside another checkout takes part.

Command: python benchmarks/bench_replayer.py --replayer fossilize-replay --threads 16 --samples 5
         --output FILE SET.foz...
"""

from __future__ import annotations

import os
import shlex
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fresh import (
    CONTROL,
    LIBRARIES,
    ROOT,
    Figures,
    compiled,
    environment_for,
    in_turns,
    machine,
    measured,
    one_pipeline,
    parser_of,
    row_writer,
    table,
)

OURS = "orchestrator"
_FIGURES = ("wall_s", "cpu_s", "peak_mib")


class Contest:
    """Our program, perhaps of another checkout too, and a replayer, on one device."""

    def __init__(
        self,
        replayer: Sequence[str],
        device: str,
        threads: int,
        folder: Path,
        more: Sequence[str] = (),
        *,
        beside: Path | None = None,
    ) -> None:
        self._more = more
        self.checkouts = {OURS: ROOT, **({} if beside is None else {f"{OURS} of {beside.name}": beside})}
        self._replayer, self._device, self._threads, self._folder = replayer, device, threads, folder
        self._environment = environment_for(device)
        self.named: Figures = {
            "device": device,
            "threads": threads,
            "options": list(more),
            "replayer_options": [*replayer[1:]],
        }

    def take(self, contender: str, set_path: Path, start: str) -> Figures:
        """Run one process; a cold one starts without the cache of its contender."""
        own = self._folder / contender.replace(" ", "-")
        if start == "cold":
            shutil.rmtree(own, ignore_errors=True)
            own.mkdir(mode=0o700)
        if contender not in self.checkouts:
            options = [
                "--num-threads",
                str(self._threads),
                "--on-disk-pipeline-cache",
                str(own / "cache.bin"),
            ]
            command = [*self._replayer, *options, str(set_path)]
            return measured(command, self._environment, self._folder / "output")
        figures, report = compiled(
            set_path, self._device, self._threads, own, *self._more, checkout=self.checkouts[contender]
        )
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
        """Run an interpreter that only imports what every run needs."""
        return measured([sys.executable, "-c", LIBRARIES], self._environment, self._folder / "output")


def rounds_of(contest: Contest, set_path: Path, samples: int) -> Iterator[dict[str, Any]]:
    """The samples of a set; round -1 is a warm-up."""
    names = ("replayer", *contest.checkouts, "replayer" + CONTROL)
    for number, name in in_turns(names, samples):
        for start in ("cold", "warm"):
            taken = contest.take(name, set_path, start)
            yield {"contender": name, "round": number, "start": start, **taken}


def alone(contest: Contest, set_path: Path, samples: int) -> Iterator[dict[str, Any]]:
    """A warm process for one pipeline, and an interpreter with its imports, in turn."""
    names = (LIBRARIES, OURS, LIBRARIES + CONTROL)
    contest.take(OURS, set_path, "cold")
    for number, name in in_turns(names, samples):
        taken = contest.take(name, set_path, "warm") if name == OURS else contest.interpreter()
        yield {"contender": name, "round": number, "start": "one pipeline", **taken}


def show(rows: Sequence[dict[str, Any]], title: str) -> None:
    """Print medians and ratios, and the time of each of our stages."""
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
    parser = parser_of(__doc__)
    parser.add_argument("sets", nargs="*", type=Path, help="archives")
    parser.add_argument("--replayer", default="fossilize-replay", help="its program")
    parser.add_argument("--replayer-options", default="", help="more options for it, in one text")
    parser.add_argument("--beside", type=Path, help="checkout of another version, which takes turns")
    parser.add_argument("--in-process", action="store_true", help="compile without supervision")
    parser.add_argument("--device", default="radv:navi21", help="as in `orchestrator compile --device`")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="workers, and the replayer's threads"
    )
    options = parser.parse_args()
    if shutil.which(options.replayer) is None:
        parser.error(f"{options.replayer}: no such program; name one with --replayer")
    with tempfile.TemporaryDirectory() as folder, row_writer(options) as write:
        more = ["--in-process"] if options.in_process else []
        replayer = [options.replayer, *shlex.split(options.replayer_options)]
        contest = Contest(
            replayer, options.device, options.threads, Path(folder), more, beside=options.beside
        )
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
                write(rows[-1])
            for start in dict.fromkeys(row["start"] for row in rows):
                title = f"{path.name}, {start}, {options.threads} threads, {contest.named.get('driver', '')}"
                show([row for row in rows if row["start"] == start], title)


if __name__ == "__main__":
    main()
