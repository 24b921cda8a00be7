"""What tests of real drivers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path


@pytest.fixture
def sample() -> Iterator[PipelineSet]:
    """The sample set, open as long as its modules are read."""
    with PipelineSet.open(sample_path()) as source:
        yield source
