"""Thousands of mutants of good documents.

Each is in the image or among the problems, with a reason that is not a defect of this program, and a real
driver survives what is in the image. ORCHESTRATOR_MUTANTS says how many are made, ORCHESTRATOR_DRIVER_MUTANTS
how many the driver is given, for a longer run.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from orchestrator.devices.image import PipelineKind
from orchestrator.devices.request import DeviceRequest, OtherFeatures
from orchestrator.registry.tables import AnyDevice
from orchestrator.run.options import CompileOptions
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.archive.writer import ArchiveWriter, copy_records
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import PipelineJob
from orchestrator.supervise.trial import try_pipelines
from tests.drivers import driver_manifest
from tests.sets.image.mutants import Mutants

COUNT = int(os.environ.get("ORCHESTRATOR_MUTANTS", "3000"))
DRIVER_COUNT = int(os.environ.get("ORCHESTRATOR_DRIVER_MUTANTS", "150"))
BATCH = 1000
DRIVER = "radv:navi21"


def test_mutants_are_taken_or_fail_by_name() -> None:
    mutants = Mutants(seed=20161122)
    ends: Counter[str] = Counter()
    for _ in range(0, COUNT, BATCH):
        records, done = mutants.batch(BATCH)
        source = PipelineSet.from_records(records)
        built = build_image(source, done, AnyDevice())
        problems = {each.job: each for each in built.problems}
        taken = set(built.image.keys.tolist())
        for job, change in done.items():
            problem = problems.get(job)
            assert (problem is None) == (job.key in taken), change
            if problem is not None:
                assert problem.reason, change
                assert "defect" not in problem.reason, f"{change}: {problem.reason}"
            ends["taken" if problem is None else "unsupported" if problem.unsupported else "failed"] += 1
    assert sum(ends.values()) >= COUNT
    # Neither are all refused nor all taken: the mutants are not beside the point.
    assert min(ends.values()) > COUNT / 50, ends


@pytest.mark.driver
async def test_the_driver_survives_the_mutants_that_it_is_given(tmp_path: Path) -> None:
    driver_manifest(DRIVER)
    mutants = Mutants(seed=20260316)
    given = 0
    died: list[str] = []
    while given < DRIVER_COUNT:
        records, done = mutants.batch(BATCH)
        source = PipelineSet.from_records(records)
        taken = set(build_image(source, done, AnyDevice()).image.keys.tolist())
        jobs = [each for each in done if each.key in taken][: DRIVER_COUNT - given]
        archive = tmp_path / "mutants.foz"
        with ArchiveWriter(archive, compress=False) as writer:
            copy_records(records, writer)
        request = DeviceRequest(others=OtherFeatures.ALL)
        trials = await try_pipelines(
            [str(archive)], jobs, CompileOptions(selector=DRIVER, workers=1), request
        )
        given += len(jobs)
        assert trials.survived | set(trials.died) == set(jobs)
        died += [
            f"{job.key:#x}, {done[job]}: {end}"
            for job, end in trials.died.items()
            if not is_known(records, job)
        ]
    assert died == []


def is_known(records: MemoryRecords, job: PipelineJob) -> bool:
    """Valid usage that RADV 25.0.7 crashes on.

    Ray tracing without optimization: 9 of the sample's 10. A whole graphics pipeline that is to retain what
    links libraries: it is taken for a library, and memory behind it is written, which ends some processes.
    """
    table = {PipelineKind.RAY_TRACING: "raytracingPipelines", PipelineKind.GRAPHICS: "graphicsPipelines"}
    if job.kind not in table:
        return False
    (pipeline,) = json.loads(records.payload(job.tag, job.key))[table[job.kind]].values()
    flags = int(pipeline.get("flags", 0))
    if job.kind is PipelineKind.RAY_TRACING:
        return bool(flags & 1)  # VK_PIPELINE_CREATE_DISABLE_OPTIMIZATION_BIT
    # VK_PIPELINE_CREATE_RETAIN_LINK_TIME_OPTIMIZATION_INFO_BIT_EXT, and no VK_PIPELINE_CREATE_LIBRARY_BIT_KHR
    return flags & 0x80_0800 == 0x80_0000
