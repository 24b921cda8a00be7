# Purpose: a set in memory: what code and manifests build, and what tests hand to everything above.
# Guarantees: reads are thread-safe; records are never changed once added.
# Assumptions: one thread adds; a reader that must see a record asks after it was added.
"""`MemoryRecords`: records kept in dictionaries."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.sets.records import Damage, RecordTag


class MemoryRecords:
    """A mutable `RecordSource`. Of records of one name the first is kept."""

    def __init__(self, name: str = "memory") -> None:
        """Begin an empty set.

        Args:
            name: For messages.
        """
        self._name = name
        self._payloads: dict[RecordTag, dict[int, bytes]] = {tag: {} for tag in RecordTag}

    @property
    def name(self) -> str:
        """Where the records come from, for messages."""
        return self._name

    @property
    def damage(self) -> Sequence[Damage]:
        """Nothing: what is in memory was never stored."""
        return ()

    def __len__(self) -> int:
        """Number of records."""
        return sum(map(len, self._payloads.values()))

    def __contains__(self, name: tuple[RecordTag, int]) -> bool:
        """Whether there is a record (tag, hash)."""
        tag, key = name
        return key in self._payloads[tag]

    def add(self, tag: RecordTag, key: int, payload: bytes) -> bool:
        """Add a record.

        Args:
            tag: What it holds.
            key: Its 64-bit hash.
            payload: As in an archive, uncompressed: JSON, and for modules a NUL and the encoded words.

        Returns:
            False where there is one of that name; this one is left out then.

        Raises:
            ValueError: The hash does not have 64 bits.
        """
        if not 0 <= key < 1 << 64:
            raise ValueError(f"hash {key:#x} does not have 64 bits")
        records = self._payloads[tag]
        if key in records:
            return False
        records[key] = payload
        return True

    def keys(self, tag: RecordTag) -> Sequence[int]:
        """Hashes of all records of a tag in the order they were added."""
        return tuple(self._payloads[tag])

    def payload(self, tag: RecordTag, key: int) -> bytes:
        """The payload of a record.

        Raises:
            KeyError: There is no such record.
        """
        return self._payloads[tag][key]
