# Purpose: what single processes found out about a driver's caches, beside the samples of a calibration: do they keep
# anything, does merging work, do they grow whenever they are loaded and read.
# Guarantees: pure; "not measured" where something was not, with the reason.
"""Verdicts about caches."""

from __future__ import annotations

from attrs import frozen

from orchestrator.stores.calibration_profile import Finding

GROWTH_A_ROUND = 0.002
"""A cache that gains this share of itself whenever it is loaded and read grows without bound; bytes of bookkeeping do not."""

_WARM_HITS = 0.99


@frozen
class ProbeResult:
    """What single processes found out beside the samples.

    Attributes:
        set_pipelines: Pipelines that were handed to the driver.
        cold_hits: Hits that the set has in itself, with an empty cache: pipelines that are the same to the driver.
        shared_hits: Hits in a new process with the data of one shared cache; None where it was not tried.
        merged_hits: Hits in a new process with the data of merged worker caches; None where it was not tried.
        merge_warnings: What the merge said.
        sizes: Size of the cache after each round of load, use and read-back, from the first on.
        problem: Why nothing could be found out, or "".
    """

    set_pipelines: int = 0
    cold_hits: int = 0
    shared_hits: int | None = None
    merged_hits: int | None = None
    merge_warnings: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    problem: str = ""

    @property
    def cache_keeps(self) -> bool | None:
        """Whether a cache keeps anything at all."""
        return None if self.shared_hits is None else self.shared_hits > self.cold_hits

    @property
    def merge_works(self) -> bool | None:
        """Whether merged caches hold what one cache would have held."""
        if self.shared_hits is None or self.merged_hits is None or not self.cache_keeps:
            return None
        return self.merged_hits >= self.shared_hits * _WARM_HITS

    @property
    def read_back_grows(self) -> bool | None:
        """Whether it grew in every round, by more than bookkeeping."""
        if len(self.sizes) < 3 or not self.cache_keeps:
            return None
        steps = zip(self.sizes, self.sizes[1:], strict=False)
        return all(after - before > GROWTH_A_ROUND * before for before, after in steps)


def probe_findings(probe: ProbeResult) -> tuple[Finding, ...]:
    """What single processes found out, in words."""
    unknown = f" ({probe.problem})" if probe.problem else ""
    findings = []
    keeps, works, grows = probe.cache_keeps, probe.merge_works, probe.read_back_grows
    if keeps is False:
        words = (
            f"keeping: the driver's cache keeps nothing: of {probe.set_pipelines} pipelines a new process finds none in a saved cache. "
            "A saved cache makes nothing faster, so warm runs were not measured."
        )
    elif keeps:
        words = f"keeping: of {probe.set_pipelines} pipelines a new process finds {probe.shared_hits} in a saved shared cache."
    else:
        words = f"keeping: not measured{unknown}."
    findings.append(Finding(question="keeping", answer=_answer(keeps), words=words))
    if works is None:
        words = "merging: not measured" + (unknown or ": there is nothing to merge") + "."
    elif works:
        words = f"merging works: {probe.merged_hits} pipelines are found in merged worker caches."
    else:
        words = (
            f"merging does not work: {probe.merged_hits} pipelines are found in merged worker caches, and {probe.shared_hits} in "
            "one shared cache. Use the shared cache, or lose what workers compiled."
        )
    if probe.merge_warnings:
        words += " The driver's merge was noted: " + "; ".join(probe.merge_warnings) + "."
    findings.append(Finding(question="merging", answer=_answer(works), words=words))
    if grows is None:
        words = f"read-back: not measured{unknown}."
    else:
        sizes = f"{probe.sizes[0]:,} to {probe.sizes[-1]:,} bytes over {len(probe.sizes)} rounds of loading, using and reading"
        words = (
            f"read-back: the cache grows with every round: {sizes}; keep the file from being saved when nothing is new."
            if grows
            else (f"read-back: the cache does not grow without bound: {sizes}.")
        )
    findings.append(Finding(question="read-back growth", answer=_answer(grows), words=words))
    return tuple(findings)


def _answer(known: bool | None) -> str:
    return "not measured" if known is None else "yes" if known else "no"
