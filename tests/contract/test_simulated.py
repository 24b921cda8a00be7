"""The simulated device keeps the contract; so it does with what only it can show."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from orchestrator.devices.device import ERROR_OUT_OF_DEVICE_MEMORY, Device
from orchestrator.devices.simulated import (
    DriverBugs,
    LockingStrategy,
    SimulatedDevice,
    SimulatedOptions,
    simulated_features,
    simulated_image,
)
from tests.contract.cases import CASES
from tests.contract.subject import PIPELINES, NotShownError, Subject, simulated_subject
from tests.drivers import unsupported

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@each_case
def test_the_contract(case: Callable[[Subject], None]) -> None:
    with simulated_subject() as subject:
        case(subject)


@pytest.mark.parametrize("strategy", LockingStrategy)
@each_case
def test_the_contract_with_every_locking_strategy(
    case: Callable[[Subject], None], strategy: LockingStrategy
) -> None:
    run(case, SimulatedOptions(locking=strategy, migrate_every=2))


LIKE_LAVAPIPE = SimulatedOptions(
    bugs=DriverBugs(cache_is_stub=True),
    features=simulated_features(
        pipeline_binaries=False, shader_module_identifiers=False, internally_synchronized_merge=False
    ),
)
WITHOUT_EXTENSIONS = SimulatedOptions(
    features=simulated_features(
        externally_synchronized_caches=False,
        creation_feedback=False,
        pipeline_binaries=False,
        shader_module_identifiers=False,
        internally_synchronized_merge=False,
        compile_required=False,
    )
)


@pytest.mark.parametrize("options", [LIKE_LAVAPIPE, WITHOUT_EXTENSIONS], ids=["stub", "bare"])
@each_case
def test_the_contract_on_lesser_drivers(case: Callable[[Subject], None], options: SimulatedOptions) -> None:
    run(case, options)


def run(case: Callable[[Subject], None], options: SimulatedOptions) -> None:
    device = SimulatedDevice(options)
    image = simulated_image(range(1, PIPELINES + 1))
    try:
        case(Subject(device, image, device.prepare(image), caches=not options.bugs.cache_is_stub))
    except NotShownError as reason:
        unsupported(str(reason))
    finally:
        device.close()


def test_a_pipeline_that_fails_does_not_take_others_with_it() -> None:
    device: Device = SimulatedDevice(
        SimulatedOptions(bugs=DriverBugs(results={2: ERROR_OUT_OF_DEVICE_MEMORY}))
    )
    prepared = device.prepare(simulated_image([1, 2, 3]))
    batch = device.create_pipelines(prepared, np.arange(3, dtype=np.int32), None, keep=True)
    assert batch.results.tolist() == [0, ERROR_OUT_OF_DEVICE_MEMORY, 0]
    assert (batch.handles != 0).tolist() == [True, False, True]
