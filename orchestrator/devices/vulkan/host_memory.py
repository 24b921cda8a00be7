# Purpose: counts the host memory that a driver takes through VkAllocationCallbacks (specification, chapter "Memory
# Allocation", section "Host Memory").
#
# Guarantees: alignment as asked; a reallocation keeps the bytes; counters are exact and thread-safe. The callbacks
# take the GIL, so an allocation costs microseconds instead of tens of nanoseconds: opt-in, never for benchmarks.
#
# Assumptions: a libc with posix_memalign (Unix). What a driver takes from the C library by itself is not seen.
"""Accounting of a driver's host memory."""

from __future__ import annotations

import threading
from typing import Any, Final

from cffi import FFI

from orchestrator.devices.vulkan._generated import ffi

_libc_ffi: Final = FFI()
_libc_ffi.cdef("int posix_memalign(void **out, size_t alignment, size_t size); void free(void *memory);")
_SMALLEST_ALIGNMENT: Final = 8


class HostMemory:
    """Counters behind one set of callbacks. Thread-safe; must outlive the device that uses it.

    Attributes:
        callbacks: VkAllocationCallbacks *.
        live_bytes: Bytes allocated and not freed.
        peak_bytes: The most that `live_bytes` ever was.
        allocations: Number of allocations so far, reallocations included.
    """

    def __init__(self) -> None:
        self._libc = _libc_ffi.dlopen(None)
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
        out = _libc_ffi.new("void **")
        if not size or self._libc.posix_memalign(out, max(alignment, _SMALLEST_ALIGNMENT), size):
            return ffi.NULL
        address = int(_libc_ffi.cast("uintptr_t", out[0]))
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
        self._libc.free(_libc_ffi.cast("void *", address))
