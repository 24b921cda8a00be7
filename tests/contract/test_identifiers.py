"""Shader-module identifiers, on every device."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from attrs import evolve

from orchestrator.devices.device import NO_SOURCE, PIPELINE_COMPILE_REQUIRED, Device
from orchestrator.devices.identified import (
    MOST_IDENTIFIER_BYTES,
    IdentifiedModules,
    NotSuppliedError,
    SpirvProvider,
)
from orchestrator.errors import DeviceError
from tests.contract.subject import PIPELINES, Subject, hits


def identifying(subject: Subject) -> Device:
    subject.need(subject.device.features.shader_module_identifiers, "it has no shader-module identifiers")
    return subject.device


def refuse(key: int) -> bytes:
    raise AssertionError(f"the code of {key:016x} was asked for")


def identified(subject: Subject, keys: npt.NDArray[np.uint64] | None = None) -> IdentifiedModules:
    """The image, of whose modules nothing but the identifiers is known; its pipelines may have other keys."""
    device = identifying(subject)
    image = subject.image if keys is None else evolve(subject.image, keys=keys)
    known = IdentifiedModules(image, SpirvProvider(refuse), {})
    for module in range(len(subject.image.modules)):
        known.learn(module, device.code_identifier(subject.prepared, module))
    return known


def test_a_device_without_identifiers_says_so(subject: Subject) -> None:
    device = subject.device
    if device.features.shader_module_identifiers:
        assert len(device.identifier_algorithm) == 16
        return
    assert device.identifier_algorithm == b""
    with pytest.raises(DeviceError, match="identifier"):
        device.code_identifier(subject.prepared, 0)
    # Nothing is known, so nothing is asked: whoever comes with SPIR-V takes the same way on every device.
    known = IdentifiedModules(subject.image, SpirvProvider(refuse), {})
    bare = device.prepare(known)
    batch = device.create_pipelines(bare, subject.all, NO_SOURCE)
    assert batch.results.tolist() == [PIPELINE_COMPILE_REQUIRED] * PIPELINES
    bare.close()


def test_identifiers_are_stable_and_tell_modules_apart(subject: Subject) -> None:
    device = identifying(subject)
    identifier = partial(device.code_identifier, subject.prepared)
    found, again = (list(map(identifier, range(PIPELINES))) for _ in range(2))
    assert all(0 < len(each) <= MOST_IDENTIFIER_BYTES for each in found)
    assert len(set(found)) == PIPELINES
    assert again == found


def test_what_a_cache_holds_is_created_without_its_code(subject: Subject) -> None:
    device = identifying(subject)
    known = identified(subject)
    cache = device.create_pipeline_cache(subject.filled().data())
    bare = device.prepare(known)
    batch = device.create_pipelines(bare, subject.all, cache, keep=True)
    assert not batch.results.any()
    assert len(set(batch.handles.tolist()) - {0}) == PIPELINES
    if device.features.creation_feedback:
        assert hits(batch) == PIPELINES
    device.destroy_pipelines(batch.handles)
    bare.close()


def test_what_is_not_found_is_created_once_its_code_is_there(subject: Subject) -> None:
    device = identifying(subject)
    known = identified(subject)
    cache = device.create_pipeline_cache(subject.filled(1, 3).data())
    bare = device.prepare(known)
    batch = device.create_pipelines(bare, subject.all, cache)
    is_refused = batch.results == PIPELINE_COMPILE_REQUIRED
    assert (is_refused & known.lacking[subject.all]).tolist() == [True, False, True, False]
    with pytest.raises(NotSuppliedError):
        known.image.modules[0].load()
    for pipeline in (0, 2):
        for module in known.needed(pipeline):
            known.code[known.image.modules[module].key] = subject.image.modules[module].load()
    known.settle([0, 2])
    # Some with their code and some without, in one batch.
    batch = device.create_pipelines(bare, subject.all, cache)
    assert not batch.results.any()
    if device.features.creation_feedback:
        assert hits(batch) == 2
    # And what was asked for without its code is now in the cache, as every other pipeline.
    again = device.create_pipelines(subject.prepared, subject.all, cache)
    assert hits(again) == (PIPELINES if device.features.creation_feedback else 0)
    bare.close()


@pytest.mark.parametrize("damage", ["a bit", "cut short", "forgotten"])
def test_a_damaged_identifier_is_a_miss_of_its_pipelines_alone(subject: Subject, damage: str) -> None:
    device = identifying(subject)
    known = identified(subject)
    good = known.identifier(0)
    known.learn(
        0,
        {
            "a bit": bytes([good[0] ^ 1, *good[1:]]),
            "cut short": good[:-1],
            "forgotten": b"",
        }[damage],
    )
    bare = device.prepare(known)
    batch = device.create_pipelines(bare, subject.all, subject.filled())
    assert batch.results.tolist() == [PIPELINE_COMPILE_REQUIRED] + [0] * (PIPELINES - 1)
    bare.close()


def test_keys_need_no_code(subject: Subject) -> None:
    device = identifying(subject)
    subject.need(device.features.pipeline_binaries, "it has no pipeline keys")
    known = identified(subject)
    known.learn(2, b"")
    bare = device.prepare(known)
    keys = device.pipeline_keys(subject.prepared, subject.all)
    assert device.pipeline_keys(bare, subject.all) == [*keys[:2], None, keys[3]]
    bare.close()
