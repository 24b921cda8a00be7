"""What a statistic of a driver means, by its exact name, from the table directions.csv. Pure."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from typing import Literal, cast

from orchestrator.run.records import Record

Direction = Literal["better", "worse", "neutral", "changed", "hash", "ignored"]
"""What more of it is; "changed" where the table does not know."""


class Statistic(Record, frozen=True):
    """A statistic of a driver, by what is known of it."""

    name: str  # VkPipelineExecutableStatisticKHR::name.
    short: str  # What Mesa's reports call it.
    direction: Direction  # What more of it is; changed where that is not known.
    role: str = ""  # spill, occupancy, size or "".

    def is_called(self, name: str) -> bool:
        """Whether this is its name or short name, in any case."""
        return name.lower() in (self.name.lower(), self.short.lower())

    def sign_of(self, more: float) -> int:
        """1 if so much more of it is better, -1 if it is worse, 0 where nobody knows or nothing changed."""
        way = {"better": 1, "worse": -1}.get(self.direction, 0)
        return way * ((more > 0) - (more < 0))


@cache
def _table() -> dict[str, dict[str, Statistic]]:
    lines = files(__package__).joinpath("directions.csv").read_text().splitlines()
    found: dict[str, dict[str, Statistic]] = {}
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        driver = row.pop("driver")
        found.setdefault(row["statistic"], {})[driver] = Statistic(
            row["statistic"],
            row["short"],
            cast("Direction", row["direction"]),  # one of them, which a test checks
            row["role"] or "",
        )
    return found


@cache
def statistic_of(name: str, driver: str = "") -> Statistic:
    """What is known of a statistic; of a driver that is not known, what those that have it agree on."""
    rows = _table().get(name, {})
    if driver in rows:
        return rows[driver]
    known = list(rows.values())
    if known and len({each.direction for each in known}) == 1:
        return known[0]
    return Statistic(name, name, "hash" if is_hash(name) else "changed")


@cache
def place_of(name: str) -> int:
    """Where it stands in a report: in the order of the table, what is not known last."""
    return [*_table(), name].index(name)


def is_hash(name: str) -> bool:
    """Whether its values are hashes, by its name: then a sum of them has no meaning."""
    return name.lower() == "hash" or name.lower().endswith(" hash")
