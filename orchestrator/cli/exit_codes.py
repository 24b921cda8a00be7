# Purpose: what the exit status of every verb means; scripts build on it, so a meaning never changes.
"""Exit codes of the command line."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """The exit status of a verb.

    OK: all good.
    PIPELINES_FAILED: the verb did its work, and some pipelines failed.
    BAD_INPUT: usage, a file that is not what it should be, or a place that cannot be written.
    NO_DEVICE: no device answers, or the one that does cannot be used.
    BUG: the program itself failed; not 1, which would say that it did its work.
    OUT_OF_TIME: the time budget was used up before the work was done; running again goes on.
    INTERRUPTED: stopped by SIGINT or SIGTERM; what was done by then is kept.
    BROKEN_PIPE: whoever read the output went away, as for a program that SIGPIPE ends.
    """

    OK = 0
    PIPELINES_FAILED = 1
    BAD_INPUT = 2
    NO_DEVICE = 3
    BUG = 70
    OUT_OF_TIME = 75
    INTERRUPTED = 130
    BROKEN_PIPE = 141
