# Purpose: which job was the first with a key. A hash table in two arrays, filled and asked for many keys at once,
# because a dictionary of a million integers takes a hundred bytes an entry and this takes 24 to 64.
#
# How: open addressing, linear probing, at most half full. The place of a key is the top of its product with
# 2^64 / golden ratio (Fibonacci hashing), so that keys that count upwards spread too. A round of insertion tries
# one place for all keys at once; where several want one place, the array assignment lets one of them win, and the
# others go on to the next place.
#
# Guarantees: exact: a key is compared in full. The first job that claims a key keeps it.
# Expected O(1) a key; no key is ever removed.
"""`KeyTable`: from 64-bit keys to job numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SMALLEST = 16


class KeyTable:
    """A map from uint64 to job numbers; see the top of the module."""

    def __init__(self) -> None:
        """Make an empty table."""
        self._used = 0
        self._resize(_SMALLEST)

    def __len__(self) -> int:
        """Number of keys."""
        return self._used

    def claim(self, keys: npt.NDArray[np.uint64], jobs: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Enter jobs under their keys, unless a job is there already.

        Args:
            keys: Shape (n,).
            jobs: The job of each, shape (n,).

        Returns:
            Who has the key, shape (n,): the job itself, an earlier one, or an earlier one of this call.
        """
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        owners = self._claim_distinct(distinct, jobs[first])
        return owners[inverse.reshape(-1)]

    @property
    def nbytes(self) -> int:
        """Bytes that the table takes."""
        return self._keys.nbytes + self._jobs.nbytes

    def _claim_distinct(
        self, keys: npt.NDArray[np.uint64], jobs: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.int32]:
        while 2 * (self._used + len(keys)) > len(self._keys):
            self._grow(self._used + len(keys))
        owners = np.empty(len(keys), np.int32)
        left = np.arange(len(keys))
        places = self._places(keys)
        while len(left):
            free = self._jobs[places] < 0
            if free.any():
                # Of several new keys at one place one stays; all are read back below, and see whether it is theirs.
                self._keys[places[free]] = keys[left[free]]
                self._jobs[places[free]] = -2
            mine = self._keys[places] == keys[left]
            new = mine & free
            self._jobs[places[new]] = jobs[left[new]]
            self._used += int(np.count_nonzero(new))
            owners[left[mine]] = self._jobs[places[mine]]
            left, places = left[~mine], (places[~mine] + 1) & self._mask
        return owners

    def _places(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        return ((keys * _GOLDEN) >> self._shift).astype(np.int64)

    def _grow(self, needed: int) -> None:
        keys, jobs = self._keys, self._jobs
        size = len(keys)
        while size < 2 * needed:
            size *= 2
        self._resize(size)
        held = jobs >= 0
        self._used = 0
        self._claim_distinct(keys[held], jobs[held])

    def _resize(self, size: int) -> None:
        self._keys = np.zeros(size, np.uint64)
        self._jobs = np.full(size, -1, np.int32)
        self._mask = size - 1
        self._shift = np.uint64(64 - (size.bit_length() - 1))
