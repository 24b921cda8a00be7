"""Pipelines in a store of binaries; apart, so that a process that is killed imports nothing else."""

from __future__ import annotations

import random

from attrs import evolve

from orchestrator.devices.binary_data import PipelineBinary
from orchestrator.devices.simulated import simulated_identity
from orchestrator.stores.binary_store import BinaryStore, Generation, StoredPipeline

GENERATION = Generation.of(simulated_identity(), b"global key")
OTHER = Generation.of(simulated_identity(), b"another global key")
OTHER_DRIVER = Generation.of(evolve(simulated_identity(), driver_version=2), b"global key")


def pipeline(
    state: int, *contents: bytes, driver_key: bytes | None = None, identifiers: bytes = b""
) -> StoredPipeline:
    key = b"key %d" % state if driver_key is None else driver_key
    binaries = tuple(PipelineBinary(b"binary " + each[:20], each) for each in contents)
    return StoredPipeline(b"state %d" % state, key, binaries, identifiers)


def found(store: BinaryStore, state: int) -> tuple[str, list[bytes]]:
    with store.reading(GENERATION) as reader:
        ((_, outcome, pipeline),) = reader.find_all([b"state %d" % state])
        return outcome, [bytes(each.data) for each in pipeline.binaries] if pipeline else []


def content(state: int) -> bytes:
    return random.Random(state).randbytes(200 + state * 37 % 6000)
