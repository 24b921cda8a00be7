"""Writes a generated file, or shows how the committed one differs; shared by the generators."""

from __future__ import annotations

import difflib
import itertools
import sys
from pathlib import Path

DIFF_LINES = 200


def write_or_check(target: Path, text: str, *, check: bool) -> int:
    """Write `text` to a generated file; to check, compare the two instead and print a diff.

    Returns:
        0, or 1 where the check finds a difference.
    """
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
