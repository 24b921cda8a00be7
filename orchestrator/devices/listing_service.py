"""The child's side of `devices`: the process that loads drivers to list their devices, which one may end."""

from __future__ import annotations

from orchestrator.children.protocol import Channel, SentError
from orchestrator.devices.listing import Answer, DeviceEntry, Listed, Request, open_and_describe
from orchestrator.devices.opening import list_devices
from orchestrator.errors import DeviceError


def serve(channel: Channel[Request, Answer]) -> None:
    """Answer one request after the other."""
    for request in channel:
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
