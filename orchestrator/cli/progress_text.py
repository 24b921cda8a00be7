"""How far a compile is, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.cli.output import key_text, seconds_text, styled

if TYPE_CHECKING:
    from rich.text import Text

    from orchestrator.run import records

_SLOW_S: Final = 2.0


def counts_text(progress: records.Progress) -> Text:
    """Compiled, hits, skipped, failed and what is in flight."""
    from rich.text import Text

    parts = [
        styled(f"{progress.compiled:,} compiled"),
        styled(f"{progress.hits:,} cache hits"),
        styled(f"{progress.skipped:,} skipped"),
        styled(f"{progress.failed:,} failed", "bad" if progress.failed else ""),
    ]
    return Text(" · ").join(parts)


def speed_text(progress: records.Progress) -> str:
    """Rate and time to go."""
    if progress.done >= progress.total:
        return ""
    eta = "time to go not known yet" if progress.eta_s is None else f"{seconds_text(progress.eta_s)} to go"
    rate = (
        f"{progress.rate:,.0f}/s, "
        if progress.rate >= 10
        else f"{progress.rate:.2g}/s, "
        if progress.rate
        else ""
    )
    return rate + eta


def slow_text(progress: records.Progress) -> str:
    """What has been in the driver the longest, once that is long; "" before."""
    slow = progress.slowest
    if slow is None or slow.age_s < _SLOW_S:
        return ""
    among = f" (one of {slow.pipelines})" if slow.pipelines > 1 else ""
    kind = slow.kind.value.replace("_", " ")
    return f"longest in the driver: {kind} {key_text(slow.key)}{among}, {seconds_text(slow.age_s)}"
