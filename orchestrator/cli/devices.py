# Purpose: `orchestrator devices`: what compiles here, what it is called, and what it offers.
"""The verb `devices`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from orchestrator.cli.errors import ExitCode
from orchestrator.cli.options import DEVICE_HELP, JsonFlag
from orchestrator.cli.output import BAD, DIM, GOOD, HEAD, Output, device_document, styled, version_text
from orchestrator.errors import DeviceError

if TYPE_CHECKING:
    from orchestrator.devices.device import DeviceFeatures, DeviceIdentity

    Found = tuple[str, DeviceIdentity, DeviceFeatures | None, str]

_OFFERS = (
    ("externally_synchronized_caches", "externally synchronized caches"),
    ("creation_feedback", "creation feedback"),
    ("pipeline_binaries", "pipeline binaries"),
    ("shader_module_identifiers", "shader module identifiers"),
    ("internally_synchronized_merge", "merge while in use"),
    ("compile_required", "fail instead of compiling"),
)


def devices_verb(
    *,
    device: Annotated[str, Parameter(name=["--device", "-d"], help=DEVICE_HELP)] = "",
    json: JsonFlag = False,
) -> int:
    """Show what compiles here: names, identity, and what each device offers.

    **EXAMPLES**

        orchestrator devices
        orchestrator devices --device radv:navi31
        orchestrator devices --json
    """
    output = Output(json=json)
    found = [_open(device)] if device else _all()
    output.document(
        {
            "devices": [
                {"index": index, "selector": selector, "problem": problem or None}
                | device_document(identity, features)
                for index, (selector, identity, features, problem) in enumerate(found)
            ]
        }
    )
    for index, each in enumerate(found):
        _show(output, index, *each)
    _hints(output)
    return ExitCode.OK


def _open(selector: str) -> Found:
    from orchestrator.devices import open_device, own_process
    from orchestrator.devices.request import DeviceRequest, OtherFeatures

    own_process(selector)
    # What it could offer: a compile enables of it what the application had.
    device = open_device(
        selector, request=DeviceRequest(others=OtherFeatures.ALL, orchestrator_features=True)
    )
    try:
        return selector, device.identity, device.features, ""
    finally:
        device.close()


def _all() -> list[Found]:
    """Every device that the loader finds; one that cannot be opened is shown with the reason."""
    from orchestrator.devices import list_devices

    found: list[Found] = []
    for index, identity in enumerate(list_devices()):
        try:
            found.append(_open(str(index)))
        except DeviceError as error:
            found.append((str(index), identity, None, str(error)))
    return found


def _show(
    output: Output,
    index: int,
    selector: str,
    identity: DeviceIdentity,
    features: DeviceFeatures | None,
    problem: str,
) -> None:

    output.line(styled(f"{index}  ", DIM), styled(identity.device_name, HEAD))
    driver = " ".join(each for each in (identity.driver_name, identity.driver_info) if each)
    rows = [
        ("select with", styled(f"--device {selector}")),
        (
            "driver",
            styled(
                f"{driver or 'unnamed'} (driverID {identity.driver_id}, driverVersion {identity.driver_version:#x})"
            ),
        ),
        ("Vulkan", styled(version_text(identity.api_version))),
        (
            "identity",
            styled(
                f"vendor {identity.vendor_id:#06x}, device {identity.device_id:#06x}, {identity.driver_abi} bits"
            ),
        ),
        ("pipeline cache UUID", styled(identity.pipeline_cache_uuid.hex())),
    ]
    if problem:
        rows.append(("cannot be opened", styled(problem, BAD)))
    if features is not None:
        for name, words in _OFFERS:
            offered = bool(getattr(features, name))
            rows.append((words, styled("yes", GOOD) if offered else styled("no", DIM)))
        rows.append(("driver's own caches", styled(features.driver_caches)))
        if features.layers:
            rows.append(("layers", styled(", ".join(features.layers))))
    output.facts(rows)
    output.line("")


def _hints(output: Output) -> None:
    output.line(
        "RADV compiles for AMD GPUs that are not there: --device radv:navi21, radv:navi31, radv:vega10, ..."
    )
    output.line("No driver at all: --device simulated (deterministic; a model of a driver, compiles nothing)")
