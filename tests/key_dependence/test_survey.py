"""The choice of the pipelines that are looked up."""

from __future__ import annotations

import pytest

from orchestrator.key_dependence import survey as module
from orchestrator.key_dependence.messages import SurveyJob
from orchestrator.key_dependence.survey import survey
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from tests.key_dependence.planted import OPENER


def test_those_with_the_same_code_that_are_not_looked_at_would_not_be_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = SurveyJob(device="simulated", opener=OPENER)
    with PipelineSet.open(sample_path()) as source:
        found = survey(job, source)
        monkeypatch.setattr(module, "_ALIKE", len(source))
        assert survey(job, source) == found
