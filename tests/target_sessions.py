"""Runs the sessions of targets, one after another, for isolation.py.

A process of its own, so that what tests see of theirs does not change.

Standard input is a plan in one line of JSON: of each session target, command, environment and the file for
what it prints. A line with target and exit status is written when one ends. It stays until its standard input
does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Run the plan."""
    for each in json.loads(sys.stdin.readline()):
        with Path(each["printed"]).open("wb") as printed:
            status = subprocess.run(
                each["command"],
                env=each["environment"],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        print(json.dumps([each["target"], status]), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
