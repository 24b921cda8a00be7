# Purpose: the shader modules of a prepared image: all of them made at once where their SPIR-V fits the bound,
# otherwise made when a batch needs them and dropped, least recently used first, when the bound is passed.
#
# Guarantees: a module is alive from acquire() to release(), whatever the bound; a module is made once at a time
# (two workers that need it share it); the bound is kept but for what is in use. Thread-safe.
"""Shader modules on demand, bounded in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from attrs import define

from orchestrator.devices.image import ImageModule

DEFAULT_LIMIT: Final = 256 * 1024 * 1024


@define(eq=False)
class _Live:
    handle: int
    size: int
    users: int = 0


class ShaderModules:
    """The modules of one image on one device.

    Attributes:
        all_made: Whether every module exists for good, so that nothing has to be acquired.
    """

    def __init__(
        self,
        modules: Sequence[ImageModule],
        create: Callable[[ImageModule], int],
        destroy: Callable[[int], None],
        limit: int = DEFAULT_LIMIT,
    ) -> None:
        """Take over modules.

        Args:
            modules: Those of the image.
            create: Makes a module's handle; may raise.
            destroy: Ends a handle.
            limit: Bytes of SPIR-V to keep alive beyond what is in use.
        """
        self._modules = modules
        self._create = create
        self._destroy = destroy
        self._limit = limit
        self._live: OrderedDict[int, _Live] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()
        self.all_made = False

    def make_all(self) -> dict[int, str]:
        """Make every module, if they fit; returns those that could not be made, by index, with the cause."""
        if sum(each.code_size for each in self._modules) > self._limit:
            return {}
        problems: dict[int, str] = {}
        for index in range(len(self._modules)):
            try:
                self.acquire(index)
            except Exception as error:  # noqa: BLE001 - whatever it is belongs to this module, not to the set
                problems[index] = str(error)
        self.all_made = True
        return problems

    def acquire(self, index: int) -> int:
        """The handle of a module, alive until released.

        Raises:
            RecordError: Its SPIR-V cannot be read.
            DriverError: The driver refused it.
        """
        with self._lock:
            live = self._live.get(index)
            if live is None:
                module = self._modules[index]
                live = _Live(self._create(module), module.code_size)
                self._live[index] = live
                self._size += live.size
            self._live.move_to_end(index)
            live.users += 1
            return live.handle

    def release(self, index: int) -> None:
        """End one use of a module."""
        with self._lock:
            self._live[index].users -= 1
            if self._size > self._limit:
                self._evict()

    def handles(self) -> dict[int, int]:
        """Handles of the modules that are alive, by index."""
        with self._lock:
            return {index: live.handle for index, live in self._live.items()}

    def close(self) -> None:
        """Destroy all modules. The caller guarantees that no batch uses them."""
        with self._lock:
            for live in self._live.values():
                self._destroy(live.handle)
            self._live.clear()
            self._size = 0

    def _evict(self) -> None:
        over = self._size - self._limit
        victims = []
        for index, live in self._live.items():  # oldest first; it stops as soon as enough was found
            if over <= 0:
                break
            if not live.users:
                victims.append(index)
                over -= live.size
        for index in victims:
            live = self._live.pop(index)
            self._size -= live.size
            self._destroy(live.handle)
