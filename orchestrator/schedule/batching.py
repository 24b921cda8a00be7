# Purpose: how many jobs to put into a batch: as many as are believed to take the time that is aimed at. What is
# believed is learned, for each kind apart (and for followers of a job that was compiled, which should hit), from
# how batches went:
#
#   time of a job = p x hit time + (1 - p) x its cost x scale
#     p          share of hits: a count of hits and misses, older ones fading
#     hit time   of batches that hit in full, averaged
#     scale      measured over believed cost of what was compiled, older ones fading
#
# So a warm run goes from batches of a few to the largest within eight batches, and a cold one to single
# jobs after one. Towards the end a batch is at most a fraction of each worker's share of what is left.
#
# Guarantees: pure arithmetic; estimates are positive whatever is reported.
"""`Experience`: what batches have taught."""

from __future__ import annotations

SHARES = 4
"""Towards the end, a batch is at most 1/SHARES of each worker's share of what is left."""

_MEMORY = 512.0
"""Hits and misses that count; beyond it older ones fade."""

_ONE_WAY = 0.5
"""What remains of hits after a batch of misses only, and the other way round."""

_FADE = 0.9
"""What remains of the weight of earlier batches when another one was compiled."""

_FIRST_HIT_NS = 5_000.0
"""A hit, before one was seen: a call from the interpreter and the driver's lookup."""


class Experience:
    """What the batches of one kind of work have taught.

    Args:
        expect_hits: Believed share of hits at the start, 0..1.
        weight: How many jobs that belief is worth.

    Attributes:
        tried: Whether a batch has ended.
    """

    __slots__ = ("_believed", "_hit_ns", "_hits", "_measured", "_misses", "_seen_hit", "tried")

    def __init__(self, expect_hits: float, weight: float = 1.0) -> None:
        self._hits = expect_hits * weight
        self._misses = (1.0 - expect_hits) * weight
        self._hit_ns = _FIRST_HIT_NS
        self._seen_hit = False
        self._measured = 0.0
        self._believed = 0.0
        self.tried = False

    @property
    def hit_share(self) -> float:
        """Share of jobs believed to hit."""
        return self._hits / (self._hits + self._misses)

    @property
    def scale(self) -> float:
        """Measured over believed cost of compiles; 1 before any was measured."""
        return self._measured / self._believed if self._believed else 1.0

    @property
    def learned(self) -> bool:
        """Whether what a job takes was measured, and is not only believed."""
        return self._measured > 0 or self._seen_hit

    def line(self) -> tuple[float, float]:
        """Believed time of a job is a + b x its cost: (a, b), nanoseconds and a factor, a > 0."""
        share = self.hit_share
        return max(1.0, share * self._hit_ns), (1.0 - share) * self.scale

    def learn(self, jobs: int, cost_ns: int, hits: int, compiles: int, elapsed_ns: int) -> None:
        """A batch ended.

        Args:
            jobs: Its jobs.
            cost_ns: Their believed cost if all were compiled.
            hits: How many hit.
            compiles: How many were compiled.
            elapsed_ns: What it took; 0 where that is not known.
        """
        self.tried = True
        if hits or compiles:
            # A batch that went all one way says more than its number of jobs.
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
            # What the hits of a mixed batch took is known well enough; the rest is what was compiled.
            spent = max(elapsed_ns - hits * self._hit_ns, 1.0)
            self._measured = self._measured * _FADE + spent
            self._believed = self._believed * _FADE + max(cost_ns * compiles / jobs, 1.0)


class Experiences:
    """What is known of each kind of work.

    Args:
        expect_hits: Believed share of hits at the start.

    Attributes:
        echoes: Of followers that are created after their leader, of any kind.
    """

    def __init__(self, expect_hits: float) -> None:
        self._expect_hits = expect_hits
        self._by_kind: dict[int, Experience] = {}
        self.echoes = Experience(1.0, 8.0)

    def of(self, kind: int) -> Experience:
        """What is known of a kind."""
        found = self._by_kind.get(kind)
        if found is None:
            found = self._by_kind[kind] = Experience(self._expect_hits)
        return found

    @property
    def learned(self) -> bool:
        """Whether what jobs take was measured for each kind that was begun."""
        return bool(self._by_kind) and all(each.learned for each in list(self._by_kind.values()))

    def items(self) -> list[tuple[int, Experience]]:
        """All kinds of which something was asked, ascending."""
        return sorted(self._by_kind.items())

    def mean_line(self) -> tuple[float, float]:
        """Believed time of a job of any kind, as `Experience.line`."""
        lines = [each.line() for each in list(self._by_kind.values())] or [
            Experience(self._expect_hits).line()
        ]
        return sum(base for base, _ in lines) / len(lines), sum(slope for _, slope in lines) / len(lines)
