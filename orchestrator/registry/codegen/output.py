"""Writes a generated file, or shows how the committed one differs; shared by the generators."""

from __future__ import annotations

import argparse
import difflib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

DIFF_LINES = 200


def generator_main(
    module: str, target: Path, generate: Callable[[], str], arguments: list[str] | None
) -> int:
    """Write a generated file, or with --check compare it; the command line of a generator."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=f"Write {target.name}.")
    parser.add_argument("--check", action="store_true", help="exit 1 with a diff instead of writing")
    return write_or_check(target, generate(), check=parser.parse_args(arguments).check)


def write_or_check(target: Path, text: str, *, check: bool) -> int:
    """Write `text` to a generated file; to check, compare the two instead and print a diff."""
    if not check:
        target.write_text(text, encoding="utf-8", newline="\n")
        print(f"{target}: {len(text.encode())} bytes written")
        return 0
    committed = target.read_text(encoding="utf-8") if target.exists() else ""
    if committed == text:
        print(f"{target}: up to date")
        return 0
    diff = difflib.unified_diff(
        committed.splitlines(),
        text.splitlines(),
        f"{target.name} (committed)",
        f"{target.name} (generated)",
        "",
        "",
        1,
        "",
    )
    for line in itertools.islice(diff, DIFF_LINES):
        print(line)
    if next(diff, None) is not None:
        print(f"... more than {DIFF_LINES} lines of difference")
    print(f"{target}: differs from what the generator makes; run the generator and commit", file=sys.stderr)
    return 1
