"""Timelines of runs and compiles as Chrome trace events: JSON for Perfetto and chrome://tracing.

Uses two events of the Trace Event Format: "X", a complete event with `ts` and `dur` in microseconds, and "M",
the name of a process or row (`tid`). Times count from the earliest span. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from attrs import field, frozen

from orchestrator.run.records import CompileReport, RunReport

MAIN_ROW = "main"
"""The row for the stages of the run itself: opening, merging, saving."""
_OVERLAPPED_ROW = "other groups"
_STAGE_NAMES = {
    "open": "open device",
    "read": "read set",
    "prepare": "prepare",
    "cache_load": "load cache file",
    "cache_save": "save cache file",
}


@frozen
class Span:
    """A bar in a timeline."""

    row: str  # The row that it belongs to, such as "worker 3".
    name: str
    start_ns: int  # Begin, on the clock of time.perf_counter_ns.
    duration_ns: int
    category: str = "run"  # Name for filters, such as "call".
    arguments: Mapping[str, Any] = field(factory=dict)  # Details to show on a click.


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the format: a bar (`ph` "X") or a name (`ph` "M")."""

    name: str
    ph: str
    pid: int = 1
    tid: int = 0
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] = {}


class _Trace(msgspec.Struct):
    events: list[TraceEvent] = msgspec.field(name="traceEvents")
    unit: str = msgspec.field(name="displayTimeUnit", default="ms")


_decoder = msgspec.json.Decoder(_Trace)


def encode_trace(spans: Sequence[Span], *, process: str = "orchestrator") -> bytes:
    """Encode spans as a trace: the main row first, the others sorted by name and number."""
    number = {row: place for place, row in enumerate(sorted({each.row for each in spans}, key=_row_order))}
    first = min((each.start_ns for each in spans), default=0)
    events = [TraceEvent(name="process_name", ph="M", args={"name": process})]
    for row, tid in number.items():
        events.append(TraceEvent(name="thread_name", ph="M", tid=tid, args={"name": row}))
        events.append(TraceEvent(name="thread_sort_index", ph="M", tid=tid, args={"sort_index": tid}))
    events += [
        TraceEvent(
            name=each.name,
            ph="X",
            tid=number[each.row],
            cat=each.category,
            ts=(each.start_ns - first) / 1000,
            dur=each.duration_ns / 1000,
            args=dict(each.arguments),
        )
        for each in sorted(spans, key=lambda span: (number[span.row], span.start_ns, -span.duration_ns))
    ]
    return msgspec.json.encode(_Trace(events))


def events_of(trace: bytes) -> list[TraceEvent]:
    """The events of a trace of `encode_trace`.

    Raises:
        ValueError: The trace is invalid.
    """
    try:
        return _decoder.decode(trace).events
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error


def join_traces(traces: Iterable[Sequence[TraceEvent]]) -> bytes:
    """Join the events of traces into one, each as its own process."""
    numbered = enumerate(traces, 1)
    events = [msgspec.structs.replace(each, pid=number) for number, trace in numbered for each in trace]
    return msgspec.json.encode(_Trace(events))


def _row_order(row: str) -> tuple[bool, str, int]:
    name, _, number = row.rpartition(" ")
    return (row != MAIN_ROW, name, int(number)) if number.isdecimal() else (row != MAIN_ROW, row, -1)


def run_spans(report: RunReport) -> list[Span]:
    """The calls of each worker, its wait at the barrier, and the merge."""
    keys = report.pipelines.keys
    spans = [
        Span(
            f"worker {call.worker}",
            f"create {len(call.indices)}",
            call.start_ns,
            call.wall_ns,
            "call",
            {
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
        details = {
            "caches": len(merge.source_bytes),
            "source_bytes": sum(merge.source_bytes),
            "primary_bytes_before": merge.primary_bytes_before,
            "primary_bytes_after": merge.primary_bytes_after,
            "pruned_bytes": merge.pruned_bytes,
        }
        spans.append(Span(MAIN_ROW, "merge", merge.started_ns, merge.merge_ns, "merge", details))
    name, wall_ns = f"run ({report.mode.value}, workers: {report.workers})", report.timing.wall_ns
    return [*spans, Span(MAIN_ROW, name, end - wall_ns, wall_ns)]


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
