"""What runs note for the next one, as values of the database.

Compile times order the next run. Contents say which pipelines a cache file holds, and are ignored once
another program changed it. Groups say how devices were opened; they are for people. Identifiers of shader
modules are valid for every device with their algorithm. Plans are sets in decoded form. Adding keeps what
other sets and processes noted. A value that cannot be used counts as missing, with a reason.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import attrs
import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from orchestrator.devices.identified import MOST_IDENTIFIER_BYTES
from orchestrator.devices.request import DeviceRequest
from orchestrator.stores.files.atomic_file import ReadError, SaveError, content_hash128
from orchestrator.stores.state import Kind, State, value_name

MOST_ENTRIES: Final = 4_000_000
"""More pipelines than any known set has; the newest are kept."""
MOST_GROUPS: Final = 1_000
MOST_IDENTIFIERS: Final = 1_000_000
MOST_PLANS: Final = 64
MOST_PLAN_BYTES: Final = 1 << 30  # of all plans of a directory
_MOST_PLANS_TRIED: Final = 8
_DAY_S: Final = 86_400

_VALUE_CAP: Final = 128 << 20

Keys = npt.NDArray[np.uint64]
Nanoseconds = npt.NDArray[np.int64]


_N = TypeVar("_N", "Durations", "CacheContents", "KnownIdentifiers")


def no_keys() -> Keys:
    """None."""
    return np.zeros(0, np.uint64)


def places_of(known: Keys, keys: Keys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The index of each key in ascending known ones, and whether it is known, both of shape (m,)."""
    places, found = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
    if len(known) and len(keys):
        order = np.argsort(keys)  # in ascending order, memory is read in order
        nearest = np.minimum(np.searchsorted(known, keys[order]), len(known) - 1)
        places[order], found[order] = nearest, known[nearest] == keys[order]
    return places, found


def _newest(most: int, *columns: tuple[npt.NDArray[Any], npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """Columns of rows by ascending key, the first column: the `most` newest of new and old rows.

    Each column is given as that of the new rows and that of the old ones, the newest first.
    """
    joined = [np.concatenate(each) for each in columns]
    _, first = np.unique(joined[0], return_index=True)  # the first of equal keys is the newest
    if len(first) > most:
        first = first[first < np.sort(first)[most]]
    return [each[first] for each in joined]


class Durations(msgspec.Struct, frozen=True, eq=False):
    """Compile times of pipelines on one device."""

    keys: Keys = msgspec.field(default_factory=no_keys)  # Hashes of the pipelines, ascending, shape (n,).
    # Driver time of each, shape (n,).
    duration_ns: Nanoseconds = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))
    problem: str = ""  # Why recorded times were not used, or "", also of what was added to them.

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.duration_ns):
            raise ValueError("not one time for each key")

    def __len__(self) -> int:
        return len(self.keys)

    def of(self, keys: Keys) -> Nanoseconds:
        """Times of pipelines, shape (m,); 0 where there is none."""
        times = np.zeros(len(keys), np.int64)
        places, found = places_of(self.keys, keys)
        times[found] = self.duration_ns[places[found]]
        return times

    def updated(self, keys: Keys, duration_ns: Nanoseconds) -> Durations:
        """These times, replaced by newer ones where those are not 0."""
        timed = duration_ns > 0
        columns = (keys[timed], self.keys), (duration_ns[timed], self.duration_ns)
        every, times = _newest(MOST_ENTRIES, *columns)
        return Durations(every, times, self.problem)


DURATIONS: Final = Kind("compile times", Durations, cap=_VALUE_CAP)


def _read(kind: Kind[_N], place: Path) -> _N:
    """What is noted. Never raises: what cannot be used counts as nothing, and says why."""
    known, problem = kind.read(place)
    return kind.of(problem=problem) if known is None else known


read_durations = partial(_read, DURATIONS)
"""Compile times of a device, by its cache file."""


def best_known_durations(directory: Path, keys: Keys) -> tuple[str, Durations]:
    """The name of the cache file whose device has times for most of some pipelines, and its times.

    "" and none where there are none, or the database cannot be read. Never raises.
    """
    best = "", Durations()
    most = 0
    with suppress(ReadError):
        for name, known, _ in DURATIONS.read_all(directory):
            if known is not None and (found := int(np.count_nonzero(known.of(keys)))) > most:
                most, best = found, (name, known)
    return best


def add_durations(cache_file: Path, keys: Keys, duration_ns: Nanoseconds) -> Durations:
    """Add driver times (ns, shape (n,), 0 for none) to the recorded ones of a device; returns all.

    Raises:
        SaveError: As `Kind.update`.
    """
    known, problem = DURATIONS.update(cache_file, lambda old: (old or Durations()).updated(keys, duration_ns))
    return replace(known, problem=problem)


class CacheContents(msgspec.Struct, frozen=True, eq=False):
    """Pipelines that a cache file holds."""

    keys: Keys = msgspec.field(default_factory=no_keys)  # Hashes of the pipelines, ascending, shape (n,).
    data_hash: bytes = b""  # `dataHash` of the cache file that holds them.
    problem: str = ""  # Why an existing record was not used, or "".

    def __len__(self) -> int:
        return len(self.keys)

    def held(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Which of some pipelines it holds, shape (m,)."""
        return places_of(self.keys, keys)[1]


CONTENTS: Final = Kind("contents", CacheContents, cap=_VALUE_CAP)


read_contents = partial(_read, CONTENTS)
"""What a cache file is known to hold."""


def add_contents(cache_file: Path, keys: Keys, data_hash: bytes, before: Collection[bytes] = ()) -> str:
    """Note that a cache file holds some pipelines, in addition to earlier ones.

    `data_hash` is its `dataHash` now, `before` are earlier ones whose content it still holds. What was noted
    for any other is dropped. Returns why earlier notes were lost, or "".

    Raises:
        SaveError: As `Kind.update`.
    """

    def make(old: CacheContents | None) -> CacheContents:
        kept = old.keys if old is not None and old.data_hash in (data_hash, *before) else no_keys()
        (every,) = _newest(MOST_ENTRIES, (keys, kept))
        return CacheContents(every, data_hash)

    return CONTENTS.update(cache_file, make)[1]


class CompiledGroup(msgspec.Struct, frozen=True):
    """How a device was opened for compiling, and how many pipelines its last compile gave the driver."""

    request: DeviceRequest
    pipelines: int


GROUPS: Final = Kind("groups", tuple[CompiledGroup, ...])


def read_feature_groups(cache_file: Path) -> tuple[tuple[CompiledGroup, ...], str]:
    """The groups of a cache file, and why an existing record was not used, or "". Never raises."""
    groups, problem = GROUPS.read(cache_file)
    return groups or (), problem


def add_feature_groups(cache_file: Path, groups: Iterable[CompiledGroup], *, anew: bool = False) -> str:
    """Add the groups that a cache file was made for; a newer group replaces one with the same request.

    `anew` drops earlier groups, because the cache file was begun again. Returns why an existing record was
    lost, or "".

    Raises:
        SaveError: As `Kind.update`.
    """
    groups = list(groups)
    if not anew and set(groups) <= set(read_feature_groups(cache_file)[0]):
        return ""  # the usual case when a run compiles nothing new
    new = {each.request: each for each in groups}

    def make(old: tuple[CompiledGroup, ...] | None) -> tuple[CompiledGroup, ...]:
        kept = () if anew or old is None else [each for each in old if each.request not in new]
        return (*kept, *new.values())[-MOST_GROUPS:]

    return GROUPS.update(cache_file, make)[1]


_Identifier = Annotated[bytes, msgspec.Meta(min_length=1, max_length=MOST_IDENTIFIER_BYTES)]


class KnownIdentifiers(msgspec.Struct, frozen=True, eq=False):
    """Identifiers of shader modules, all of one algorithm, by an application's keys of its shaders."""

    used: dict[int, tuple[_Identifier, int]] = {}  # Each with the hour of its last use, since 1970.
    problem: str = ""  # Why those that are kept were not used, or "".

    def __len__(self) -> int:
        return len(self.used)

    def of(self, keys: Keys) -> list[bytes]:
        """Identifiers of some shaders; b"" where one is not known."""
        return [self.used.get(key, (b"", 0))[0] for key in keys.tolist()]

    def updated(self, learned: Mapping[int, bytes], used: Keys, hour: int) -> KnownIdentifiers:
        """These identifiers with newer ones, which replace them; `used` are the shaders asked for now."""
        every = {key: (identifier, hour) for key, identifier in learned.items()}
        again = [key for key in used.tolist() if key in self.used]
        for known in {key: (self.used[key][0], hour) for key in again}, self.used:
            every = {**known, **every}
        newest = sorted(every.items(), key=lambda each: each[1][1], reverse=True)
        return KnownIdentifiers(dict(newest[:MOST_IDENTIFIERS]))


IDENTIFIERS: Final = Kind("shader-module identifiers", KnownIdentifiers, cap=_VALUE_CAP)


def identifiers_place(directory: Path, algorithm: bytes, revision: str) -> Path:
    """What names the identifiers of one algorithm, shaderModuleIdentifierAlgorithmUUID, in a directory.

    The revision says what the keys mean (`SpirvProvider.revision`); each has identifiers of its own.
    """
    hashed = content_hash128(revision.encode())[:8].hex()
    return directory / f"shader-modules-{algorithm.hex()}-{hashed}"


read_identifiers = partial(_read, IDENTIFIERS)
"""The identifiers of a place."""


def add_identifiers(place: Path, learned: Mapping[int, bytes], used: Keys) -> None:
    """Add identifiers, 1 to 32 bytes each, by the keys of their shaders.

    `used` are the shaders that were asked for now, shape (k,); they are kept longest.

    Raises:
        SaveError: As `Kind.update`.
    """
    hour = int(time.time()) // 3600
    IDENTIFIERS.update(place, lambda old: (old or KnownIdentifiers()).updated(learned, used, hour))


@attrs.frozen
class PlanIdentity:
    """What a plan was made of: the hash of the set's files, its part and the rules, and the device's name."""

    made_of: str
    device: str

    @property
    def name(self) -> str:
        """Its name in the database."""
        return f"{self.made_of} {self.device}"


PLANS: Final = Kind("plans", bytes, cap=1 << 29, is_large=True)


def find_plans(directory: Path, identity: PlanIdentity) -> tuple[PlanIdentity, ...]:
    """Plans of a set: the device's own, else those of others, the newest first. Never raises."""
    start = f"{identity.made_of} "
    with suppress(ReadError), State.open(directory) as state, state.reading() as sql:
        rows = sql.execute(
            "SELECT name FROM large_value WHERE kind = ? AND substr(name, 1, ?) = ?"
            " ORDER BY name = ? DESC, used_s DESC LIMIT ?",
            (PLANS.name, len(start), start, identity.name, _MOST_PLANS_TRIED),
        )
        found = tuple(PlanIdentity(identity.made_of, name.removeprefix(start)) for (name,) in rows)
        return (identity,) if identity in found else found
    return ()


def read_plan(directory: Path, identity: PlanIdentity) -> tuple[bytes | None, str]:
    """A plan or None, and why one that is there was not used, or "". Never raises. Thread-safe."""
    row = PLANS.name, identity.name
    try:
        with State.open(directory) as state, state.reading() as sql:
            data, problem = PLANS.stored(sql, identity.name)
            used = sql.execute("SELECT used_s FROM large_value WHERE kind = ? AND name = ?", row).fetchone()
    except ReadError as error:
        return None, str(error)
    now = int(time.time())
    if data is not None and not now - _DAY_S < used[0] <= now:
        # The directory may be one that can only be read.
        with suppress(SaveError), State.open_to_write(directory) as state, state.writing() as sql:
            sql.execute("UPDATE large_value SET used_s = ? WHERE kind = ? AND name = ?", (now, *row))
    return data, problem


def save_plan(cache_file: Path, identity: PlanIdentity, parts: Sequence[bytes | memoryview]) -> None:
    """Save a plan beside a cache file, in place of one with the same identity. Thread-safe.

    Those that were not used for longest go, if there are too many.

    Raises:
        SaveError: It could not be written, or is too large.
    """
    with State.open_to_write(cache_file.parent) as state, state.writing() as sql:
        PLANS.store(sql, identity.name, b"".join(parts), value_name(cache_file))
        query = "SELECT rowid, length(data) FROM large_value WHERE kind = ? ORDER BY used_s DESC, rowid DESC"
        total = 0
        for number, (row, size) in enumerate(sql.execute(query, (PLANS.name,)).fetchall()):
            total += size
            if number and (number >= MOST_PLANS or total > MOST_PLAN_BYTES):
                sql.execute("DELETE FROM large_value WHERE rowid = ?", (row,))
