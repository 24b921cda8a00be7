"""Cost of starting.

What do `import orchestrator`, using it, and `orchestrator --help` cost?

Floors: an interpreter that does nothing, and one that imports trio alone, which nothing that runs pipelines
can be quicker than. Each sample is a fresh interpreter, timed from outside, start to end; files are in the
page cache. Its CPU time is in the lines too: on a busy machine that says more. What was done to keep it
low: public names are loaded when they are first used; a verb imports what it needs when it is called; the
registry is read when a Vulkan device or a captured set is used; the list of verbs is plain text, because
reading Markdown costs an import, and the package's version is looked up where it is asked for. The rest of
`--help` is the library of the command line, whose import alone is a contender here, and drawing its panels.

Command: python benchmarks/bench_startup.py --samples 15 --output benchmarks/results/2-cores/startup.jsonl
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, parser_of

CONTENDERS: dict[str, Job] = {
    "python, nothing": {"code": "pass"},
    "import trio": {"code": "import trio"},
    "import cyclopts": {"code": "import cyclopts"},
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
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return {"seconds": seconds, "cpu_s": cpu}


def main() -> None:
    """Measure the contenders."""
    options = parser_of("What do importing the package and asking for help cost?").parse_args()
    if not answer_if_asked(options, measure):
        compare(__file__, CONTENDERS, options, figure="seconds")


if __name__ == "__main__":
    main()
