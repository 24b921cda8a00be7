"""Code that is supplied later is judged as a set's own modules are."""

from __future__ import annotations

import re

import pytest

from orchestrator.devices.identified import SpirvProvider
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.authoring.builder import PipelineSetBuilder
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.needs.supplied import SuppliedJudge
from orchestrator.sets.pipeline_set import PipelineSet
from tests.sets.needs.fake_capabilities import Bare
from tests.sets.spirv.shader_words import compute_module

SHADER = compute_module()


@pytest.mark.parametrize(
    ("code", "reason", "unsupported"),
    [
        (SHADER, "", False),
        ("text", "the provider gave str and not bytes", False),
        (b"text", "the provider gave what is no SPIR-V", False),
        (SHADER[:-4], "the provider gave what is no SPIR-V: .* it ends within a function", False),
        (compute_module(entry="other"), "without the entry point 'main' of stage 0x20", False),
        (compute_module(capabilities=(1, 42)), "SPIR-V capability MinLod", True),
    ],
)
def test_supplied_code_is_judged(code: object, reason: str, unsupported: bool) -> None:
    records = MemoryRecords()
    builder = PipelineSetBuilder(records)
    builder.compute_pipeline(builder.pipeline_layout(), builder.supplied_module(7, "compute"))
    source = PipelineSet.from_records(records).supplied_by(SpirvProvider(lambda _: SHADER))
    image = build_image(source, source.pipelines, Bare()).image
    refusal = SuppliedJudge(image, Bare()).refusal(0, code)
    assert (refusal is None) == (reason == "")
    if refusal is not None:
        assert re.search(reason, refusal.reason)
        assert refusal.unsupported == unsupported


def test_a_provider_translates_by_a_function() -> None:
    with pytest.raises(TypeError, match="must be callable"):
        SpirvProvider(3, revision="1")  # type: ignore[arg-type]
