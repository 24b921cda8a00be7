"""A warm run that compiles says which pipelines, whether they are new, and what sets them apart."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import trio

from orchestrator.devices.image import CreateInfoImage, PipelineKind
from orchestrator.devices.simulated import SimulatedDevice
from orchestrator.run.compile_schedule import describe, recompiled_note
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from orchestrator.sets.subset import WHOLE, Subset
from tests.run.small_sets import compiled


@pytest.fixture(scope="module")
def image() -> CreateInfoImage:
    with PipelineSet.open(sample_path()) as source:
        return build_image(source, source.pipelines, SimulatedDevice().capabilities).image


def test_a_trait_is_named_where_it_tells_the_compiled_from_the_found(image: CreateInfoImage) -> None:
    graphics = image.kinds == list(PipelineKind).index(PipelineKind.GRAPHICS)
    links = graphics & (np.diff(image.library_slot_start) > 0)
    assert links.any()
    words = describe(image, links, ~links)
    assert words.startswith(
        f"{links.sum():,} of {graphics.sum():,} graphics (those, and no other, that link pipeline "
    )
    assert f"{int(image.keys[links][0]):016x}" in words
    one_more = links.copy()
    one_more[np.flatnonzero(graphics & ~links)[0]] = True
    assert "those, and no other" not in describe(image, one_more, ~one_more)


def test_what_was_compiled_before_is_told_from_what_is_new(image: CreateInfoImage) -> None:
    again = np.zeros(len(image), np.bool_)
    again[:3] = True
    known = np.zeros(len(image), np.int64)
    known[:2] = 5
    words = recompiled_note(image, again, ~again, known)
    assert words.startswith(f"3 of {len(image):,} pipelines were compiled although the cache was loaded; ")
    assert "; 2 compiled on this device before, but not found in the cache: " in words
    assert "; 1 new to this device" in words
    words = recompiled_note(image, again, ~again, known, place="store of binaries")
    assert "were compiled although the store of binaries was loaded" in words


def test_a_run_says_so(archive: Path, tmp_path: Path) -> None:
    """The cache of one part in place of the whole's: times are known, and nothing is found of the rest."""

    def notes(directory: str, subset: Subset = WHOLE) -> list[str]:
        place, opener = tmp_path / directory, lambda _: SimulatedDevice()
        report = trio.run(partial(compiled, archive, place, opener, subset=subset, workers=1))
        return [each for each in report.notes if "although the cache" in each]

    assert not notes("whole")
    assert not notes("part", Subset(1, 2))
    (part,) = (tmp_path / "part").glob("*.pipeline-cache")
    shutil.copy(part, tmp_path / "whole" / part.name)
    assert "new to this device" in "".join(notes("part"))
    assert not notes("part")
    (note,) = notes("whole")
    assert "compiled on this device before, but not found in the cache" in note
    assert "new to this device" not in note
