"""Judge SPIR-V files under limits; run as a script.

The process between this program and spirv-val. It limits itself, so that each spirv-val it starts inherits
the limits, and judges a batch of files: one start of an interpreter serves many modules.

argv: path of spirv-val, CPU seconds, bytes of memory, wall seconds, options of spirv-val after that stdin:
one path a line.   stdout: for each a line of JSON, {"path", "status", "text"}

Guarantees: imports nothing of this package; every path gets one line, or the process died, which its reader
sees.

Assumptions: paths were made by the caller and hold no line break.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

_TEXT_CAP = 2000


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (bound, bound))


def main() -> int:
    """Judge the files that stdin names."""
    program, cpu_s, memory_bytes, wall_s, *options = sys.argv[1:]
    # The limit on CPU time is each process's own; this one's is spent on waiting.
    _limit(resource.RLIMIT_CPU, int(cpu_s))
    _limit(resource.RLIMIT_AS, int(memory_bytes))
    _limit(resource.RLIMIT_CORE, 0)
    for line in sys.stdin:
        path = line.rstrip("\n")
        began = time.monotonic()
        try:
            done = subprocess.run(
                [program, *options, path],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=float(wall_s),
                check=False,
            )
            status, text = (
                done.returncode,
                (done.stderr or done.stdout)[:_TEXT_CAP].decode("utf-8", "replace"),
            )
        except subprocess.TimeoutExpired:
            status, text = None, f"no answer after {time.monotonic() - began:.0f} s"
        except OSError as error:
            status, text = 127, str(error)
        sys.stdout.write(json.dumps({"path": path, "status": status, "text": text}) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
