"""The verb `calibrate`: measures the best settings for a device and driver, and saves them for `compile`.

Guarantees: the profile is written at the end, unless nothing was decided; then an earlier one stays. A
directory that cannot be written is an error before anything is measured. Figures come with intervals; the
output names undecided questions and contenders that were dropped. The upper bound of the time is shown before
the first sample and updated from then on.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from orchestrator.cli.application import CacheDirectory, DeviceSelector, JsonFlag, in_range
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, path_text, plural, seconds_text, styled, table
from orchestrator.cli.values import (
    MOST_SAMPLES,
    MOST_WORKERS,
    SAMPLE,
    damage_to_measure,
    restart_for,
    set_paths,
    time_limit_seconds,
    usable_directory,
)

if TYPE_CHECKING:
    from orchestrator.bench.calibration import Calibrated, CalibrationProgress
    from orchestrator.cli.documents import CalibrateDocument
    from orchestrator.cli.progress_bar import MeasurementBar
    from orchestrator.stores.profile_file import CalibrationProfile, Choice


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
    beyond the noise of measuring the same thing twice. Contenders that fall far behind are dropped and named.

    **EXAMPLES**

        orchestrator calibrate --device radv:navi21
        orchestrator calibrate --device nvidia --set game.foz --time-limit 30m
        orchestrator calibrate --device lavapipe --json > profile.json

    Args:
        sets: The set to compile: an archive (may be given several times) or a manifest.
        samples: Samples of each contender; a verdict needs at least 5.
        workers: Largest number of workers to try.
        time_limit: Stop within this time, such as `90s` or `20m` (a number alone is seconds). The least
            informative contenders are left out first.
    """
    from orchestrator.bench.calibration import calibrate
    from orchestrator.cli.progress_bar import MeasurementBar
    from orchestrator.devices.opening import own_process
    from orchestrator.malloc import keep_freed_memory
    from orchestrator.stores.files.atomic_file import SaveError
    from orchestrator.stores.profile_file import save_profile

    limit = time_limit_seconds(time_limit)
    names = sets or [SAMPLE]
    directory = usable_directory(cache_dir)
    restart_for(device)
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
            on_progress=Expectation(output, bar, limit),
        )
    kept, failed = None, None
    if found.profile.cold is not None or found.profile.warm is not None:
        try:
            kept = save_profile(directory, found.identity, found.profile)
        except SaveError as error:  # what took minutes to measure is shown all the same
            failed = error
    output.document(lambda: _document(found, kept))
    show_calibration(output, found, kept, samples, "" if failed is None else str(failed))
    if damage:
        output.message(styled(damage, "bad"))
    if failed is not None:
        raise failed
    return ExitCode.PIPELINES_FAILED if damage else ExitCode.OK


class Expectation:
    """Shows the progress of a calibration and, once before the first sample, the upper bound of its time."""

    def __init__(self, output: Output, bar: MeasurementBar, limit_s: float) -> None:
        self._output, self._bar, self._limit_s = output, bar, limit_s
        self._began = time.monotonic()
        self._said = False

    def __call__(self, progress: CalibrationProgress) -> None:
        """Show the process that begins."""
        left = progress.left_s
        if left is not None and not self._said:
            self._said = True
            if self._output.live or self._output.tells:
                self._output.message(self._words(progress, left))
        rest = "" if left is None else f"at most {seconds_text(left)} to go"
        self._bar.step(progress.now, progress.done, progress.total, rest)

    def _words(self, progress: CalibrationProgress, left: float) -> str:
        said = (
            f"at most {seconds_text(left)} for {plural(progress.total - progress.done, 'sample')}; less "
            "if contenders fall behind"
        )
        over = time.monotonic() - self._began + left - self._limit_s
        if over <= 0:
            return said
        limit = f"--time-limit is {seconds_text(self._limit_s)}"
        return f"{said}; {limit}, so samples of up to {seconds_text(over)} may be left out"


def _document(found: Calibrated, kept: Path | None) -> CalibrateDocument:
    import msgspec

    from orchestrator.cli.documents import CalibrateDocument

    return CalibrateDocument(
        **msgspec.structs.asdict(found.profile),
        profile=None if kept is None else path_text(kept),
        stopped=found.stopped or None,
    )


def show_calibration(
    output: Output, found: Calibrated, kept: Path | None, samples: int, not_saved: str = ""
) -> None:
    """Print findings, choices, figures and notes."""
    from orchestrator.bench.statistics import LEAST_PAIRS
    from orchestrator.run.options import BATCH_LIMIT

    profile = found.profile
    output.line(styled(profile.device_name, "head"), f"  {profile.driver}")
    few = f" except {len(profile.dropped)} that fell behind" if profile.dropped else ""
    output.line(
        f"{path_text(Path(profile.set_name))}: {plural(profile.pipelines, 'pipeline')}, "
        f"{plural(profile.rounds, 'sample')} of each contender{few}, {plural(profile.cores, 'processor')}, "
        f"driver's own caches {profile.driver_caches or 'not known'}, "
        f"order of pipelines: {profile.order or 'not known'}"
    )
    output.line("")
    for finding in profile.findings:
        output.line("  ", finding.words)
    for each in profile.dropped:
        batch = "" if each.batch == BATCH_LIMIT else f", calls of {each.batch}"
        output.line(
            f"  fell behind: {each.start}, {each.mode}, {plural(each.workers, 'worker')}{batch}, after "
            f"{each.samples} of {plural(each.rounds, 'round')}: {each.words}."
        )
    output.line("")
    _show_choice(output, "cold", profile.cold)
    if profile.cache_keeps is False:
        output.line(styled("warm", "head"), "  as cold: this driver's cache keeps nothing")
    else:
        _show_choice(output, "warm", profile.warm)
    if profile.binaries is not None:
        _show_choice(output, "both", profile.binaries)
    _show_figures(output, profile)
    for note in profile.notes:
        output.line(styled("note ", "warn"), note)
    if kept is None:
        undecided = "nothing could be decided; allow more time with --time-limit"
        if samples < LEAST_PAIRS:
            undecided = f"nothing could be decided: a verdict needs --samples {LEAST_PAIRS} or more"
        output.problem(styled("not saved: ", "bad"), not_saved or undecided)
    else:
        output.line(styled("saved ", "good"), path_text(kept))
        output.line("next: orchestrator compile SET --mode auto --workers auto (the default) uses it")


def _show_choice(output: Output, start: str, choice: Choice | None) -> None:
    if choice is None:
        output.line(styled(start, "head"), "  not decided")
        return
    output.line(styled(start, "head"), f"  --mode {choice.mode} --workers {choice.workers}  ({choice.words})")


def _show_figures(output: Output, profile: CalibrationProfile) -> None:
    from orchestrator.run.options import BATCH_LIMIT

    made = table("", "mode", "workers", "one pass", "from", "to", "pipelines/s", numbers=(2, 3, 4, 5, 6))
    made.padding = (0, 0, 0, 1)
    for each in profile.figures:
        made.add_row(
            each.start,
            each.mode
            + ("" if each.batch == BATCH_LIMIT else f", calls of {each.batch}")
            + (", whole use" if each.whole_use else "")
            + (" (control)" if each.control else ""),
            str(each.workers),
            *(f"{seconds * 1e3:,.2f} ms" for seconds in (each.seconds, each.low, each.high)),
            f"{each.pipelines_per_s:,.0f}",
        )
    output.line("")
    output.show(made, keys=3)
    output.line("")
