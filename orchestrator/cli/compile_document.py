# Purpose: the JSON of `compile`. docs/cli.md describes it; programs build on it.
# Guarantees: the outcomes are disjoint and sum to the unique pipelines (`not_run` is there only when the job was
# stopped); `skipped` and `failed` name every such pipeline.
"""The JSON document of the verb `compile`."""

from __future__ import annotations

import platform
from typing import Any

from attrs import asdict

from orchestrator.cli.output import (
    damage_document,
    device_document,
    key_text,
    kinds_document,
    path_text,
    request_document,
    seconds,
)
from orchestrator.devices.image import PipelineKind
from orchestrator.registry import registry
from orchestrator.run.merge import Duplicates, MergeReport, RollingReport
from orchestrator.run.records import CacheFileSummary, CompileReport, CompileTiming, OutcomeStatus, Savings
from orchestrator.version import version

_NAMES = {
    OutcomeStatus.COMPILED: "compiled",
    OutcomeStatus.CACHE_HIT: "cache_hits",
    OutcomeStatus.SKIPPED: "skipped",
    OutcomeStatus.FAILED: "failed",
    OutcomeStatus.NOT_RUN: "not_run",
}


def compile_document(report: CompileReport) -> dict[str, Any]:
    """Everything that a report says, as values that JSON has."""
    return {
        "device": device_document(report.identity, report.features),
        "set": {
            "path": path_text(report.set.name),
            "content_hash": key_text(report.set.content_hash),
            "pipelines": kinds_document(report.set.counts),
            "unique": report.set.unique,
            "applications": list(report.set.applications),
            "groups": [
                {
                    "opened_as": request_document(each.group.request),
                    "added": list(each.group.added),
                    "applications": [key_text(key) for key in each.group.applications],
                    "pipelines": each.pipelines,
                    "cache_file": None if each.cache_file is None else path_text(each.cache_file),
                }
                for each in report.set.groups
            ],
            "damage": [damage_document(each) for each in report.set.damage],
        },
        "mode": report.mode.value,
        "workers": report.workers,
        "outcomes": _outcomes(report),
        "outcomes_by_kind": {kind.value: _outcomes(report, kind) for kind in PipelineKind},
        "skipped": _problems(report, OutcomeStatus.SKIPPED),
        "failed": _problems(report, OutcomeStatus.FAILED),
        "saved": _saved(report.savings),
        "merge": _merge(report),
        "cache_file": _cache_file(report.cache_file),
        "timing": _timing(report.timing),
        "stopped": report.stopped,
        "out_of_time": report.out_of_time,
        "notes": list(report.notes),
        "versions": {
            "python": platform.python_version(),
            "orchestrator": version(),
            "registry": registry().version,
        },
    }


def _outcomes(report: CompileReport, kind: PipelineKind | None = None) -> dict[str, int]:
    return {
        _NAMES[status]: count
        for status, count in report.counts(kind).items()
        if status is not OutcomeStatus.NOT_RUN or report.stopped
    }


def _problems(report: CompileReport, status: OutcomeStatus) -> list[dict[str, str]]:
    return [
        {"key": key_text(each.job.key), "kind": each.job.kind.value, "reason": each.reason}
        for each in report.of_status(status)
    ]


def _saved(savings: Savings) -> dict[str, Any]:
    return {
        "by_state_key": savings.by_state_key,
        "by_pipeline_key": savings.by_pipeline_key,
        "driver_s": seconds(savings.driver_ns),
        "keys_asked": savings.keys_asked,
        "keys_s": seconds(savings.keys_ns),
    }


def merge_totals(report: CompileReport) -> dict[str, Any] | None:
    """Figures of the merges of all groups together; None where nothing was merged."""
    merges = [run.merge for run in report.runs if run.merge is not None]
    if not merges:
        return None
    return {
        "source_bytes": sum(sum(each.source_bytes) for each in merges),
        "primary_bytes_before": merges[0].primary_bytes_before,
        "primary_bytes_after": merges[-1].primary_bytes_after,
        "pruned_bytes": sum(each.pruned_bytes for each in merges),
        "duplicate_keys": sum(each.duplicate_job_keys.keys for each in merges),
        "duplicate_driver_s": seconds(sum(each.duplicate_job_keys.driver_ns for each in merges)),
        "merge_s": seconds(sum(each.merge_ns for each in merges)),
        "barrier_wait_s": seconds(sum(sum(each.barrier_wait_ns) for each in merges)),
    }


def _merge(report: CompileReport) -> dict[str, Any] | None:
    totals = merge_totals(report)
    if totals is None:
        return None
    return totals | {"groups": [_one_merge(run.merge) for run in report.runs if run.merge is not None]}


def _one_merge(merge: MergeReport) -> dict[str, Any]:
    return {
        "source_bytes": list(merge.source_bytes),
        "seed_bytes": merge.seed_bytes,
        "primary_bytes_before": merge.primary_bytes_before,
        "primary_bytes_after": merge.primary_bytes_after,
        "pruned_bytes": merge.pruned_bytes,
        "duplicate_job_keys": _duplicates(merge.duplicate_job_keys),
        "duplicate_pipeline_keys": None
        if merge.duplicate_pipeline_keys is None
        else _duplicates(merge.duplicate_pipeline_keys),
        "barrier_wait_s": [seconds(each) for each in merge.barrier_wait_ns],
        "merge_s": seconds(merge.merge_ns),
        "warnings": list(merge.warnings),
        "rolling": None if merge.rolling is None else _rolling(merge.rolling),
    }


def _rolling(rolling: RollingReport) -> dict[str, Any]:
    return {
        "folds": rolling.folds,
        "caches": rolling.caches,
        "pipelines": rolling.pipelines,
        "source_bytes": rolling.source_bytes,
        "merge_s": seconds(rolling.merge_ns),
        "hook_s": seconds(rolling.hook_ns),
        "longest_pause_s": seconds(rolling.longest_pause_ns),
        "deferred": rolling.deferred,
        "synchronized_by": rolling.synchronized_by,
    }


def _duplicates(duplicates: Duplicates) -> dict[str, Any]:
    return {"keys": duplicates.keys, "driver_s": seconds(duplicates.driver_ns)}


def _cache_file(file: CacheFileSummary) -> dict[str, Any]:
    document: dict[str, Any] = {"path": None if file.path is None else path_text(file.path)}
    loaded = file.loaded
    instead_of = None if loaded is None else loaded.instead_of
    return document | {
        "load_status": None if loaded is None else loaded.status.value,
        "load_field": None if loaded is None else loaded.field,
        "load_detail": None if loaded is None else loaded.detail,
        "loaded_from": None if loaded is None else path_text(loaded.path),
        "instead_of": None
        if instead_of is None
        else {"status": instead_of.status.value, "field": instead_of.field, "detail": instead_of.detail},
        "quarantined": None
        if loaded is None or loaded.quarantined is None
        else path_text(loaded.quarantined),
        "loaded_bytes": file.loaded_bytes,
        "saved_bytes": file.saved_bytes,
        "not_saved": file.not_saved or None,
        "error": file.error or None,
        "saves": [
            {
                "reason": each.reason.value,
                "saved_bytes": each.saved_bytes,
                "bytes_before": each.bytes_before,
                "bytes_after": each.bytes_after,
                "merged_with_others": each.merged_with_others,
                "skipped": each.skipped or None,
                "error": each.error or None,
                "note": each.note or None,
            }
            for each in file.saves
        ],
    }


def _timing(timing: CompileTiming) -> dict[str, float]:
    return {
        f"{name.removesuffix('_ns')}_s": seconds(nanoseconds) for name, nanoseconds in asdict(timing).items()
    }
