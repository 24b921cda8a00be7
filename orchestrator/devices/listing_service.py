"""The child's side of `devices`: the process that loads drivers to list their devices, which one may end."""

from __future__ import annotations

from orchestrator.children.protocol import Channel
from orchestrator.devices.listing import Answer, Look, Refused, Request, Seen, SeenDevice, looked_at
from orchestrator.devices.opening import list_devices
from orchestrator.errors import DeviceError


def serve(channel: Channel[Request, Answer]) -> None:
    """Answer one request after the other."""
    for request in channel:
        try:
            channel.send(Seen(tuple(_seen(request))))
        except DeviceError as error:
            channel.send(Refused.of(error))


def _seen(look: Look) -> list[SeenDevice]:
    if look.selector is not None:
        return [looked_at(look.selector, look)]
    seen: list[SeenDevice] = []
    for index, identity in enumerate(list_devices()):
        each = SeenDevice(str(index), identity)
        try:
            seen.append(looked_at(each.selector, look) if look.opens else each)
        except DeviceError as error:
            seen.append(SeenDevice(each.selector, identity, problem=str(error)))
    return seen
