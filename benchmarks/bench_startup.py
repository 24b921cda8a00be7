"""What do `import orchestrator`, `orchestrator --help`, and a whole process for one pipeline cost?

Lower bounds: an interpreter that does nothing, one that imports trio, and one that imports the libraries that
every run needs. The goal: a process that compiles one pipeline takes at most twice as long as the last one.
Each sample is a fresh interpreter, timed from outside; files are in the page cache. On a busy machine compare
CPU time. What keeps the time low:

- Public names are loaded on first use, and a verb imports what it needs when it is called.
- Values are structures of msgspec, whose classes take 10 us to make instead of 350 for generated code. The
  byte code of other generated code is kept, and that of all that a compile imports, in one file each.
- The process that compiles is a fork. Another fork parses its command line during the imports.
- The registry is read only for a Vulkan device or a captured set. The list of verbs is plain text, because
  Markdown costs an import.
- The process has no BLAS threads, collects garbage rarely, and ends without tearing down the interpreter.

The rest of `--help` is the command-line library, whose import is a contender here, and drawing its panels.

Command: python benchmarks/bench_startup.py --samples 7 --device radv:navi21
         --output benchmarks/results/2-cores/startup.jsonl
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fresh import (
    LIBRARIES,
    Figures,
    Job,
    answer_if_asked,
    compare,
    environment_for,
    measured,
    one_pipeline,
    parser_of,
)

CONTENDERS: dict[str, Job] = {
    "python, nothing": {"code": "pass"},
    "import trio": {"code": "import trio"},
    "import cyclopts": {"code": "import cyclopts"},
    LIBRARIES: {"code": LIBRARIES},
    "import orchestrator": {"code": "import orchestrator"},
    "orchestrator.run_pipelines": {"code": "from orchestrator import run_pipelines"},
    "every public name": {
        "code": "import orchestrator\nfor name in dir(orchestrator): getattr(orchestrator, name)"
    },
    "orchestrator --help": {"module": "orchestrator", "arguments": ["--help"]},
    "orchestrator compile --help": {"module": "orchestrator", "arguments": ["compile", "--help"]},
    "orchestrator bench --help": {"module": "orchestrator", "arguments": ["bench", "--help"]},
}


def measure(job: Job) -> Figures:
    """Start one interpreter."""
    if "code" in job:
        command = [sys.executable, "-c", job["code"]]
    else:
        command = [sys.executable, "-m", job["module"], *job["arguments"]]
    figures = measured(command, environment_for(), Path(os.devnull))
    if figures["exit"]:
        raise SystemExit(f"{' '.join(command)}: exit code {figures['exit']}")
    return {"seconds": figures["wall_s"], "cpu_s": figures["cpu_s"]}


def main() -> None:
    """Measure the contenders."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="simulated", help="the device for the one pipeline")
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    with TemporaryDirectory() as folder:
        path = one_pipeline(Path(folder))
        arguments = ["compile", str(path), "--device", options.device, "--cache-dir", folder]
        whole: Job = {"module": "orchestrator", "arguments": arguments}
        compare(
            __file__,
            {LIBRARIES: CONTENDERS[LIBRARIES], "compile one pipeline": whole, **CONTENDERS},
            options,
            figure="seconds",
        )


if __name__ == "__main__":
    main()
