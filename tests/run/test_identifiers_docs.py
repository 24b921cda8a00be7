"""The worked example of docs/identifiers.md: its code runs as it stands, and what the page says holds."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.devices.device import FEEDBACK_APPLICATION_CACHE_HIT
from orchestrator.devices.opening import open_device
from orchestrator.run.records import OutcomeStatus
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.authoring.builder import PipelineSetBuilder
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.stores.cache_file import cache_path, load_into_cache
from tests.drivers import REPOSITORY, require_tool

PAGE = (REPOSITORY / "docs" / "identifiers.md").read_text("utf-8")
EXAMPLES = dict(re.findall(r"```python example=(\w+)\n(.*?)```", PAGE, re.DOTALL))
SHADERS = ["mul 3; add 7", "add 1", "xor 255; sub 4; and 4095", "mul 2"]
NAVI21 = "radv:navi21"


@pytest.fixture(autouse=True)
def _examples_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(REPOSITORY / "docs" / "examples"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    sys.modules.pop("translator", None)


def translator(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(importlib.import_module("translator"), name)
    return found


def example(name: str, function: str) -> Callable[..., Any]:
    """A function that an example defines; examples see those before them."""
    scope: dict[str, Any] = {}
    for each, text in EXAMPLES.items():
        exec(compile(text, f"docs/identifiers.md, example {each}", "exec"), scope)
        if each == name:
            break
    found: Callable[..., Any] = scope[function]
    return found


def test_every_example_is_run() -> None:
    assert set(EXAMPLES) == {"pipelines", "compile", "session"}


def test_the_translator_writes_valid_spirv(tmp_path: Path) -> None:
    key_of, spirv_of = translator("key_of"), translator("spirv_of")
    for shader in SHADERS:
        (tmp_path / "shader.spv").write_bytes(spirv_of(shader))
        subprocess.run([require_tool("spirv-val"), str(tmp_path / "shader.spv")], check=True)
    assert (
        len({key_of(each) for each in SHADERS}) == len({spirv_of(each) for each in SHADERS}) == len(SHADERS)
    )
    for wrong in ("", "mul", "mul x", "div 3", "mul -1", "mul 4294967296"):
        with pytest.raises(ValueError, match="is no operation"):
            spirv_of(wrong)


@pytest.mark.driver(NAVI21)
def test_the_second_start_translates_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described, translating = example("pipelines", "described"), example("pipelines", "translating")
    start = example("compile", "start")
    translated: list[str] = []
    first = start(described(SHADERS), translating(SHADERS, translated), tmp_path, NAVI21)
    assert sorted(translated) == sorted(SHADERS)
    assert first.counts()[OutcomeStatus.COMPILED] == len(SHADERS)
    second = start(described(SHADERS), translating(SHADERS, translated), tmp_path, NAVI21)
    assert len(translated) == len(SHADERS)
    assert second.counts()[OutcomeStatus.CACHE_HIT] == len(SHADERS)
    assert second.identifiers.created == len(SHADERS)
    # One shader more, and one that is none.
    third = start(
        described([*SHADERS, "or 1", "div 3"]),
        translating([*SHADERS, "or 1", "div 3"], translated),
        tmp_path,
        NAVI21,
    )
    assert sorted(translated[len(SHADERS) :]) == ["div 3", "or 1"]
    assert third.identifiers.created == len(SHADERS)
    (failed,) = third.failed
    assert "the provider failed: ValueError: 'div 3' is no operation" in failed.reason
    assert "IdentifiersRecord(" in capsys.readouterr().out


@pytest.mark.driver(NAVI21)
def test_a_loading_screen_translates_nothing_the_second_time(tmp_path: Path) -> None:
    described, translating = example("pipelines", "described"), example("pipelines", "translating")
    loading_screen = example("session", "loading_screen")
    translated: list[str] = []
    for start in range(2):
        device = open_device(NAVI21)
        provider = translating(SHADERS, translated)
        pipelines = loading_screen(device, described(SHADERS), provider, tmp_path)
        assert len(translated) == len(SHADERS), f"start {start}"
        device.destroy_pipelines(np.array([*pipelines.values()], np.uint64))
        device.close()

    # What it compiled is what whoever has the SPIR-V finds: the driver says so of pipelines with their code.
    spirv_of = translator("spirv_of")
    device = open_device(NAVI21)
    records = MemoryRecords("with code")
    builder = PipelineSetBuilder(records)
    builder.application("my game")
    for shader in SHADERS:
        builder.compute_pipeline("auto", builder.shader_module(spirv_of(shader)))
    source = PipelineSet.from_records(records)
    built = build_image(source, source.pipelines, device.capabilities)
    prepared = device.prepare(built.image)
    cache, _ = load_into_cache(device, cache_path(tmp_path, device.identity))
    batch = device.create_pipelines(prepared, np.arange(len(SHADERS), dtype=np.int32), cache)
    assert (batch.feedback_flags & FEEDBACK_APPLICATION_CACHE_HIT).all()
    device.close()
