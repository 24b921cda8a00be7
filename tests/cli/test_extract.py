"""The verb `extract`: exactly these pipelines, and what they need."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import RecordTag
from tests.cli.conftest import Call
from tests.drivers import CORPORA


def test_one_pipeline_with_what_it_needs(call: Call, small_set: Path, tmp_path: Path) -> None:
    with PipelineSet.open(small_set) as source:
        key = source.pipelines[3].key
        application = source.tag_counts[RecordTag.APPLICATION_INFO]
    out = tmp_path / "one.foz"
    done = call("extract", small_set, "--only", f"{key:016x}", "-o", out, "--json")
    assert done.code == 0
    assert msgspec.json.decode(done.out)["pipelines"] == 1
    with PipelineSet.open(out) as found:
        assert [each.key for each in found.pipelines] == [key]
        counts = found.tag_counts
        assert counts[RecordTag.SHADER_MODULE] == counts[RecordTag.PIPELINE_LAYOUT] == 1
        assert counts[RecordTag.APPLICATION_INFO] == min(1, application)
    compiled = call("compile", out, "-d", "simulated", "--in-process", "--mode", "none", "--json")
    assert msgspec.json.decode(compiled.out)["outcomes"]["compiled"] == 1


def test_a_key_that_is_not_there_is_refused(call: Call, small_set: Path, tmp_path: Path) -> None:
    done = call("extract", small_set, "--only", "0123456789abcdef", "-o", tmp_path / "none.foz")
    assert done.code == 2
    assert "no pipeline has the key 0123456789abcdef" in done.err
    assert not (tmp_path / "none.foz").exists()


@pytest.mark.parametrize("name", ["sascha", "sascha_rt"])
def test_a_captured_pipeline_has_the_same_records(call: Call, tmp_path: Path, name: str) -> None:
    path = next(each for each in CORPORA if each.name == name).path
    with PipelineSet.open(path) as source:
        keys = [each.key for each in source.pipelines][::40]
        only = [word for key in keys for word in ("--only", f"{key:016x}")]
        assert call("extract", path, *only, "-o", tmp_path / "some.foz").code == 0
        with PipelineSet.open(tmp_path / "some.foz") as found:
            assert set(keys) <= {each.key for each in found.pipelines}
            assert found.verify().unusable == 0
            for tag in RecordTag:
                for key in found.records.keys(tag):
                    assert found.records.payload(tag, key) == source.records.payload(tag, key)
            options = ("-d", "simulated", "--in-process", "--mode", "none")
            assert call("compile", tmp_path / "some.foz", *options).code == 0
