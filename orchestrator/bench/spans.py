# Purpose: from the reports of runs to the spans of a timeline.
# Guarantees: pure; times are those that the reports hold, on the clock of time.perf_counter_ns.
"""Timelines of runs and of whole compiles."""

from __future__ import annotations

from orchestrator.measure.trace import MAIN_ROW, Span
from orchestrator.run import RunReport
from orchestrator.run.compile_report import CompileReport

_STAGE_NAMES = {
    "open": "open device",
    "read": "read set",
    "prepare": "prepare",
    "cache_load": "load cache file",
    "cache_save": "save cache file",
}


def run_spans(report: RunReport) -> list[Span]:
    """Calls of each worker, its wait at the barrier, and the merge."""
    spans = [
        Span(
            row=f"worker {call.worker}",
            name=f"create {len(call.indices)}",
            start_ns=call.start_ns,
            duration_ns=call.wall_ns,
            category="call",
            arguments={
                "pipelines": len(call.indices),
                "first_key": f"{int(report.keys[call.indices[0]]):016x}" if len(call.indices) else "",
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
        spans.append(
            Span(
                MAIN_ROW,
                "merge",
                merge.started_ns,
                merge.merge_ns,
                "merge",
                {
                    "caches": len(merge.source_bytes),
                    "source_bytes": sum(merge.source_bytes),
                    "primary_bytes_before": merge.primary_bytes_before,
                    "primary_bytes_after": merge.primary_bytes_after,
                    "pruned_bytes": merge.pruned_bytes,
                },
            )
        )
    start = end - report.timing.wall_ns
    spans.append(
        Span(MAIN_ROW, f"run ({report.mode.value}, workers: {report.workers})", start, end - start, "run")
    )
    return spans


def compile_spans(report: CompileReport) -> list[Span]:
    """The runs of a compile, and what it did beside them: opening, preparing, loading, saving."""
    spans = [span for run in report.runs for span in run_spans(run)]
    return spans + [
        Span(MAIN_ROW, _STAGE_NAMES.get(each.name, each.name), each.start_ns, each.duration_ns, "stage")
        for each in report.stages
    ]
