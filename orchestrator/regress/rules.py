"""What makes a comparison a failure, as `--fail-on` says it. Pure.

crash, refused       a pipeline that the driver crashes on, or refuses, and did not before
any                  any difference
never                nothing
spills>0             executables that spill and did not before
CodeSize>+1%         the sum of a statistic over all executables, by its share or by its amount
MaxWaves<-1%
time>+5%             compile time, where its whole interval lies beyond
"""

from __future__ import annotations

import re
from typing import Final

from attrs import frozen

from orchestrator.regress.comparison import OnlyOne, SideComparison
from orchestrator.regress.times import TimeChange
from orchestrator.run.records import Record

DEFAULT_RULES: Final = "crash", "refused"
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
        if text in (*_WORDS, "any", "never"):
            return cls(text)
        found = _RULE.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text!r} is no rule: expected is crash, refused, any, never, or one such as spills>0, "
                "CodeSize>+1%, time>+5%"
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
    if rule.name == "time":
        return _judge_time(rule, time)
    if rule.name == "spills":
        amount = float(len(found.new_of("spill")))
        return _judged(rule, amount, f"{amount:.0f} executables spill, and did not before")
    change = found.total.of(rule.name)
    if change is None:
        known = any(rule.name.lower() in (each.name.lower(), each.short.lower()) for each in found.deltas)
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
    shares = time.driver.low - 1.0, time.driver.high - 1.0
    told = f"{time.driver.median - 1.0:+.2%} [{shares[0]:+.2%}, {shares[1]:+.2%}], {time.verdict}"
    beyond = min(shares) > rule.limit if rule.above else max(shares) < rule.limit
    return RuleVerdict(rule.text, beyond and time.is_decided, told)
