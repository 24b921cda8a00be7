"""The verb `calibrate`: measures the best settings for a device and driver, and saves them for `compile`.

Guarantees: the profile is written at the end, unless nothing was decided; then an earlier one stays. A
directory that cannot be written is an error before anything is measured. Figures come with intervals; the
output names undecided questions. The time limit is kept, and the number of processes to come only falls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from msgspec.structs import asdict

from orchestrator.bench.calibration import Calibrated, calibrate
from orchestrator.bench.statistics import LEAST_PAIRS
from orchestrator.cli.application import CacheDirectory, DeviceSelector, JsonFlag, in_range
from orchestrator.cli.documents import CalibrateDocument
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, display, path_text, plural, styled, table
from orchestrator.cli.progress_bar import MeasurementBar
from orchestrator.cli.values import (
    MOST_SAMPLES,
    MOST_WORKERS,
    damage_to_measure,
    set_paths,
    time_limit_seconds,
    usable_directory,
)
from orchestrator.devices.opening import own_process
from orchestrator.process import keep_freed_memory
from orchestrator.sets.sample import SAMPLE
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.profile_file import CalibrationProfile, Choice, save_profile


def calibrate_verb(
    *,
    device: DeviceSelector = "",
    sets: Annotated[
        list[str] | None,
        Parameter(name="--set", negative="", show_default=lambda _: "the sample set"),
    ] = None,
    samples: Annotated[int, Parameter(alias="-n", validator=in_range(1, MOST_SAMPLES))] = 7,
    workers: Annotated[
        int | None,
        Parameter(
            alias="-j", validator=in_range(1, MOST_WORKERS), show_default=lambda _: "one per processor"
        ),
    ] = None,
    time_limit: str = "10m",
    cache_dir: Annotated[
        CacheDirectory, Parameter(help="Directory for the profile, beside the device's cache file.")
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Measure the best settings for a device, and save them for `compile --mode auto --workers auto`.

    It answers: Does the lock of a shared cache cost time, cold and warm? Do more workers help? Does merging
    work? Does a cache grow whenever it is loaded and saved? Is a store of binaries faster? How many pipelines
    should a call have? Every sample is its own process, contenders take turns, and a difference counts only
    beyond the noise of measuring the same thing twice.

    **EXAMPLES**

        orchestrator calibrate --device radv:navi21
        orchestrator calibrate --device nvidia --set game.foz --time-limit 30m
        orchestrator calibrate --device lavapipe --json > profile.json

    Args:
        sets: The set to compile: an archive (may be given several times) or a manifest.
        samples: Samples of each contender: fewer once it is decided, up to three times as many while it is
            not. A verdict needs at least 5.
        workers: Largest number of workers to try.
        time_limit: Stop within this time, such as `90s` or `20m` (a number alone is seconds). The most
            informative contenders come first.
    """
    limit = time_limit_seconds(time_limit)
    names = sets or [SAMPLE]
    directory = usable_directory(cache_dir)
    own_process(device)
    keep_freed_memory()  # as where a compile does its work
    output = Output(json=json)
    damage = damage_to_measure(names)
    if damage:
        output.message(styled(damage, "bad"))
    with MeasurementBar(output) as bar:
        found = calibrate(
            list(set_paths(names)),
            device,
            rounds=samples,
            workers=workers,
            time_limit_s=limit,
            profiles=directory,
            on_progress=bar.measures,
        )
    kept, failed = None, None
    if found.profile.cold is not None or found.profile.warm is not None:
        try:
            kept = save_profile(directory, found.identity, found.profile)
        except SaveError as error:  # what took minutes to measure is shown all the same
            failed = error
    place = None if kept is None else path_text(kept)
    output.document(
        lambda: CalibrateDocument(**asdict(found.profile), profile=place, stopped=found.stopped or None)
    )
    _show(output, found, kept, samples, "" if failed is None else str(failed))
    if damage:
        output.message(styled(damage, "bad"))
    if failed is not None:
        raise failed
    return ExitCode.PIPELINES_FAILED if damage else ExitCode.OK


def _show(output: Output, found: Calibrated, kept: Path | None, samples: int, not_saved: str = "") -> None:
    profile = found.profile
    output.line(styled(profile.device_name, "head"), f"  {profile.driver}")
    output.line(
        f"{path_text(Path(profile.set_name))}: {plural(profile.pipelines, 'pipeline')}, "
        f"{plural(profile.cores, 'processor')}, driver's own caches {profile.driver_caches or 'not known'}, "
        f"order of pipelines: {profile.order or 'not known'}"
    )
    output.line("")
    lacking = [each.question for each in profile.findings if each.answer == "not measured"]
    for finding in profile.findings:
        if finding.answer != "not measured" or display.verbose or len(lacking) == 1:
            output.line("  ", finding.words)
    if len(lacking) > 1 and not display.verbose:
        output.line(f"  not measured (-v shows why): {'; '.join(lacking)}")
    output.line("")
    _show_choice(output, "cold", profile.cold)
    if profile.cache_keeps is False:
        output.line(styled("warm", "head"), "  as cold: this driver's cache keeps nothing")
    else:
        _show_choice(output, "warm", profile.warm)
    if profile.binaries is not None:
        _show_choice(output, "both", profile.binaries)
    output.line("")
    if display.verbose:
        _show_figures(output, profile)
    else:
        output.line(styled(f"-v shows the times of all {len(profile.figures)} that were measured", "dim"))
    for note in profile.notes:
        output.line(styled("note ", "warn"), note)
    if kept is None:
        undecided = "nothing could be decided; allow more time with --time-limit, or leave the machine idle"
        if samples < LEAST_PAIRS:
            undecided = f"nothing could be decided: a verdict needs --samples {LEAST_PAIRS} or more"
        output.problem(styled("not saved: ", "bad"), not_saved or undecided)
    else:
        output.line(styled("saved ", "good"), path_text(kept))
        output.line("next: orchestrator compile SET --mode auto --workers auto (the default) uses it")


def _show_figures(output: Output, profile: CalibrationProfile) -> None:
    heading = ("", "mode", "workers", "calls of", "n", "one pass", "from", "to", "pipelines/s")
    made = table(*heading, numbers=range(2, len(heading)))
    for row in profile.figures:
        more = (", whole use" if row.whole_use else "") + (" (control)" if row.control else "")
        times = (f"{seconds * 1e3:,.2f} ms" for seconds in (row.seconds, row.low, row.high))
        numbers = (row.workers, row.batch, row.samples)
        made.add_row(row.start, row.mode + more, *map(str, numbers), *times, f"{row.pipelines_per_s:,.0f}")
    output.show(made)
    output.line("")


def _show_choice(output: Output, start: str, choice: Choice | None) -> None:
    words = "not decided"
    if choice is not None:
        words = f"--mode {choice.mode} --workers {choice.workers}  ({choice.words})"
    output.line(styled(start, "head"), f"  {words}")
