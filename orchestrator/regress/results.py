"""The table of one side: what a driver said of the code of each pipeline, in columns.

Read from a result file of `regress`, or from CSV as `compile --pipeline-stats` and `fossilize-replay
--enable-pipeline-stats` write it, where headings may come again in the middle, with other columns.

Guarantees: a file is refused with its line where it is not understood; nothing in it is executed. Memory
follows the number of cells. An executable is known by its number among those of its pipeline, because
several may have one name; of a pipeline that comes twice, the later rows count.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import define, field

from orchestrator.errors import OrchestratorError
from orchestrator.regress.directions import is_hash
from orchestrator.run.records import Columns, Record, decode_msgpack, encode_msgpack
from orchestrator.run.statistics import InspectedPipeline
from orchestrator.stores.files.atomic_file import write_document

_DATABASE, _KEY, _NAME, _SUBGROUP = "Database", "Pipeline hash", "Executable name", "Subgroup size"
_FACTS: Final = (
    *(_DATABASE, "Pipeline type", _KEY, _NAME, _SUBGROUP),
    *("PSO wall duration (ns)", "PSO duration (ns)", "Stage duration (ns)"),
)
"""Columns that are no statistics."""
_LINES: Final = 1_000
_WORDS: Final = {"": np.nan, "true": 1.0, "false": 0.0}
_MAGIC: Final = b"\x89regress 3\n"

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Hashes = npt.NDArray[np.uint64]
Column = Floats | Hashes


class ResultError(OrchestratorError):
    """A file has no results that can be compared."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


class Lost(msgspec.Struct, frozen=True):
    """A pipeline without code on a side."""

    application: str
    key: int
    status: str  # "skipped", "failed" (the driver refused it), "crashed" or "not run"
    reason: str


class Side(Record, frozen=True):
    """A side of a comparison; "" is what is not known, as of CSV."""

    name: str
    driver: str = ""  # Its name in directions.csv.
    device: str = ""  # VkPhysicalDeviceProperties::deviceName.
    driver_info: str = ""  # driverName and driverInfo of VkPhysicalDeviceDriverProperties.
    library: str = ""  # Path of the driver's library.
    build_id: str = ""  # Build id of the library, or a hash of it.
    notes: tuple[str, ...] = ()


class Results(Columns, frozen=True, eq=False, kw_only=True):
    """The results of one side. Columns have one row for each executable, in any order."""

    side: Side  # Whose they are.
    applications: tuple[str, ...]  # Names that `application` counts; likewise `names`.
    names: tuple[str, ...]
    application: Integers  # Place of the application, shape (n,).
    key: Hashes  # Hash of the pipeline in its set.
    number: Integers  # Number of the executable in its pipeline, from 0.
    name: Integers  # Place of the executable's name.
    subgroup: Integers  # VkPipelineExecutablePropertiesKHR::subgroupSize.
    numbers: dict[str, Floats]  # Statistics by name; NaN where an executable lacks one.
    hashes: dict[str, Hashes]  # Statistics that are hashes; 0 where an executable lacks one.
    lost: tuple[Lost, ...] = ()  # Pipelines without code.

    @property
    def statistics(self) -> dict[str, Column]:
        """All statistics, by name."""
        return {**self.numbers, **self.hashes}

    def __len__(self) -> int:
        """Number of executables."""
        return len(self.key)

    def save(self, path: Path) -> None:
        """Write a result file, which `read_results` reads; an existing one is replaced.

        Raises:
            SaveError: It cannot be written.
        """
        write_document(path.absolute(), _MAGIC + encode_msgpack(self))


@define(eq=False)
class ResultBuilder:
    """Gathers rows, in chunks of columns; a statistic may begin and end anywhere. One thread."""

    _applications: dict[str, int] = field(factory=dict)
    _names: dict[str, int] = field(factory=dict)
    _chunks: list[dict[str, npt.NDArray[Any]]] = field(factory=list)
    _statistics: list[Mapping[str, Column]] = field(factory=list)

    def add(
        self,
        applications: Sequence[str],
        keys: Hashes,
        names: Sequence[str],
        subgroups: Integers,
        statistics: Mapping[str, Column],
    ) -> None:
        """Add rows: the application, the pipeline's key, name and subgroup size of each executable."""
        columns = {
            "application": _placed(applications, self._applications),
            "key": keys,
            "name": _placed(names, self._names),
            "subgroup": subgroups,
        }
        self._chunks.append(columns)
        self._statistics.append(statistics)

    def done(self, side: Side, lost: Sequence[Lost] = ()) -> Results:
        """The results."""
        if not self._chunks:
            self.add((), np.zeros(0, np.uint64), (), np.zeros(0, np.int64), {})
        columns = {name: np.concatenate([each[name] for each in self._chunks]) for name in self._chunks[0]}
        _placed([each.application for each in lost], self._applications)  # of one, all may be lost
        rows, columns["number"] = _numbered(columns["application"], columns["key"])
        columns = {name: each[rows] for name, each in columns.items()}
        names = dict.fromkeys(chain.from_iterable(self._statistics))
        statistics: dict[str, Any] = {name: self._statistic(name)[rows] for name in names}
        return Results(
            side=side,
            applications=tuple(self._applications),
            names=tuple(self._names),
            numbers={name: each for name, each in statistics.items() if not is_hash(name)},
            hashes={name: each for name, each in statistics.items() if is_hash(name)},
            lost=tuple(lost),
            **columns,
        )

    def _statistic(self, name: str) -> Column:
        kind: Any = np.uint64 if is_hash(name) else np.float64
        lacking = 0 if is_hash(name) else np.nan
        parts = [
            each.get(name, np.full(len(chunk["key"]), lacking, kind))
            for each, chunk in zip(self._statistics, self._chunks, strict=True)
        ]
        return np.concatenate([np.zeros(0, kind), *parts])


def _placed(texts: Sequence[str], places: dict[str, int]) -> Integers:
    """The place of each text, of which new ones get the next."""
    return np.array([places.setdefault(each, len(places)) for each in texts], np.int64)


def _numbered(application: Integers, keys: Hashes) -> tuple[npt.NDArray[np.intp], Integers]:
    # Rows to keep, and the number of each row in its run of one pipeline.
    begins = np.ones(len(keys), np.bool_)
    begins[1:] = (keys[1:] != keys[:-1]) | (application[1:] != application[:-1])
    first, run = np.flatnonzero(begins), np.cumsum(begins) - 1
    pairs = zip(application[first].tolist(), keys[first].tolist(), strict=True)
    last = {pair: number for number, pair in enumerate(pairs)}
    return np.flatnonzero(np.isin(run, list(last.values()))), np.arange(len(keys)) - first[run]


# --- reading


def read_results(path: Path) -> Results:
    """Read a result file, or a CSV of statistics.

    Raises:
        ResultError: It is neither, or has a line that cannot be understood.
        OSError: It cannot be read.
    """
    with path.open("rb") as stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            return _read_csv(path)
        data = stream.read()
    try:
        found = decode_msgpack(data, Results)
    except (ValueError, msgspec.MsgspecError) as error:
        raise ResultError(str(path), f"is no result file of regress: {error}") from error
    columns = [*found.at(slice(None)).values(), *found.statistics.values()]
    if len({each.shape for each in columns}) != 1:
        raise ResultError(str(path), "its columns differ in length")
    counted = (found.application, found.applications), (found.name, found.names)
    lost = {each.application for each in found.lost} - set(found.applications)
    if lost or any(len(each) and not 0 <= each.min() <= each.max() < len(known) for each, known in counted):
        raise ResultError(str(path), "a column of it names what the file does not have")
    return found


def _read_csv(path: Path) -> Results:
    builder, columns, rows = ResultBuilder(), list[str](), list[list[str]]()
    try:
        with path.open(encoding="utf-8", errors="backslashreplace", newline="") as stream:
            reader = csv.reader(stream)
            for row in reader:
                is_heading = _DATABASE in row and _KEY in row
                if is_heading or len(rows) == _LINES:
                    _add_rows(builder, columns, rows, reader.line_num)
                    rows = []
                if is_heading:
                    columns = row
                elif row:
                    _require_fields(row, columns, reader.line_num)
                    rows.append(row)
            _add_rows(builder, columns, rows, reader.line_num)
    except (ValueError, OverflowError, csv.Error) as error:
        raise ResultError(str(path), str(error)) from error
    if not columns:
        raise ResultError(
            str(path),
            f"has no heading with {_DATABASE!r}, {_KEY!r} and {_NAME!r}: a result file of `regress` is "
            "expected, or CSV of `compile --pipeline-stats` or `fossilize-replay --enable-pipeline-stats`",
        )
    return builder.done(Side(name=path.stem))


def _require_fields(row: list[str], columns: list[str], line: int) -> None:
    if not columns:
        raise ValueError(f"line {line} comes before any heading with {_DATABASE!r} and {_KEY!r}")
    if len(row) != len(columns):
        raise ValueError(f"line {line} has {len(row)} fields, its heading {len(columns)}")


def _add_rows(builder: ResultBuilder, columns: list[str], rows: list[list[str]], line: int) -> None:
    if not rows:
        return
    if _NAME not in columns:
        raise ValueError(f"a heading before line {line} lacks {_NAME}")
    texts = dict(zip(columns, zip(*rows, strict=True), strict=True))

    def converted(name: str) -> Column:
        try:
            return _hashes(texts[name]) if is_hash(name) else _floats(texts[name])
        except (ValueError, OverflowError) as error:
            raise ValueError(f"column {name!r}, up to line {line}: {error}") from None

    sizes = converted(_SUBGROUP) if _SUBGROUP in texts else np.zeros(len(rows))
    builder.add(
        texts[_DATABASE],
        _hashes(texts[_KEY], 16),
        texts[_NAME],
        np.nan_to_num(sizes).astype(np.int64),
        {name: converted(name) for name in columns if name and name not in _FACTS},
    )


def _floats(texts: Sequence[str]) -> Floats:
    try:
        return np.fromiter(map(float, texts), np.float64, len(texts))  # numpy's own takes six times as long
    except ValueError:
        return np.array([_WORDS[each] if each in _WORDS else float(each) for each in texts], np.float64)


def _hashes(texts: Sequence[str], base: int = 0) -> Hashes:
    found = (int(each, base if base else 16 if each[:2] == "0x" else 10) if each else 0 for each in texts)
    return np.fromiter((each & 0xFFFF_FFFF_FFFF_FFFF for each in found), np.uint64, len(texts))


def add_inspected(builder: ResultBuilder, application: str, pipelines: Sequence[InspectedPipeline]) -> None:
    """Add the pipelines of a run with statistics to results."""
    rows = [(each, one) for each in pipelines for one in each.found.executables]
    names = list(dict.fromkeys(chain.from_iterable((name for name, _ in one.statistics) for _, one in rows)))
    values = [dict(one.statistics) for _, one in rows]

    def statistic(name: str) -> Column:
        if is_hash(name):
            hashes = (int(each.get(name, 0)) & 0xFFFF_FFFF_FFFF_FFFF for each in values)
            return np.fromiter(hashes, np.uint64, len(rows))
        return np.fromiter((float(each.get(name, np.nan)) for each in values), np.float64, len(rows))

    builder.add(
        [application] * len(rows),
        np.fromiter((each.key for each, _ in rows), np.uint64, len(rows)),
        [one.name for _, one in rows],
        np.fromiter((one.subgroup_size for _, one in rows), np.int64, len(rows)),
        {name: statistic(name) for name in names},
    )
