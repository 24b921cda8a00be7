# Purpose: what was measured about a device and its driver, kept beside its cache file, so that a run can follow it.
#
# Guarantees: those of profile_file.py. Fields may be added, with a default; none changes its meaning.
"""`CalibrationProfile` and its file."""

from __future__ import annotations

import msgspec

from orchestrator.stores.beside import CALIBRATION_SUFFIX
from orchestrator.stores.profile_file import ProfileFile, ProfileIdentity

PROFILE_FORMAT = 1


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What one contender took: making the caches, one pass over the set, and the merge.

    Attributes:
        temperature: "cold" or "warm".
        mode: The cache topology.
        workers: Number of workers.
        batch: Largest number of pipelines in a call.
        control: Whether it is the baseline once more.
        samples: How many samples.
        seconds: Their median.
        low: Lower end of its interval.
        high: Upper end.
        pipelines_per_s: Pipelines of one pass over the median.
    """

    temperature: str
    mode: str
    workers: int
    batch: int
    control: bool
    samples: int
    seconds: float
    low: float
    high: float
    pipelines_per_s: float


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one question.

    Attributes:
        question: Which, such as "the lock of the shared cache, cold".
        answer: "yes" or "no"; "faster", "slower", "no difference" or "undecided" where times were compared; a number; or
            "not measured".
        words: The answer in a sentence or two, with its figures.
        ratio: Time of the contender over that of the baseline, median over the pairs; None where nothing was compared.
        low: Lower end of its interval.
        high: Upper end.
        pairs: Number of pairs.
        noise: What the same thing measured twice differs by, as a factor of at least 1; None where it is not known.
    """

    question: str
    answer: str
    words: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0
    noise: float | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What to do.

    Attributes:
        mode: The cache topology.
        workers: Number of workers.
        words: Why.
    """

    mode: str
    workers: int
    words: str


class CalibrationProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured about a device and its driver on a machine.

    Attributes:
        identity: What it is about.
        device_name: For people.
        driver: Name and version of the driver, for people.
        made_at: Seconds since 1970.
        cores: Processors that were there.
        processor: What the processor calls itself.
        load_average: Highest load of the machine while it was measured.
        driver_caches: How the driver's own caches were turned off.
        set_name: What was compiled.
        set_hash: Hash over the names of its records, 16 hex digits.
        pipelines: Pipelines of it that the device takes.
        orchestrator: Version of this project.
        python: Version of Python.
        rounds: Rounds that were taken.
        figures: What each contender took.
        findings: Questions and answers.
        cold: What to do with an empty cache; None where it was not measured.
        warm: What to do with a cache that holds the set; None where it was not measured, or where caches keep nothing.
        batch: Largest number of pipelines in a call when everything hits; None where it was not measured.
        merge_works: Whether merged caches hold what their sources held; None where it was not measured.
        cache_keeps: Whether the driver's cache keeps anything; None where it was not measured.
        read_back_grows: Whether loading and reading a cache over and over makes it grow; None where it was not measured.
        notes: What a reader must know.
        format: Version of this layout.
    """

    identity: ProfileIdentity
    device_name: str
    driver: str
    made_at: float
    cores: int
    processor: str
    load_average: float
    driver_caches: str
    set_name: str
    set_hash: str
    pipelines: int
    orchestrator: str
    python: str
    rounds: int
    figures: tuple[Figure, ...]
    findings: tuple[Finding, ...]
    cold: Choice | None
    warm: Choice | None
    batch: int | None
    merge_works: bool | None
    cache_keeps: bool | None
    read_back_grows: bool | None
    notes: tuple[str, ...] = ()
    format: int = PROFILE_FORMAT


CALIBRATION = ProfileFile(CALIBRATION_SUFFIX, CalibrationProfile, PROFILE_FORMAT)
profile_path, load_profile, save_profile = CALIBRATION.path, CALIBRATION.load, CALIBRATION.save
