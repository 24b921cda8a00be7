# Purpose: what happened when, as Chrome trace events: a JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open.
#
# Format (Trace Event Format): an object with `traceEvents`; "X" is a complete event with `ts` and `dur` in microseconds,
# "M" names a process or thread, `tid` is the row it is drawn in.
#
# Guarantees: pure. Times count from the earliest span. Events of a row are in the order of their start. Names and
# arguments from archives go through the JSON encoder and nothing else, so nothing in them can end a string.
"""Timelines as Chrome trace events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from attrs import field, frozen

MAIN_ROW = "main"
"""The row of what the run itself does: opening, merging, saving."""


@frozen
class Span:
    """Something that took time.

    Attributes:
        row: Who did it, such as "worker 3": one row of the timeline each.
        name: What.
        start_ns: When it began, on the clock of time.perf_counter_ns.
        duration_ns: How long it took.
        category: For filters, such as "call".
        arguments: What a click on it shows.
    """

    row: str
    name: str
    start_ns: int
    duration_ns: int
    category: str = ""
    arguments: Mapping[str, Any] = field(factory=dict)


def trace_document(spans: Sequence[Span], *, process: str = "orchestrator") -> dict[str, Any]:
    """Spans as a trace; the main row first, the others by their name, numbers in them by value.

    Args:
        spans: What happened.
        process: Name of the process.
    """
    rows = sorted({each.row for each in spans}, key=_row_order)
    number = {row: place for place, row in enumerate(rows)}
    first = min((each.start_ns for each in spans), default=0)
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": process}},
    ]
    for row in rows:
        events.append({"name": "thread_name", "ph": "M", "pid": 1, "tid": number[row], "args": {"name": row}})
        events.append(
            {
                "name": "thread_sort_index",
                "ph": "M",
                "pid": 1,
                "tid": number[row],
                "args": {"sort_index": number[row]},
            }
        )
    events += [
        {
            "name": each.name,
            "cat": each.category or "run",
            "ph": "X",
            "pid": 1,
            "tid": number[each.row],
            "ts": (each.start_ns - first) / 1000,
            "dur": each.duration_ns / 1000,
            "args": dict(each.arguments),
        }
        for each in sorted(spans, key=lambda span: (number[span.row], span.start_ns, -span.duration_ns))
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def join_traces(traces: Sequence[bytes]) -> bytes:
    """Several traces as one, each with its processes beside the others'.

    Args:
        traces: What `encode_trace` gave.

    Raises:
        msgspec.MsgspecError: One of them is something else.
    """
    events = []
    for number, trace in enumerate(traces, 1):
        for event in msgspec.json.decode(trace, type=dict[str, Any])["traceEvents"]:
            events.append({**event, "pid": number})
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})


def encode_trace(spans: Sequence[Span], *, process: str = "orchestrator") -> bytes:
    """The JSON of a trace."""
    return msgspec.json.encode(trace_document(spans, process=process))


def _row_order(row: str) -> tuple[bool, str, int]:
    name, _, number = row.rpartition(" ")
    return (row != MAIN_ROW, name, int(number)) if number.isdecimal() else (row != MAIN_ROW, row, -1)
