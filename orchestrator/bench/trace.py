"""Timelines of runs and compiles as Chrome trace events: JSON for Perfetto and chrome://tracing.

Uses two events of the Trace Event Format: "X", a complete event with `ts` and `dur` in microseconds, and "M",
the name of a process or row (`tid`). Times count from the earliest span.

Guarantees: pure. The JSON encoder escapes names and arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from attrs import field, frozen

from orchestrator.run.records import CompileReport, RunReport

MAIN_ROW = "main"
"""The row for the stages of the run itself: opening, merging, saving."""
_OVERLAPPED_ROW = "other groups"


@frozen
class Span:
    """A bar in a timeline.

    Attributes:
        row: The row that it belongs to, such as "worker 3".
        name: Its name.
        start_ns: Begin, on the clock of time.perf_counter_ns.
        duration_ns: Duration.
        category: Name for filters, such as "call".
        arguments: Details to show on a click.
    """

    row: str
    name: str
    start_ns: int
    duration_ns: int
    category: str = ""
    arguments: Mapping[str, Any] = field(factory=dict)


def encode_trace(spans: Sequence[Span], *, process: str = "orchestrator") -> bytes:
    """Encode spans as a trace: the main row first, the others sorted by name and number.

    Args:
        spans: The spans.
        process: Name of the process.
    """
    number = {row: place for place, row in enumerate(sorted({each.row for each in spans}, key=_row_order))}
    first = min((each.start_ns for each in spans), default=0)
    events: list[dict[str, Any]] = [_named("process_name", name=process)]
    for row, tid in number.items():
        events.append(_named("thread_name", tid, name=row))
        events.append(_named("thread_sort_index", tid, sort_index=tid))
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
    return _document(events)


class _Named(msgspec.Struct, tag_field="ph", tag="M"):
    name: str
    args: dict[str, str | int]
    tid: int = 0


class _Bar(msgspec.Struct, tag_field="ph", tag="X"):
    name: str
    cat: str
    tid: int
    ts: float
    dur: float


class _Trace(msgspec.Struct):
    events: list[dict[str, Any]] = msgspec.field(name="traceEvents")


def events_of(trace: bytes) -> list[dict[str, Any]]:
    """The events of a trace of `encode_trace`.

    Raises:
        ValueError: The trace is invalid.
    """
    try:
        events = msgspec.json.decode(trace, type=_Trace).events
        msgspec.convert(events, list[_Named | _Bar])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return events


def join_traces(traces: Sequence[bytes]) -> bytes:
    """Join traces of `encode_trace` into one, each as its own process.

    Raises:
        ValueError: A trace is invalid.
    """
    return _document(
        [{**event, "pid": number} for number, trace in enumerate(traces, 1) for event in events_of(trace)]
    )


def _document(events: list[dict[str, Any]]) -> bytes:
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})


def _named(what: str, tid: int | None = None, **arguments: object) -> dict[str, Any]:
    row = {} if tid is None else {"tid": tid}
    return {"name": what, "ph": "M", "pid": 1, **row, "args": arguments}


def _row_order(row: str) -> tuple[bool, str, int]:
    name, _, number = row.rpartition(" ")
    return (row != MAIN_ROW, name, int(number)) if number.isdecimal() else (row != MAIN_ROW, row, -1)


_STAGE_NAMES = {
    "open": "open device",
    "read": "read set",
    "prepare": "prepare",
    "cache_load": "load cache file",
    "cache_save": "save cache file",
}


def run_spans(report: RunReport) -> list[Span]:
    """The calls of each worker, its wait at the barrier, and the merge."""
    keys = report.pipelines.keys
    spans = [
        Span(
            row=f"worker {call.worker}",
            name=f"create {len(call.indices)}",
            start_ns=call.start_ns,
            duration_ns=call.wall_ns,
            category="call",
            arguments={
                "pipelines": len(call.indices),
                "first_key": "".join(f"{int(keys[index]):016x}" for index in call.indices[:1]),
                "driver_us": call.driver_ns / 1000,
                "cpu_us": call.cpu_ns / 1000,
                "run_delay_us": call.run_delay_ns / 1000,
                "blocked_us": call.blocked_ns / 1000,
            },
        )
        for call in report.calls
    ]
    end = report.barrier.end_ns
    spans += [
        Span(f"worker {number}", "barrier", arrived, end - arrived, "barrier")
        for number, arrived in enumerate(report.barrier.arrivals_ns)
        if 0 < arrived < end
    ]
    merge = report.merge
    if merge is not None and merge.source_bytes:
        told = {
            "caches": len(merge.source_bytes),
            "source_bytes": sum(merge.source_bytes),
            "primary_bytes_before": merge.primary_bytes_before,
            "primary_bytes_after": merge.primary_bytes_after,
            "pruned_bytes": merge.pruned_bytes,
        }
        spans.append(Span(MAIN_ROW, "merge", merge.started_ns, merge.merge_ns, "merge", told))
    name, wall_ns = f"run ({report.mode.value}, workers: {report.workers})", report.timing.wall_ns
    return [*spans, Span(MAIN_ROW, name, end - wall_ns, wall_ns, "run")]


def compile_spans(report: CompileReport) -> list[Span]:
    """The runs of a compile and its other stages: opening, preparing, loading, saving."""
    spans = [span for run in report.runs for span in run_spans(run)]
    ends: list[int] = []  # of the last stage in each row of overlapped ones: those of a row must not cross
    for each in sorted(report.stages, key=lambda stage: stage.start_ns):
        row = MAIN_ROW
        if each.overlapped:
            place = next((place for place, end in enumerate(ends) if end <= each.start_ns), len(ends))
            ends[place : place + 1] = [each.start_ns + each.duration_ns]
            row = f"{_OVERLAPPED_ROW} {place + 1}"
        name = _STAGE_NAMES.get(each.name, each.name)
        spans.append(Span(row, name, each.start_ns, each.duration_ns, "stage"))
    return spans
