"""Which of the ready jobs make the next batch, and how large it is.

    ReadyQueue    one kind at one priority is a line ──> 256 FIFO buckets by rank, 8 per octave. A bucket
                  spans 9 %: its jobs count as equally long. Entering and taking a job are O(1), and a line's
                  longest bucket is the top bit of one integer.
    Experience    what batches have taught about hits and costs.
    Affinity      jobs that share code prefer one worker, so that its private cache can hit.
    Selector      takes a batch from a line: the longest jobs first, preferring those that suit the worker, as
                  many as fit into the time; expected hits in the order of the set, in one piece.

Guarantees: no entry is ever searched for. A job that was promoted, joined another one or was cancelled leaves
a stale entry behind, which is skipped when entries are taken. Estimates are positive whatever is reported.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from orchestrator.devices.image import row, span_of
from orchestrator.schedule.jobs import ASSIGNED, KEEPS_GIL, Int32s, JobGraph, JobTable, Links

PRIORITIES = 3
BUCKETS = 256
_LINES = sum(1 << (kind * PRIORITIES) for kind in range(256))  # a kind is one byte
_PER_OCTAVE = 8
_FIRST_OCTAVE = 10  # 1 us; 32 octaves on, 73 minutes
_SMALLEST = 4


def bucket_of(rank: int) -> int:
    """Bucket of a length, nanoseconds."""
    if rank <= 1 << _FIRST_OCTAVE:
        return 0
    return min(BUCKETS - 1, int((math.log2(rank) - _FIRST_OCTAVE) * _PER_OCTAVE))


def buckets_of(ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Buckets of many lengths, nanoseconds."""
    octaves = np.log2(np.maximum(ranks, 1)) - _FIRST_OCTAVE
    places: npt.NDArray[np.int64] = np.clip(octaves * _PER_OCTAVE, 0, BUCKETS - 1).astype(np.int64)
    return places


class Bucket:
    """A queue of job numbers in one array.

    Attributes:
        jobs: The array; entries are jobs[head:tail].
        at: The same memory, for single elements.
        head: Index of the first entry.
        tail: Index after the last entry.
        is_row: Whether the entries are known to be consecutive job numbers.
    """

    __slots__ = ("at", "head", "is_row", "jobs", "tail")

    def __init__(self) -> None:
        self.jobs: Int32s = np.empty(0, np.int32)
        self.at: memoryview[int] = self.jobs.data
        self.head = 0
        self.tail = 0
        self.is_row = True

    def push(self, job: int) -> None:
        """Enter a job."""
        if self.tail == len(self.at):
            self._make_room(1)
        self.is_row = self.is_row and self._continues(job)
        self.at[self.tail] = job
        self.tail += 1

    def push_all(self, jobs: Int32s) -> None:
        """Enter many jobs."""
        tail = self.tail + len(jobs)
        if tail > len(self.at):
            self._make_room(len(jobs))
            tail = self.tail + len(jobs)
        self.is_row = self.is_row and self._continues(int(jobs[0])) and span_of(jobs) is not None
        self.at[self.tail : tail] = jobs.data  # bytes: numpy would release the GIL
        self.tail = tail

    def _continues(self, job: int) -> bool:
        return self.head == self.tail or self.at[self.tail - 1] == job - 1

    def replace_front(self, number: int, rest: Sequence[int]) -> None:
        """Replace the first `number` entries by `rest`, which are some of them, in their order."""
        self.head += number - len(rest)
        if 0 < len(rest) < number:
            self.is_row = False
            self.at[self.head : self.head + len(rest)] = array("i", rest)

    def _make_room(self, number: int) -> None:
        held = self.tail - self.head
        size = max(_SMALLEST, held + number, 2 * held if self.tail else 0)
        jobs = np.empty(size, np.int32)
        jobs[:held] = self.jobs[self.head : self.tail]
        self.jobs = jobs
        self.at = jobs.data
        self.head, self.tail = 0, held


class ReadyQueue:
    """The ready jobs of a table, or some of them.

    Args:
        table: The jobs.
        state: State of its jobs. An entry is stale if its job has another state, or belongs to another line:
            a cancelled job may be entered again with a lower priority.
        each_ns: Estimated cost of each job, where all have the same, else 0.

    Attributes:
        state: See above.
        each_ns: See above.
        masks: For each line, the buckets that have entries, as bits. A line is kind * PRIORITIES + priority.
        open: The lines that have entries, as bits.
        repeats: Whether a job may have two entries; set by the caller that enters a job again.
        sinks: Whether the later one may be in a lower bucket; set as `repeats`. An entry is then stale, too,
            if it is more than one bucket above its job's rank: logarithms may differ in their last bit.
    """

    def __init__(self, table: JobTable, state: int, each_ns: int = 0) -> None:
        self._table = table
        self.state = state
        self.each_ns = each_ns
        self.masks: list[int] = []
        self.open = 0
        self.repeats = False
        self.sinks = False
        self._buckets: list[dict[int, Bucket]] = []

    def lines(self, priority: int) -> list[int]:
        """The lines of a priority that have entries, the one with the longest job first."""
        found = self.open & (_LINES << priority)
        if not found & (found - 1):
            return [found.bit_length() - 1] if found else []
        lines = [line for line in range(priority, len(self.masks), PRIORITIES) if self.masks[line]]
        return sorted(lines, key=lambda line: -self.masks[line].bit_length())

    def bucket(self, line: int, number: int) -> Bucket:
        """A bucket whose bit is set."""
        return self._buckets[line][number]

    def empty(self, line: int, number: int) -> None:
        """Remove a bucket that has no entries any more."""
        self.masks[line] &= ~(1 << number)
        if not self.masks[line]:
            self.open &= ~(1 << line)
        del self._buckets[line][number]

    @property
    def entries(self) -> int:
        """Number of entries, with stale ones."""
        return sum(each.tail - each.head for buckets in self._buckets for each in buckets.values())

    def drop_stale(self) -> None:
        """Drop stale entries, which nobody takes where no worker asks for work."""
        buckets = [each for buckets in self._buckets for each in buckets.values()]
        jobs = np.unique(np.concatenate([each.jobs[each.head : each.tail] for each in buckets]))
        self.masks, self._buckets, self.open = [], [], 0
        self.push_all(jobs[self._table.state[jobs] == self.state])

    def push(self, job: int) -> None:
        """Enter a job of that state."""
        table = self._table
        line = table.kind_at[job] * PRIORITIES + table.priority_at[job]
        self._open(line, bucket_of(table.rank_at[job])).push(job)

    def push_all(self, jobs: Int32s) -> None:
        """Enter many jobs of that state."""
        table = self._table
        if len(jobs) <= KEEPS_GIL:
            for job in sorted(jobs.tolist(), key=table.rank_at.__getitem__, reverse=True):
                self.push(job)
            return
        ranks = table.rank[jobs]
        # Jobs that are entered together are sorted by exact rank, equal ranks by their order in `jobs`.
        order = np.argsort(-ranks, kind="stable")
        jobs = jobs[order]
        places = (table.kind[jobs].astype(np.int64) * PRIORITIES + table.priority[jobs]) * BUCKETS
        places += buckets_of(ranks[order])
        order = np.argsort(places, kind="stable")
        jobs, places = jobs[order], places[order]
        ends = np.flatnonzero(np.append(places[1:] != places[:-1], True)) + 1
        begin = 0
        for end in ends.tolist():
            line, number = divmod(int(places[begin]), BUCKETS)
            self._open(line, number).push_all(jobs[begin:end])
            begin = end

    def _open(self, line: int, number: int) -> Bucket:
        while line >= len(self.masks):
            self.masks.extend([0] * PRIORITIES)
            self._buckets.extend({} for _ in range(PRIORITIES))
        found = self._buckets[line].get(number)
        if found is None:
            found = self._buckets[line][number] = Bucket()
            self.masks[line] |= 1 << number
            self.open |= 1 << line
        return found


SHARES = 4
"""Towards the end, a batch is at most 1/SHARES of each worker's share of what is left."""

_MEMORY = 512.0
"""Number of hits and misses that are remembered; older ones fade."""

_ONE_WAY = 0.5
"""Factor on the count of hits after a batch of misses only, and on misses after a batch of hits only."""

_FADE = 0.9
"""Factor on the weight of earlier batches after each batch of compiles."""

_TELLING: Final = 8
_NEAR: Final = 0.25
"""Estimates count as exact after `_TELLING` batches of compiles with a mean logarithmic error of `_NEAR`."""

_FIRST_HIT_NS = 5_000.0
"""Time of a hit before one was measured: a call from the interpreter and the driver's lookup."""


class Experience:
    """What the batches of one kind of work have taught: the estimated time of a job is a + b x its cost.

        a = share of hits x time of a hit               b = (1 - share of hits) x scale

    The share comes from counts of hits and misses, the time of a hit from batches without a miss, and the
    scale is measured over estimated cost of compiles. Older batches fade. So a warm run goes from small
    batches to the largest within eight batches, and a cold run goes to single jobs after one.

    Args:
        expect_hits: Estimated share of hits at the start, 0..1.
        weight: How many jobs that estimate is worth.

    Attributes:
        tried: Whether a batch has ended.
    """

    __slots__ = (
        "_compiled",
        "_estimated",
        "_hit_ns",
        "_hits",
        "_measured",
        "_misses",
        "_off",
        "_seen_hit",
        "_told",
        "tried",
    )

    def __init__(self, expect_hits: float, weight: float = 1.0) -> None:
        self._hits = expect_hits * weight
        self._misses = (1.0 - expect_hits) * weight
        self._hit_ns = _FIRST_HIT_NS
        self._seen_hit = False
        self._measured = 0.0
        self._estimated = 0.0
        self._compiled = 0.0
        self._off = 0.0
        self._told = 0
        self.tried = False

    @property
    def hit_share(self) -> float:
        """Estimated share of jobs that hit."""
        return self._hits / (self._hits + self._misses)

    @property
    def remembered_hits(self) -> float:
        """Number of hits that are remembered, with those that the estimate at the start is worth."""
        return self._hits

    @property
    def scale(self) -> float:
        """Measured over estimated cost of compiles; 1 before any was measured."""
        return self._measured / self._estimated if self._estimated else 1.0

    @property
    def compile_ns(self) -> float:
        """Measured time of a compile, nanoseconds; infinite before any was measured."""
        return self._measured / self._compiled if self._compiled else math.inf

    @property
    def told(self) -> bool:
        """Whether enough batches with compiles were measured to say how far off estimates are."""
        return self._told >= _TELLING

    @property
    def exact(self) -> bool:
        """Whether estimates match measured times, as they do where an earlier run recorded them."""
        return self.told and self._off <= _NEAR

    @property
    def proven(self) -> bool:
        """Whether a batch has ended, and nearly all hit."""
        return self.tried and self.hit_share >= MOST_HIT

    @property
    def learned(self) -> bool:
        """Whether any time was measured."""
        return self._measured > 0 or self._seen_hit

    def line(self) -> tuple[float, float]:
        """Estimated time of a job is a + b x its cost: (a, b), nanoseconds and a factor, a > 0."""
        share = self.hit_share
        return max(1.0, share * self._hit_ns), (1.0 - share) * self.scale

    def learn(self, jobs: int, cost_ns: int, hits: int, compiles: int, elapsed_ns: int) -> None:
        """A batch ended.

        Args:
            jobs: Number of its jobs.
            cost_ns: Their estimated cost if all were compiled.
            hits: How many hit.
            compiles: How many were compiled.
            elapsed_ns: Time of the batch; 0 where it is not known.
        """
        self.tried = True
        if hits or compiles:
            # A batch of only hits or only misses says more than its number of jobs.
            if not compiles:
                self._misses *= _ONE_WAY
            elif not hits:
                self._hits *= _ONE_WAY
            self._hits += hits
            self._misses += compiles
            if (total := self._hits + self._misses) > _MEMORY:
                self._hits *= _MEMORY / total
                self._misses *= _MEMORY / total
        if elapsed_ns <= 0:
            return
        if hits == jobs:
            sample = elapsed_ns / jobs
            self._hit_ns = (self._hit_ns + sample) / 2 if self._seen_hit else sample
            self._seen_hit = True
        elif compiles:
            # The time of the hits in a mixed batch is known well enough; compiles took the rest.
            spent = max(elapsed_ns - hits * self._hit_ns, 1.0)
            estimated = max(cost_ns * compiles / jobs, 1.0)
            off = abs(math.log(spent / (self.scale * estimated)))
            self._off = self._off * _FADE + off * (1 - _FADE) if self._told else off
            self._told += 1
            self._measured = self._measured * _FADE + spent
            self._compiled = self._compiled * _FADE + compiles
            self._estimated = self._estimated * _FADE + estimated


class Experiences:
    """What is known of each kind of work: pipelines of a kind, duplicates, expected hits.

    Args:
        expect_hits: Estimated share of hits at the start.

    Attributes:
        followers: Jobs that are created after their leader: by state key, and by second-level key.
        hits: Jobs that a cache is expected to hold.
        wave: Jobs that are tried without their code. A miss is no compile, so nearly all hit.
    """

    def __init__(self, expect_hits: float) -> None:
        self._expect_hits = expect_hits
        self._by_kind: dict[int, Experience] = {}
        self.followers = Experience(1.0, 8.0), Experience(1.0, 8.0)
        self.hits = Experience(1.0, 8.0)
        self.wave = Experience(1.0, 8.0)

    def of(self, kind: int) -> Experience:
        """What is known of a kind."""
        found = self._by_kind.get(kind)
        if found is None:
            found = self._by_kind[kind] = Experience(self._expect_hits)
        return found

    @property
    def learned(self) -> bool:
        """Whether a time was measured for each kind of work that was begun."""
        begun = [*self._by_kind.values(), *(each for each in (self.hits, self.wave) if each.tried)]
        return bool(begun) and all(each.learned for each in begun)

    def mean_line(self) -> tuple[float, float]:
        """Estimated time of a job of any kind, as `Experience.line`."""
        lines = [each.line() for each in list(self._by_kind.values())] or [
            Experience(self._expect_hits).line()
        ]
        return sum(base for base, _ in lines) / len(lines), sum(slope for _, slope in lines) / len(lines)


WINDOW = 32
"""How many ready jobs a worker looks at for one that suits it. With 8 workers, (7/8)^32 = 1 % find none."""
_PER_JOB: Final = 16
"""How many it looks at for each job that fits into its batch, where that is more."""

SHORT = 8
"""A job may be passed over if its cost is at most 1/SHORT of a worker's share of what is left."""

MOST_HIT = 0.9
"""From this share of hits on, affinity has no effect: every cache has the code."""

MANY = 16
"""Where so many jobs have one label, one of them is measured before batches hold several."""

_UNTOLD: Final = 256.0
_TELLS: Final = 4096.0
"""Where every label is measured, a job whose label was not yet is ordered as if it took `_UNTOLD` times its
estimate, and the job that will measure it `_TELLS` times: before all that is known, but for giants."""

NOBODY: Final = -1
"""The home of a label that has none yet."""


class Affinity:
    """Labels of jobs, homes of labels, and whether a compile of a label was measured.

    Each job gets at most one label: the rarest shader module that it shares with another job (a cache gains
    most from code that few jobs share), else the first library that it links. The home of a label is the
    worker that is first assigned one of its jobs. Among jobs of about equal priority and rank, a worker takes
    those whose label has its home there or has none yet.

    The size of a shader says little about its compile time: one took 12 times the estimate, and a batch of
    86 of its permutations 1.7 s, when all else was done after 1.4 s. So a job whose label has MANY jobs goes
    alone until one of them was measured; the others get a new estimate where the first was far off.

    Where compiles are long, which the scheduler finds out, jobs of every label do. First come one job of each
    label, the longest by estimate, and jobs without a label. Then come those whose label is in flight, for
    what is not done yet is likely long. Those whose label was measured come last, the longest first.

    Affinity does not unbalance workers. It only orders jobs inside a window, and where no job in the window
    suits, the first one is taken. Only short jobs are passed over, at most 1/SHORT of a worker's share of
    what is left. So the longest job always starts first, and towards the end affinity has no effect.

    Args:
        table: The jobs; their column `label` is written here.
        jobs: The graph of the jobs, for their modules.
        links: Their libraries.

    Attributes:
        at_home: Jobs that were assigned to the home of their label, without the first of each label.
        moved: Jobs that were assigned elsewhere.
        active: Whether any job has a label.
        measures_all: Whether jobs of every label go alone until one was measured.
        homes: The home of each label: the worker that all its jobs suit. NOBODY: they suit every worker.
    """

    def __init__(self, table: JobTable, jobs: JobGraph | None, links: Links) -> None:
        self._table = table
        self.at_home = 0
        self.moved = 0
        self.measures_all = False
        self._modules = 0
        self.homes: memoryview[int] = np.empty(0, np.int32).data
        # For each label: measured over estimated cost. Negative: not measured yet. 0: fewer than MANY jobs.
        self._factor = np.empty(0, np.float64)
        # For each label: measured time of its first compile over the first estimate. 0: none was measured.
        self._told = np.empty(0, np.float64)
        self.extend(jobs, links, 0)

    def extend(self, jobs: JobGraph | None, links: Links, first: int) -> None:
        """Give labels to the jobs from `first` on; jobs of another graph share no module with them."""
        labels = self._table.label[first:]
        if jobs is not None:
            if jobs.module_start is not None and jobs.module_index is not None and len(jobs.module_index):
                own = _module_labels(jobs.module_start, jobs.module_index)
                labels[:] = np.where(own < 0, own, own + 2 * self._modules)
                self._modules += int(jobs.module_index.max()) + 1
            if links.count:
                linking, edge = np.unique(links.dependent, return_index=True)
                bare = (linking >= first) & (self._table.label[linking] < 0)
                self._table.label[linking[bare]] = 2 * links.library[edge[bare]] + 1
        # Modules have even labels, libraries odd ones.
        highest = int(self._table.label.max()) if self._table.count else -1
        self.active = highest >= 0
        home = np.full(highest + 1, NOBODY, np.int32)
        home[: len(self.homes)] = self.homes
        self.homes = home.data
        own = self._table.label[first:]
        factor = np.where(np.bincount(own[own >= 0], minlength=highest + 1) >= MANY, -1.0, 0.0)
        factor[: len(self._factor)] = self._factor
        self._factor = factor
        self._told = np.append(self._told, np.zeros(highest + 1 - len(self._told)))
        # All jobs in the order of their labels, and where each label begins; made when they are asked for.
        self._by_label = np.empty(0, np.int32)
        self._label_start = np.empty(0, np.int64)

    def assigned(self, job: int, worker: int) -> None:
        """A job was assigned."""
        home_at = self.homes
        own = 2 * job + 1
        if own < len(home_at):
            home_at[own] = worker
        label = self._table.label_at[job]
        if label >= 0:
            home = home_at[label]
            if home == NOBODY:
                home_at[label] = worker
            elif home == worker:
                self.at_home += 1
            else:
                self.moved += 1

    def is_unmeasured(self, job: int) -> bool:
        """Whether a job's label has MANY jobs, or all are measured, and no compile of it was measured."""
        label = self._table.label_at[job]
        return label >= 0 and bool(not self._told[label] if self.measures_all else self._factor[label] < 0)

    def measured(self, jobs: Int32s) -> float | None:
        """The time of compiling some jobs was measured.

        Returns:
            The factor on the estimates of their label, if they all have one label with MANY jobs; else None.
        """
        label_at, numbers = self._table.label_at, jobs.tolist()
        label = label_at[numbers[0]]
        if label < 0 or not self._factor[label] or any(label_at[each] != label for each in numbers):
            return None
        factor = abs(float(self._factor[label]))
        self._factor[label] = factor
        return factor

    def tell(self, job: int, ratio: float) -> bool:
        """A job was compiled alone, in `ratio` times its first estimate; returns whether its label is new."""
        label = self._table.label_at[job]
        if label < 0 or self._told[label]:
            return False
        self._told[label] = ratio
        return True

    def peers(self, job: int) -> Int32s:
        """All jobs with the label of a job, which has one, ascending."""
        if not len(self._by_label):
            labels = self._table.label
            self._by_label = np.argsort(labels, kind="stable").astype(np.int32)
            self._label_start = np.searchsorted(labels, np.arange(len(self.homes) + 1), sorter=self._by_label)
        label = self._table.label_at[job]
        return self._by_label[self._label_start[label] : self._label_start[label + 1]]

    def told_of(self, job: int) -> float:
        """What `tell` was told of the label of a job, which has one; 0 where nothing was."""
        return float(self._told[self._table.label_at[job]])

    def order(self, jobs: Int32s) -> npt.NDArray[np.float64]:
        """Factors on the first estimates of jobs, given the longest first, that order them; see the class."""
        labels = self._table.label[jobs]
        told = np.where(labels >= 0, self._told[labels], 0.0)
        tells = np.zeros(len(jobs), np.bool_)
        tells[np.unique(labels, return_index=True)[1]] = True
        tells &= ~np.isin(labels, self._table.label[self._table.state == ASSIGNED])
        return np.where(told > 0, told, np.where(tells | (labels < 0), _TELLS, _UNTOLD))

    def corrected(self, job: int, factor: float) -> Int32s:
        """Set the factor on the estimates of a job's label; returns all jobs of the label."""
        self._factor[self._table.label_at[job]] = factor
        return self.peers(job)


def _module_labels(start: npt.NDArray[np.int64], index: Int32s) -> Int32s:
    """The rarest module of each job that others use as well, as a label; -1 where there is none."""
    users = np.bincount(index)
    unshared = np.int64(1) << 62
    number = index.astype(np.int64)
    weight = np.where(users[number] > 1, (users[number] << 31) | number, unshared)
    labels = np.full(len(start) - 1, -1, np.int32)
    some = np.flatnonzero(np.diff(start))
    rarest = np.minimum.reduceat(weight, start[some])
    shared = rarest != unshared
    labels[some[shared]] = 2 * (rarest[shared] & ((1 << 31) - 1))
    return labels


FLOORS = tuple(2.0 ** (_FIRST_OCTAVE + number / _PER_OCTAVE) for number in range(BUCKETS))
"""Smallest rank of each bucket, nanoseconds."""

_NONE: Final = np.empty(0, np.int32)
_FEW: Final = 6
_HIT_NS: Final = 50_000
"""Jobs that are estimated to be shorter are hits, of which a batch holds hundreds: hardly any driver compiles
one in that time."""
_PIECE: Final = 8
"""Least number of consecutive jobs that make a batch by themselves; shorter pieces share a batch."""


class Limits(NamedTuple):
    """What a batch may hold. A job is estimated to take base_ns + slope x its cost.

    Attributes:
        base_ns: See above.
        slope: See above.
        time_ns: Time to aim at: the whole batch must fit into it, unless it is a single job.
        most_ns: Time that the first job must fit into; not less than time_ns.
        size: Most jobs.
        picky: Whether to take only jobs that suit the worker.
        adjacent: Whether to take consecutive jobs of the set, whose create infos the driver reads in place.
        cautious: Whether a job whose label was not measured goes alone.
    """

    base_ns: float
    slope: float
    time_ns: float
    most_ns: float
    size: int
    picky: bool = False
    adjacent: bool = False
    cautious: bool = False


class Selector:
    """Takes batches for workers: compiles job by job, and hits with operations on slices or arrays.

    Both remove stale entries and the jobs they take, which become ASSIGNED, and keep the order of the rest.
    With an infinite `most_ns`, and not `picky`, a line that holds a job always gives a batch.

    Args:
        table: The jobs.
        affinity: Who suits whom.
    """

    def __init__(self, table: JobTable, affinity: Affinity) -> None:
        self._table = table
        self._affinity = affinity
        self._named: dict[int, memoryview[int]] = {}

    def take(self, queue: ReadyQueue, line: int, worker: int, limits: Limits) -> Int32s:
        """Take a batch for a worker from a line of a queue; empty where no job fits or suits."""
        mask = queue.masks[line]
        if not mask:
            return _NONE
        first_ns = limits.base_ns + limits.slope * FLOORS[mask.bit_length() - 1]
        plain = first_ns <= _HIT_NS and not (limits.picky or limits.cautious)
        if (limits.adjacent or plain) and limits.size >= _FEW and limits.time_ns >= _FEW * first_ns:
            jobs = self._row(queue, line, worker, limits) if limits.adjacent else _NONE
            if not len(jobs):
                jobs = self._many(queue, line, worker, limits)
            if len(jobs):
                return jobs
        fitting = min(limits.size, int(limits.time_ns / first_ns) + 1)
        chosen = self._few(queue, line, worker, limits, max(WINDOW, _PER_JOB * fitting))
        return np.array(chosen, np.int32) if chosen else _NONE

    def shortest(self, queue: ReadyQueue, line: int, worker: int) -> Int32s:
        """Take one job of the shortest bucket; empty where the line has none."""
        while mask := queue.masks[line]:
            number = (mask & -mask).bit_length() - 1
            bucket = queue.bucket(line, number)
            while bucket.head < bucket.tail:
                job = bucket.at[bucket.head]
                bucket.head += 1
                if (
                    self._table.state_at[job] == queue.state
                    and self._table.priority_at[job] == line % PRIORITIES
                ):
                    self._assign(job, worker)
                    return np.array([job], np.int32)
            queue.empty(line, number)
        return _NONE

    def _assign(self, job: int, worker: int) -> None:
        self._table.move(job, ASSIGNED)
        self._table.worker_at[job] = worker

    def _few(self, queue: ReadyQueue, line: int, worker: int, limits: Limits, window: int) -> list[int]:
        state_at, cost_at, ready = self._table.state_at, self._table.cost_at, queue.state
        priority_at, priority, repeats = self._table.priority_at, line % PRIORITIES, queue.repeats
        rank_at, sinks = self._table.rank_at, queue.sinks
        label_at, homes = self._table.label_at, self._affinity.homes
        suiting = (worker, NOBODY) if limits.picky else ()
        chosen: list[int] = []
        left_ns = limits.time_ns
        passed = 0
        mask = queue.masks[line]
        more = True
        while mask and more:
            number = mask.bit_length() - 1
            mask ^= 1 << number
            bucket = queue.bucket(line, number)
            at, position, tail = bucket.at, bucket.head, bucket.tail
            stay: list[int] = []
            while position < tail and more:
                job = at[position]
                position += 1
                if (
                    state_at[job] != ready
                    or (repeats and priority_at[job] != priority)
                    or (sinks and bucket_of(rank_at[job]) + 1 < number)
                ):
                    continue
                if suiting and (label := label_at[job]) >= 0 and homes[label] not in suiting:
                    stay.append(job)
                    passed += 1
                    more = passed < window
                    continue
                time_ns = limits.base_ns + limits.slope * cost_at[job]
                if not chosen and time_ns > limits.most_ns:
                    stay.append(job)
                    passed += 1
                    if passed >= WINDOW:
                        # Enough jobs were tried: go on with a bucket whose jobs all fit.
                        fitting = int((limits.most_ns - limits.base_ns) / max(limits.slope, 1e-9))
                        mask &= (1 << bucket_of(fitting)) - 1
                        break
                    continue
                alone = limits.cautious and self._affinity.is_unmeasured(job)
                if chosen and (
                    alone or time_ns > left_ns or (limits.adjacent and job != chosen[-1] + 1)
                ):  # it stays the next one
                    position -= 1
                    more = False
                    continue
                self._assign(job, worker)
                chosen.append(job)
                left_ns -= time_ns
                more = not alone and len(chosen) < limits.size and left_ns > 0
            bucket.replace_front(position - bucket.head, stay)
            if bucket.head == bucket.tail:
                queue.empty(line, number)
        return chosen

    def _row(self, queue: ReadyQueue, line: int, worker: int, limits: Limits) -> Int32s:
        """The next entries, if they are consecutive jobs and all are ready; else empty.

        Entries are compared and changed as bytes: numpy would release the GIL while the schedule is locked.
        """
        table, number = self._table, queue.masks[line].bit_length() - 1
        bucket = queue.bucket(line, number)
        begin = bucket.head
        each_ns = limits.base_ns + limits.slope * queue.each_ns
        size = min(limits.size, bucket.tail - begin, int(limits.time_ns / each_ns))
        if size < _FEW or queue.repeats:
            return _NONE
        first = bucket.at[begin]
        jobs = row(first, first + size) if bucket.is_row else bucket.jobs[begin : begin + size]
        span = span_of(jobs)
        if span is None or table.state_at[span].tobytes() != bytes((queue.state,)) * size:
            return _NONE
        bucket.head += size
        if bucket.head == bucket.tail:
            queue.empty(line, number)
        table.move_row(span, queue.state, ASSIGNED)
        table.open_cost -= queue.each_ns * size
        named = self._named.get(worker)
        if named is None or len(named) < size:
            named = self._named[worker] = memoryview(array("i", (worker,)) * size)
        table.worker_at[span] = named[:size]
        return jobs

    def _many(self, queue: ReadyQueue, line: int, worker: int, limits: Limits) -> Int32s:
        table = self._table
        while queue.masks[line]:
            seen, segments = self._front(queue, line, limits.size)
            gone = table.state[seen] != queue.state
            if queue.repeats:
                gone |= table.priority[seen] != line % PRIORITIES
            if queue.sinks:
                numbers, sizes = np.array(segments).T
                gone |= buckets_of(table.rank[seen]) + 1 < np.repeat(numbers, sizes)
            places = np.flatnonzero(~gone)
            if queue.repeats:
                places = places[np.sort(np.unique(seen[places], return_index=True)[1])]
            ready = len(places)
            ends_ns = np.cumsum(limits.base_ns + limits.slope * table.cost[seen[places]])
            number = int(np.searchsorted(ends_ns, limits.time_ns, "right"))
            if not number and len(places) and ends_ns[0] <= limits.most_ns:
                number = 1
            if limits.adjacent:
                number = _piece(seen[places[:number]])
            places = places[:number]
            gone[places] = True
            self._remove(queue, line, seen, segments, gone)
            if number:
                taken = seen[places]
                table.move_all(taken, queue.state, ASSIGNED)
                table.worker[taken] = worker
                return taken
            if ready:
                break
        return _NONE

    def _front(self, queue: ReadyQueue, line: int, wanted: int) -> tuple[Int32s, list[tuple[int, int]]]:
        """The first entries of a line, and their buckets, each with its number of these entries."""
        parts: list[Int32s] = []
        segments: list[tuple[int, int]] = []
        mask = queue.masks[line]
        while mask and wanted > 0:
            number = mask.bit_length() - 1
            mask ^= 1 << number
            bucket = queue.bucket(line, number)
            size = min(bucket.tail - bucket.head, wanted)
            parts.append(bucket.jobs[bucket.head : bucket.head + size])
            segments.append((number, size))
            wanted -= size
        return np.concatenate(parts), segments

    def _remove(
        self,
        queue: ReadyQueue,
        line: int,
        seen: Int32s,
        segments: list[tuple[int, int]],
        gone: npt.NDArray[np.bool_],
    ) -> None:
        """Remove entries that `_front` returned from their buckets."""
        ends = np.cumsum([size for _, size in segments])
        counts = np.append(0, np.cumsum(gone))[ends].tolist()
        begin = before = 0
        for (number, size), count in zip(segments, counts, strict=True):
            bucket = queue.bucket(line, number)
            end = begin + size
            if count - before == size:
                bucket.head += size
                if bucket.head == bucket.tail:
                    queue.empty(line, number)
            elif count != before:
                bucket.replace_front(size, seen[begin:end][~gone[begin:end]].tolist())
            begin, before = end, count


def _piece(jobs: Int32s) -> int:
    """How many of the first jobs make a batch: one long piece of consecutive jobs, or several short ones."""
    gaps = np.flatnonzero(jobs[1:] != jobs[:-1] + 1) + 1
    if not len(gaps):
        return len(jobs)
    long = np.flatnonzero(np.diff(gaps, prepend=0, append=len(jobs)) >= _PIECE)
    if not len(long):
        return len(jobs)
    return int(gaps[long[0] - 1]) if long[0] else int(gaps[0])
