"""What does a cluster lose against one process?

The set is compiled by one process of T workers (1xT), which runs twice in each round as the A/A control, and
by clusters of N workers with T threads (NxT), which `--cluster local:N` starts. `wall_s` is that of the whole
command, with imports, start of the workers, transfer, merge and pack, in empty caches; `cpu_s` is that of all
processes. All share one machine: several have more memory bandwidth, and a network between them.

Command: python benchmarks/bench_cluster.py --device radv:navi21 --set SET.foz --shapes 1x16,2x8,4x4
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fresh import (
    CONTROL,
    Figures,
    environment_for,
    in_turns,
    machine,
    measured,
    row_writer,
    set_parser_of,
    table,
)


def compiled_by(shape: str, archive: str, device: str, folder: Path) -> Figures:
    """Compile the set once, with empty caches."""
    count, threads = shape.removesuffix(CONTROL).split("x")
    command = [sys.executable, "-m", "orchestrator", "compile", archive, "-d", device, "-j", threads]
    command += ["--json", "--out", str(folder / "pack")]
    if count != "1":
        command += ["--cluster", f"local:{count}"]
    figures = measured(command, environment_for(device), output := folder / "output")
    document = json.loads(output.read_bytes())
    if figures["exit"]:
        raise SystemExit(f"{shape}: {document}")
    (target,) = document["targets"]
    return {**figures, "outcomes": target["report"]["outcomes"]}


def main() -> None:
    """Measure."""
    parser = set_parser_of(__doc__)
    parser.add_argument("--shapes", default="1x2,2x1", help="NxT,...; the first one is one process")
    options = parser.parse_args()
    shapes, rows = options.shapes.split(","), []
    with row_writer(options) as write:
        for number, shape in in_turns([*shapes, shapes[0] + CONTROL], options.samples):
            with tempfile.TemporaryDirectory() as folder:
                figures = compiled_by(shape, options.set, options.device, Path(folder))
            named = {"benchmark": "bench_cluster", "set": Path(options.set).name, "device": options.device}
            rows.append({**named, "contender": shape, "round": number, **figures, **machine()})
            write(rows[-1])
    table(rows, shapes, "wall_s", lower_is_better=True)


if __name__ == "__main__":
    main()
