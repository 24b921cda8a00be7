"""Counts a driver's allocations through VkAllocationCallbacks (specification, "Host Memory")."""

from __future__ import annotations

import threading
from typing import Any, Final

from cffi import FFI

from orchestrator.devices.vulkan._generated import ffi

_SMALLEST_ALIGNMENT: Final = 8


class HostMemory:
    """Counters behind one set of callbacks. Thread-safe; must outlive the device that uses it."""

    def __init__(self) -> None:
        self._libc_ffi = FFI()
        self._libc_ffi.cdef("int posix_memalign(void **, size_t, size_t); void free(void *);")
        self._libc = self._libc_ffi.dlopen(None)
        self._sizes: dict[int, int] = {}
        self._lock = threading.Lock()
        self.live_bytes = 0
        self.peak_bytes = 0
        self.allocations = 0
        self.callbacks = ffi.new("VkAllocationCallbacks *")
        fields = dict(ffi.typeof("VkAllocationCallbacks").fields)
        self._kept = [
            ffi.callback(fields["pfnAllocation"].type, self._allocate, error=ffi.NULL),
            ffi.callback(fields["pfnReallocation"].type, self._reallocate, error=ffi.NULL),
            ffi.callback(fields["pfnFree"].type, self._free),
        ]
        self.callbacks.pfnAllocation, self.callbacks.pfnReallocation, self.callbacks.pfnFree = self._kept

    def _allocate(self, user: Any, size: int, alignment: int, scope: int) -> Any:
        del user, scope
        out = self._libc_ffi.new("void **")
        if not size or self._libc.posix_memalign(out, max(alignment, _SMALLEST_ALIGNMENT), size):
            return ffi.NULL
        address = int(self._libc_ffi.cast("uintptr_t", out[0]))
        with self._lock:
            self._sizes[address] = size
            self.live_bytes += size
            self.allocations += 1
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return ffi.cast("void *", address)

    def _reallocate(self, user: Any, original: Any, size: int, alignment: int, scope: int) -> Any:
        if not original:
            return self._allocate(user, size, alignment, scope)
        if not size:
            self._free(user, original)
            return ffi.NULL
        moved = self._allocate(user, size, alignment, scope)
        if moved:
            with self._lock:
                old = self._sizes[int(ffi.cast("uintptr_t", original))]
            ffi.memmove(moved, original, min(old, size))
            self._free(user, original)
        return moved

    def _free(self, user: Any, memory: Any) -> None:
        del user
        if not memory:
            return
        address = int(ffi.cast("uintptr_t", memory))
        with self._lock:
            self.live_bytes -= self._sizes.pop(address)
        self._libc.free(self._libc_ffi.cast("void *", address))
