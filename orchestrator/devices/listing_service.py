"""The process that loads drivers to describe their devices, because a driver may end it (listing.py)."""

from __future__ import annotations

import os
from contextlib import closing

from orchestrator.children.protocol import SentError
from orchestrator.children.serving import Channel
from orchestrator.devices.listing_messages import Answer, DeviceEntry, Listed
from orchestrator.devices.listing_messages import Request as Request
from orchestrator.devices.opening import list_devices, open_for_child
from orchestrator.devices.request import DeviceRequest, OtherFeatures
from orchestrator.errors import DeviceError, DriverError


def open_and_describe(selector: str, request: Request) -> DeviceEntry:
    """Open a device in this process, and close it; its environment is set for the device.

    Raises:
        DeviceError: It cannot be opened.
    """
    # A compile enables only what the application had.
    everything = DeviceRequest(others=OtherFeatures.ALL, orchestrator_features=True)
    opened = open_for_child("", selector, everything if request.all_features else DeviceRequest())
    with closing(opened) as device:
        problem = ""
        try:
            device.destroy_pipeline_cache(device.create_pipeline_cache(name="listing"))
        except DriverError as error:
            problem = str(error)
        return DeviceEntry(selector, device.identity, device.features, cache_problem=problem)


def serve(channel: Channel[Request, Answer]) -> None:
    """Answer one request after the other."""
    for request in channel:
        os.environ.update(request.variables)
        try:
            channel.send(Listed(tuple(_listed(request))))
        except DeviceError as error:
            channel.send(SentError.of(error))


def _listed(request: Request) -> list[DeviceEntry]:
    if request.selector is not None:
        return [open_and_describe(request.selector, request)]
    entries: list[DeviceEntry] = []
    for index, identity in enumerate(list_devices()):
        entry = DeviceEntry(str(index), identity)
        try:
            entries.append(open_and_describe(entry.selector, request) if request.opens else entry)
        except DeviceError as error:
            entries.append(DeviceEntry(entry.selector, identity, problem=str(error)))
    return entries
