"""The verb `devices`: lists devices with their names, identities and features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.text import Text

from orchestrator.cli.application import DEVICE, DEVICE_HELP, JsonFlag
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, driver_text, styled, table, version_text
from orchestrator.cli.values import opened_device
from orchestrator.errors import DeviceError

if TYPE_CHECKING:
    from orchestrator.cli.documents import DevicesDocument, FamiliesDocument
    from orchestrator.devices.device import DeviceFeatures, DeviceIdentity
    from orchestrator.devices.families import Family

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
    device: Annotated[
        str, DEVICE, Parameter(help=DEVICE_HELP, show_default=lambda _: "all that the loader finds")
    ] = "",
    json: JsonFlag = False,
) -> int:
    """Show the devices: names, identity and features.

    **EXAMPLES**

        orchestrator devices
        orchestrator devices --device radv:navi31
        orchestrator devices --device 'radv:*'
        orchestrator devices --json
    """
    from orchestrator.devices.families import is_pattern

    output = Output(json=json)
    if is_pattern(device):
        return _show_families(output, device)
    found = [_open(device)] if device else _all()
    output.document(lambda: _document(found))
    for index, each in enumerate(found):
        _show(output, index, *each)
    _hints(output)
    return ExitCode.OK


def _show_families(output: Output, pattern: str) -> int:
    """Show the families that match a pattern, without opening devices."""
    from orchestrator.devices.families import expand

    families = expand(pattern)
    output.document(lambda: _families_document(families))
    made = table("select with", "deviceID")
    for each in families:
        known = styled(f"{each.device_id:#06x}") if each.device_id else styled("none", "warn")
        made.add_row(styled(each.selector), known)
    output.show(made)
    if not all(each.device_id for each in families):
        output.line("none: this Mesa gives null hardware of the family no ID, so no card accepts its caches")
    return ExitCode.OK


def _document(found: Sequence[Found]) -> DevicesDocument:
    from msgspec import UNSET

    from orchestrator.cli.documents import DevicesDocument, ListedDevice

    return DevicesDocument(
        devices=tuple(
            ListedDevice.of(
                identity, index=index, selector=selector, problem=problem or None, features=features or UNSET
            )
            for index, (selector, identity, features, problem) in enumerate(found)
        )
    )


def _families_document(families: Sequence[Family]) -> FamiliesDocument:
    from orchestrator.cli.documents import FamiliesDocument, FamilyRecord

    return FamiliesDocument(
        families=tuple(
            FamilyRecord(selector=each.selector, family=each.name, device_id=each.device_id)
            for each in families
        )
    )


def _open(selector: str) -> Found:
    from orchestrator.devices.request import DeviceRequest, OtherFeatures

    # Enables everything that the device supports; a compile enables only what the application had.
    request = DeviceRequest(others=OtherFeatures.ALL, orchestrator_features=True)
    with opened_device(selector, request) as device:
        return selector, device.identity, device.features, ""


def identity_of(selector: str) -> DeviceIdentity:
    """The identity of the device that a selector names.

    Raises:
        DeviceError: It cannot be opened.
    """
    with opened_device(selector) as device:
        return device.identity


def _all() -> list[Found]:
    """All devices that the loader finds; one that cannot be opened has the reason."""
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
    output.line(styled(f"{index}  ", "dim"), styled(identity.device_name, "head"))
    driver = f"driverID {identity.driver_id}, driverVersion {identity.driver_version:#x}"
    numbers = (
        f"vendor {identity.vendor_id:#06x}, device {identity.device_id:#06x}, {identity.driver_abi} bits"
    )
    rows: list[tuple[str, str | Text]] = [
        ("select with", f"--device {selector}"),
        ("driver", f"{driver_text(identity) or 'unnamed'} ({driver})"),
        ("Vulkan", version_text(identity.api_version)),
        ("identity", numbers),
        ("pipeline cache UUID", identity.pipeline_cache_uuid.hex()),
    ]
    if problem:
        rows.append(("cannot be opened", styled(problem, "bad")))
    if features is not None:
        for name, words in _OFFERS:
            offered = bool(getattr(features, name))
            rows.append((words, styled("yes", "good") if offered else styled("no", "dim")))
        rows.append(("driver's own caches", features.driver_caches))
        if features.layers:
            rows.append(("layers", ", ".join(features.layers)))
    output.facts(rows)
    output.line("")


def _hints(output: Output) -> None:
    output.line(
        "RADV compiles for AMD GPUs without the hardware: --device radv:navi21, radv:navi31, radv:vega10, ..."
    )
    output.line("Without a driver: --device simulated (deterministic; a model of a driver, compiles nothing)")
