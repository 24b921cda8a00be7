"""The verb `calibrate`: measures the best settings for a device and driver, and saves them for `compile`.

Guarantees: the profile is written at the end, unless nothing was decided; then an earlier one stays. A
directory that cannot be written is an error before anything is measured. Figures come with intervals; the
output names undecided questions. The time limit is kept, and the number of processes to come only falls.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from cyclopts import Parameter

from orchestrator.bench.calibration import calibrate
from orchestrator.cli.application import CacheDirectory, DeviceSelector, JsonFlag, in_range
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.measured import calibrate_document, show_calibration, show_progress
from orchestrator.cli.output import Output, styled
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
from orchestrator.stores.profile_file import save_profile


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
            on_progress=partial(show_progress, bar),
        )
    kept, failed = None, None
    if found.profile.cold is not None or found.profile.warm is not None:
        try:
            kept = save_profile(directory, found.identity, found.profile)
        except SaveError as error:  # what took minutes to measure is shown all the same
            failed = error
    output.document(lambda: calibrate_document(found, kept))
    show_calibration(output, found, kept, samples, "" if failed is None else str(failed))
    if damage:
        output.message(styled(damage, "bad"))
    if failed is not None:
        raise failed
    return ExitCode.PIPELINES_FAILED if damage else ExitCode.OK
