"""A warm run that compiles again what was compiled before says which pipelines, and what sets them apart."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import trio

from orchestrator.devices.image import CreateInfoImage, PipelineKind
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import DriverBugs, SimulatedDevice
from orchestrator.run.compile_schedule import describe
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from orchestrator.sets.subset import WHOLE, Subset
from tests.run.small_sets import Opener, compiled, write_applications


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
    # Links have no module of their own, either, and other libraries have one: two traits tell them apart.
    without_code = image.is_library & (np.diff(image.module_slot_start) == 0)
    assert without_code.any()
    assert "that are pipeline libraries and have no shader module" in describe(
        image, without_code, ~without_code
    )


def test_a_run_says_so(archive: Path, tmp_path: Path) -> None:
    """The cache of one part in place of the whole's: times are known, and nothing is found of the rest."""

    def notes(directory: str, subset: Subset = WHOLE) -> list[str]:
        place, opener = tmp_path / directory, lambda _: SimulatedDevice()
        report = trio.run(partial(compiled, archive, place, opener, subset=subset, workers=1))
        return [each for each in report.notes if "not found in the cache" in each]

    assert not notes("whole")
    assert not notes("part", Subset(1, 2))
    (part,) = (tmp_path / "part").glob("*.pipeline-cache")
    shutil.copy(part, tmp_path / "whole" / part.name)
    assert not notes("part")  # what is new is no news
    (note,) = notes("whole")
    assert "compiled on this device before" in note


@pytest.mark.parametrize("mode", [CacheMode.SHARED, CacheMode.BINARIES])
async def test_what_another_application_of_the_same_run_compiled_is_no_news(
    mode: CacheMode, tmp_path: Path
) -> None:
    path, place = write_applications(tmp_path / "set.foz"), tmp_path / "cache"
    with PipelineSet.open(path) as source:
        refused = frozenset(source.pipelines.keys[:1].tolist())
    opener = Opener(DriverBugs(binaries_refused=refused))
    first, second = [await compiled(path, place, opener, workers=1, mode=mode) for _ in range(2)]
    assert not [each for each in first.notes if "compiled on this device before" in each]
    again = [each for each in second.notes if "not found in the store of binaries" in each]
    assert bool(again) == (mode is CacheMode.BINARIES)
