"""Cost of starting.

What do `import orchestrator`, using it, `orchestrator --help`, and a whole process for one pipeline cost?

Floors: an interpreter that does nothing, one that imports trio alone, and one that imports the libraries
that every run needs. The project's bound: a process that compiles one pipeline takes at most twice the
last. Each sample is a fresh interpreter, timed from outside, start to end; files are in the page cache.
Its CPU time is in the lines too: on a busy machine that says more. What was done to keep it low: public
names are loaded when they are first used; a verb imports what it needs when it is called; values are
structures of msgspec, whose class takes 10 us to make, where code that is generated and compiled takes
350, and the byte code of what is generated all the same is kept; the process that compiles is a fork, and
another fork parses its command line beside the imports; the registry is read when a Vulkan device or a
captured set is used; the list of verbs is plain text, because reading Markdown costs an import. The
program's process has no threads of BLAS, collects seldom, and ends without taking the interpreter apart.
The rest of `--help` is the library of the command line, whose import alone is a contender here, and
drawing its panels.

Byte code must be written, as it is where the package is installed: PYTHONDONTWRITEBYTECODE is
taken out of the environment.

Command: python benchmarks/bench_startup.py --samples 7 --device radv:navi21
         --output benchmarks/results/2-cores/startup.jsonl
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, parser_of
from orchestrator.sets.authoring.manifest import pack_manifest
from orchestrator.sets.sample import sample_path

LIBRARIES = "import trio, numpy, attrs, msgspec, cffi"
CONTENDERS: dict[str, Job] = {
    "python, nothing": {"code": "pass"},
    "import trio": {"code": "import trio"},
    "import cyclopts": {"code": "import cyclopts"},
    LIBRARIES: {"code": "import trio, numpy, attrs, msgspec, cffi"},
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


def one_pipeline(folder: Path) -> Path:
    """A set of one compute pipeline."""
    shader = sample_path().parent / "shaders" / "blur.comp.spv"
    manifest, path = folder / "one.toml", folder / "one.foz"
    manifest.write_text(f'manifest = 1\n\n[compute.blur]\nshader = "{shader}"\n', "utf-8")
    pack_manifest(manifest, path)
    return path


def main() -> None:
    """Measure the contenders."""
    parser = parser_of("What do importing the package, asking for help, and compiling one pipeline cost?")
    parser.add_argument("--device", default="simulated", help="what compiles the one pipeline")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
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
