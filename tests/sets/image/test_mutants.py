"""Thousands of mutants of good documents.

Each is in the image or among the problems, with a reason that is not a defect of this program.
"""

from __future__ import annotations

from collections import Counter

from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from tests.campaigns import tries
from tests.sets.image.mutants import Mutants

COUNT = tries(1000, 20_000)
BATCH = 1000


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
