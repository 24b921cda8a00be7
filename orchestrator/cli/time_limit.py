# Purpose: times as people write them on a command line.
"""Options that are a time, such as ``--time-limit``."""

from __future__ import annotations

import re

from orchestrator.cli.errors import UsageError

_UNITS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|min|h|)")


def time_limit_seconds(text: str, option: str = "--time-limit") -> float:
    """Seconds of a time such as ``90s``, ``20m`` or ``2h``; without a unit they are seconds.

    Args:
        text: The time.
        option: The option that it was given for.

    Raises:
        UsageError: It is none, or 0.
    """
    found = _TIME.fullmatch(text)
    if found is None or not float(found[1]):
        raise UsageError(f"{option} {text!r}: a time such as 90s, 20m or 2h is expected")
    return float(found[1]) * _UNITS[found[2]]
