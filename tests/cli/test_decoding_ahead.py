"""A new set is decoded by a process that begins before the one that compiles, and compiled as always."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.compile_arguments import CompileArguments
from orchestrator.cli.compiling import decode_ahead
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.decoder import Decoder
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import Subset
from orchestrator.sets.records import RecordTag
from orchestrator.sets.sample import sample_path
from orchestrator.sets.shared_set import shared_sets
from tests.drivers import run_on_device


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """The sample, with a module of 4 MiB that belongs to no pipeline."""
    path = tmp_path / "large.foz"
    with PipelineSet.open(sample_path()) as sample, ArchiveWriter(path) as writer:
        sample.copy_to(writer)
        writer.add(RecordTag.SHADER_MODULE, 1, random.Random(1).randbytes(4 << 20))
    return path


COMPILE = """
import os
os.sched_getaffinity = lambda _: set(range(4))
from orchestrator.process import own_interpreter
own_interpreter()
from orchestrator.cli import program
from orchestrator.run import options
from orchestrator.sets import decoder
from orchestrator.sets.image import builder
from orchestrator.sets import shared_set

here, build_image, start = os.getpid(), builder.build_image, decoder.Decoder.start

def build(*given):
    assert os.getppid() == here, "the process that compiles decodes"
    return build_image(*given)

helpers = []

def begin(source, count, *others):
    assert os.getpid() == here, "the process that compiles starts a decoder of its own"
    helpers.append(count)
    return start(source, count, *others)

decoder.Decoder.start = begin
builder.build_image = build

class Parsed(program.EarlyParse):
    def arguments(self):
        self.parsed = super().arguments()
        self.begun = helpers[:]
        return self.parsed

def main(tokens):
    parsing = Parsed.begin(tokens)
    code = program.main(tokens, parsing)
    try:
        left = os.waitpid(-1, 0)
    except ChildProcessError:
        left = None
    return parsing.begun, code, left, list(shared_set.shared_sets)
"""


@pytest.mark.parametrize(("name", "helpers"), [("large.foz", 4), ("sample", 1)])
def test_a_new_set_is_decoded_before_what_compiles_is_started(
    name: str, helpers: int, large: Path, tmp_path: Path
) -> None:
    path = str(large) if name == large.name else name
    line = ["compile", path, "--device", "simulated", "--cache-dir", str(tmp_path / "cache"), "--quiet"]
    assert run_on_device(None, COMPILE, line) == [[helpers], 0, None, []]
    assert run_on_device(None, COMPILE, line) == [[], 0, None, []]  # there is a plan


def test_several_archives_of_a_set_are_decoded_so_too(large: Path, tmp_path: Path) -> None:
    pair = [str(large), str(tmp_path / "second.foz")]
    with PipelineSet.open(sample_path()) as sample, ArchiveWriter(pair[1]) as writer:
        sample.copy_to(writer)
    line = ["compile", *pair, "--device", "simulated", "--cache-dir", str(tmp_path / "cache"), "--quiet"]
    assert run_on_device(None, COMPILE, line) == [[4], 0, None, []]


def test_where_a_plan_turns_out_to_be_there_nothing_is_decoded(large: Path, tmp_path: Path) -> None:
    """A set that was copied is newer than its plan, until that was used."""
    line = ["compile", str(large), "--device", "simulated", "--cache-dir", str(tmp_path / "cache"), "--quiet"]
    run_on_device(None, COMPILE, line)
    (plan,) = (tmp_path / "cache").glob("*.plan")
    before = plan.stat()
    os.utime(large)
    os.utime(plan, (1, 1))
    assert run_on_device(None, COMPILE, line) == [[4], 0, None, []]
    after = plan.stat()
    assert after.st_ino == before.st_ino  # it was not saved anew
    assert after.st_mtime >= large.stat().st_mtime
    assert run_on_device(None, COMPILE, line) == [[], 0, None, []]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """How many processes were to decode, and how many pipelines."""
    found: list[tuple[int, int]] = []

    def start(source: PipelineSet, helpers: int, subset: Subset, *_: object) -> None:
        found.append((helpers, len(subset.of(source.groups[0].pipelines))))

    monkeypatch.setattr(Decoder, "start", start)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    return found


WORTH_IT: tuple[tuple[dict[str, Any], bool], ...] = (
    ({}, True),
    ({"device": ["simulated"]}, True),
    ({"workers": "2"}, True),
    ({"workers": "1"}, False),
    ({"device": ["simulated", "lavapipe"]}, False),
    ({"device": ["radv:*"]}, False),
    ({"in_process": True}, False),
    ({"nice": 10}, False),
    ({"progress": "jsonl"}, False),
    ({"control": 0}, False),
    ({"memory": "2G"}, False),
    ({"workers": "many"}, False),
)


@pytest.mark.parametrize(("options", "pays"), WORTH_IT)
def test_it_is_decoded_ahead_where_that_pays(
    options: dict[str, Any], pays: bool, large: Path, tmp_path: Path, started: list[tuple[int, int]]
) -> None:
    arguments = CompileArguments(**{"cache_dir": tmp_path / "cache", **options})
    decode_ahead([str(large)], arguments)
    shared = shared_sets.pop((str(large),), None)
    assert (shared is not None) is pays
    if shared is not None:
        shared.source.close()
    with PipelineSet.open(large) as source:
        first = len(source.groups[0].pipelines)
    assert started == ([(2 if options.get("workers") else 4, first)] if pays else [])


def test_what_is_small_or_missing_or_a_manifest_or_was_compiled_is_not(
    large: Path, tmp_path: Path, started: list[tuple[int, int]]
) -> None:
    arguments = CompileArguments(cache_dir=tmp_path)
    manifest = tmp_path / "large.toml"
    manifest.write_bytes(large.read_bytes())
    small = tmp_path / "small.foz"
    with ArchiveWriter(small) as writer:
        writer.add(RecordTag.SHADER_MODULE, 1, bytes(8))
    for sets in ([str(small)], [str(tmp_path / "none.foz")], [str(manifest)]):
        decode_ahead(sets, arguments)
    (tmp_path / "device.plan").touch()
    decode_ahead([str(large)], arguments)
    assert not shared_sets
    os.utime(tmp_path / "device.plan", (0, 0))
    decode_ahead([str(large)], arguments)
    shared_sets.pop((str(large),)).source.close()
    assert len(started) == 1


@pytest.mark.parametrize("size", [6, 3 << 20])
def test_what_is_wrong_with_a_set_is_left_to_the_compile(
    size: int, tmp_path: Path, started: list[tuple[int, int]]
) -> None:
    broken = tmp_path / "broken.foz"
    broken.write_bytes(bytes(size))
    decode_ahead([str(broken)], CompileArguments(cache_dir=tmp_path))
    assert started == []
    assert not shared_sets
