"""Which machines a cluster has, and which devices they have."""

from __future__ import annotations

from pathlib import Path

import trio
from attrs import frozen

from orchestrator.cluster.connection import Cluster, Machine, WorkerLostError, connected
from orchestrator.cluster.messages import Devices, ListDevices
from orchestrator.devices.listing import DeviceEntry
from orchestrator.errors import OrchestratorError
from orchestrator.run.first_error import first_error

_WAIT_S = 5.0


@frozen
class MachineDevices:
    """A machine of a cluster, with its devices; or why it has none."""

    machine: str
    devices: tuple[DeviceEntry, ...] = ()
    problem: str = ""


def machines_of(address: str, selector: str = "") -> list[MachineDevices]:
    """The machines of a cluster, with the devices that a selector names there, "" for all. Blocking.

    Raises:
        ClusterError: There is no such cluster, or it is not safe.
    """
    with first_error():
        return trio.run(_machines, address, selector)


async def _machines(address: str, selector: str) -> list[MachineDevices]:
    found: list[MachineDevices] = []
    async with connected(address, Path()) as cluster:
        with trio.move_on_after(_WAIT_S):
            while not cluster.machines:
                await cluster.wait()
        async with trio.open_nursery() as nursery:
            for each in cluster.machines.values():
                nursery.start_soon(_ask, cluster, each, selector, found)
        found += [MachineDevices(name, problem=why) for name, why in cluster.refused.items()]
    return sorted(found, key=lambda each: each.machine)


async def _ask(cluster: Cluster, machine: Machine, selector: str, found: list[MachineDevices]) -> None:
    try:
        answer = await cluster.ask(machine, ListDevices(selector), Devices)
    except OrchestratorError as error:
        found.append(MachineDevices(machine.name, problem=str(error)))
    except WorkerLostError:
        found.append(MachineDevices(machine.name, problem="it left"))
    else:
        found.append(MachineDevices(machine.name, answer.found))
