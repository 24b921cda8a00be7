"""The verb `devices`: lists devices with their names, identities and features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter
from msgspec import UNSET
from rich.text import Text

from orchestrator.cli.application import DEVICE, DEVICE_HELP, JsonFlag
from orchestrator.cli.documents import (
    ClusterDevicesDocument,
    DevicesDocument,
    FamiliesDocument,
    FamilyRecord,
    ListedDevice,
    MachineRecord,
    filled,
)
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, driver_text, styled, table, version_text
from orchestrator.cli.values import extra, show_words
from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.families import expand, is_pattern
from orchestrator.devices.listing import DeviceEntry, Listing, list_all, list_one

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
    cluster: Annotated[
        str,
        Parameter(
            help="Show who of a Dask cluster has what: the scheduler's address.",
            show_default=lambda _: "this machine",
        ),
    ] = "",
    json: JsonFlag = False,
) -> int:
    """Show the devices: names, identity and features.

    **EXAMPLES**

        orchestrator devices
        orchestrator devices --device radv:navi31
        orchestrator devices --device 'radv:*'
        orchestrator devices --cluster tls://build1:8786 --device radv:navi31
        orchestrator devices --json
    """
    output = Output(json=json)
    if cluster:
        return _show_cluster(output, cluster, device)
    if is_pattern(device):
        return _show_families(output, device)

    if device:
        listing = Listing((list_one(device, all_features=True, on_output=show_words),))
    else:
        listing = list_all(all_features=True, on_output=show_words)
    output.document(
        lambda: DevicesDocument(
            devices=_listed(listing.devices), dead_drivers=listing.dead, driver_files=listing.driver_files
        )
    )
    for index, each in enumerate(listing.devices):
        _show(output, index, each)
    for dead in listing.dead:
        output.message(styled("dead driver", "bad"), f"  {dead.manifest}: it {dead.problem}")
    if listing.dead:
        output.message(f"next:  {without_dead(listing)}")
        return ExitCode.NO_DEVICE
    output.line(
        "RADV compiles for AMD GPUs without the hardware: --device radv:navi21, radv:navi31, radv:vega10, ..."
    )
    output.line("Without a driver: --device simulated (deterministic; a model of a driver, compiles nothing)")
    return ExitCode.OK


def _show_cluster(output: Output, address: str, selector: str) -> int:
    with extra("cluster", "--cluster"):
        from orchestrator.cluster.machines import machines_of

    machines = machines_of(address, selector)
    output.document(
        lambda: ClusterDevicesDocument(
            machines=tuple(
                MachineRecord(
                    machine=each.machine, problem=each.problem or None, devices=_listed(each.devices)
                )
                for each in machines
            )
        )
    )
    made = table("machine", "select with", "device", "driver")
    for each in machines:
        if each.problem:
            made.add_row(styled(each.machine), "", styled(each.problem, "bad"), "")
        for entry in each.devices:
            name, driver = entry.identity.device_name, driver_text(entry.identity)
            made.add_row(styled(each.machine), styled(entry.selector), styled(name), styled(driver))
    output.show(made)
    if not machines:
        output.problem(styled(f"{address} has no workers; `orchestrator worker ADDRESS` starts one", "bad"))
    return ExitCode.OK if any(each.devices for each in machines) else ExitCode.NO_DEVICE


def without_dead(listing: Listing) -> str:
    """What to do about drivers that end their process."""
    if not listing.driver_files:
        return "update or remove the driver, or use `--device simulated`, which needs none"
    return f"for the other drivers set VK_DRIVER_FILES={listing.driver_files}, or update this one"


def _show_families(output: Output, pattern: str) -> int:
    families = expand(pattern)
    records = (filled(FamilyRecord, each, family=each.name) for each in families)
    output.document(lambda: FamiliesDocument(families=tuple(records)))
    made = table("select with", "deviceID")
    for each in families:
        known = styled(f"{each.device_id:#06x}") if each.device_id else styled("none", "warn")
        made.add_row(styled(each.selector), known)
    output.show(made)
    if not all(each.device_id for each in families):
        output.line("none: this Mesa gives null hardware of the family no ID, so no card accepts its caches")
    return ExitCode.OK


def _listed(devices: Sequence[DeviceEntry]) -> tuple[ListedDevice, ...]:
    return tuple(
        ListedDevice.of(
            each.identity,
            index=index,
            selector=each.selector,
            problem=each.problem or None,
            features=each.features or UNSET,
        )
        for index, each in enumerate(devices)
    )


def identity_of(selector: str) -> DeviceIdentity:
    """The identity of the device that a selector names."""
    return list_one(selector, on_output=show_words).identity


def _show(output: Output, index: int, entry: DeviceEntry) -> None:
    identity, features = entry.identity, entry.features
    output.line(styled(f"{index}  ", "dim"), styled(identity.device_name, "head"))
    driver = f"driverID {identity.driver_id}, driverVersion {identity.driver_version:#x}"
    numbers = (
        f"vendor {identity.vendor_id:#06x}, device {identity.device_id:#06x}, {identity.driver_abi} bits"
    )
    rows: list[tuple[str, str | Text]] = [
        ("select with", f"--device {entry.selector}"),
        ("driver", f"{driver_text(identity) or 'unnamed'} ({driver})"),
        ("Vulkan", version_text(identity.api_version)),
        ("identity", numbers),
        ("pipeline cache UUID", identity.pipeline_cache_uuid.hex()),
    ]
    if entry.problem:
        rows.append(("cannot be opened", styled(entry.problem, "bad")))
    if features is not None:
        for name, words in _OFFERS:
            offered = bool(getattr(features, name))
            rows.append((words, styled("yes", "good") if offered else styled("no", "dim")))
        rows.append(("driver's own caches", features.driver_caches))
        if features.layers:
            rows.append(("layers", ", ".join(features.layers)))
    output.facts(rows)
    output.line("")
