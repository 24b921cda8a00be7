"""What makes a comparison a failure, as `--fail-on` says it. Pure.

crash, refused       a pipeline that the driver crashes on, or refuses, and did not before
any                  any difference
never                nothing
spills>0             executables that spill and did not before
CodeSize>+1%         the sum of a statistic over all executables, by its share or by its amount
MaxWaves<-1%
time>+5%             compile time, where it changed beyond noise, and its whole interval lies beyond

Of benchmarks, `crash` is a sample that could not be taken, `any` is any change beyond noise, and `cpu` and
`memory` are compared like `time`, cell by cell. `undecided` is time without a verdict, or a missing cell.
"""

from __future__ import annotations

import re
from typing import Final

from attrs import frozen

from orchestrator.bench.compare import ChangeReport
from orchestrator.bench.rows import arm_text, counted
from orchestrator.bench.statistics import Difference
from orchestrator.regress.comparison import OnlyOne, SideComparison
from orchestrator.regress.times import TimeChange
from orchestrator.run.records import Record

DEFAULT_RULES: Final = "crash", "refused"
BENCH_RULES: Final = *DEFAULT_RULES, "time>0%"
_WORDS: Final = {"crash": "crashed", "refused": "failed"}
_RULE: Final = re.compile(r"(?P<name>[^<>]*[^<> ]) ?(?P<way>[<>]) ?(?P<least>[+-]?\d+(\.\d+)?)(?P<share>%?)")


@frozen
class FailRule:
    """One rule."""

    text: str
    name: str = ""  # of a statistic, or "spills" or "time"; "" for a word
    above: bool = True
    limit: float = 0.0
    is_share: bool = False

    @classmethod
    def parse(cls, text: str) -> FailRule:
        """Parse a rule.

        Raises:
            ValueError: It is none.
        """
        if text in (*_WORDS, "undecided", "any", "never"):
            return cls(text)
        found = _RULE.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text!r} is no rule: expected is crash, refused, undecided, any, never, or one such "
                "as spills>0, CodeSize>+1%, time>+5%"
            )
        limit = float(found["least"]) / (100.0 if found["share"] else 1.0)
        return cls(text, found["name"], found["way"] == ">", limit, bool(found["share"]))


class RuleVerdict(Record, frozen=True):
    """What became of a rule of `--fail-on`."""

    rule: str
    broken: bool
    message: str  # What was found.


def judge(rule: FailRule, found: SideComparison, time: TimeChange | None = None) -> RuleVerdict:
    """Whether a comparison breaks a rule; one about what was not measured is not broken, and says so."""
    if rule.text == "never":
        return RuleVerdict(rule.text, False, "nothing is a failure")
    if rule.text == "any":
        told = "identical" if found.is_identical else f"{found.total.affected:,} shaders are affected"
        return RuleVerdict(rule.text, not found.is_identical, told)
    if rule.text in _WORDS:
        lost = [each for each in news(found) if each.status == _WORDS[rule.text]]
        keys = [f"{key:016x}" for each in lost for _, key in each.pipelines]
        told = f"{len(keys):,} new: {', '.join(keys[:8])}" if keys else "none new"
        return RuleVerdict(rule.text, bool(keys), told)
    if rule.name == "time" or rule.text == "undecided":
        return _judge_time(rule, time)
    if rule.name == "spills":
        amount = float(len(found.new_of("spill")))
        return _judged(rule, amount, f"{amount:.0f} executables spill, and did not before")
    change = found.total.of(rule.name)
    if change is None:
        known = any(each.is_called(rule.name) for each in found.deltas)
        return RuleVerdict(rule.text, False, "unchanged" if known else "no such statistic on both sides")
    amount = change.share if rule.is_share else change.after - change.before
    return _judged(rule, amount, f"{change.before:g} -> {change.after:g} ({change.share:+.2%})")


def news(found: SideComparison) -> tuple[OnlyOne, ...]:
    """What `before` has and `after` has not."""
    return tuple(each for each in found.only_one if each.side == "before")


def _judged(rule: FailRule, amount: float, told: str) -> RuleVerdict:
    return RuleVerdict(rule.text, amount > rule.limit if rule.above else amount < rule.limit, told)


def _judge_time(rule: FailRule, time: TimeChange | None) -> RuleVerdict:
    if time is None:
        return RuleVerdict(rule.text, False, "compile time was not measured: --time N does it")
    broken = _is_beyond(rule, time.difference) if rule.name else not time.difference.decided
    return RuleVerdict(rule.text, broken, f"{_ratio_text(time.difference)}, {time.verdict}")


def judge_bench(rule: FailRule, found: ChangeReport) -> RuleVerdict:
    """Whether a comparison of benchmarks breaks a rule."""
    if not rule.name:
        broken = {
            "crash": bool(found.failed),
            "refused": found.refused_added > 0,
            "undecided": bool(found.undecided or found.missing),
            "any": bool(found.slower or found.faster or found.missing),
        }
        return RuleVerdict(rule.text, broken.get(rule.text, False), found.missing or "nothing is missing")
    figure = {"time": "decisive"}.get(rule.name, rule.name)
    if figure not in ("decisive", "cpu", "memory"):
        return RuleVerdict(rule.text, False, "a benchmark has time, cpu and memory")
    cells = [(each.after, getattr(each, figure)) for each in found.changes]
    beyond = [f"{arm_text(cell)}: {_ratio_text(each)}" for cell, each in cells if _is_beyond(rule, each)]
    return RuleVerdict(rule.text, bool(beyond), "; ".join(beyond) or f"none of {counted(len(cells), 'cell')}")


def _is_beyond(rule: FailRule, found: Difference) -> bool:
    # What lies within the noise of the machine breaks no rule about a change.
    low, high = found.ratio.low - 1.0, found.ratio.high - 1.0
    if rule.above:
        return low > rule.limit and (found.higher or (found.decided and rule.limit < 0))
    return high < rule.limit and (found.lower or (found.decided and rule.limit > 0))


def _ratio_text(found: Difference) -> str:
    return f"{found.ratio.median - 1:+.2%} [{found.ratio.low - 1:+.2%}, {found.ratio.high - 1:+.2%}]"
