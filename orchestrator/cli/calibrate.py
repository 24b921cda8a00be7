# Purpose: `orchestrator calibrate`: what is best on this device and driver, measured here, kept for `compile`, and said in
# words.
#
# Guarantees: the profile is written when the measuring is over, and not where nothing could be decided: an earlier one stays
# then. A directory that cannot be written is refused before anything is measured.
"""The verb `calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.options import (
    DEVICE_HELP,
    SAMPLE,
    JsonFlag,
    open_set,
    time_limit_seconds,
    usable_directory,
)
from orchestrator.cli.output import Output


def calibrate_verb(
    *,
    device: Annotated[
        str,
        Parameter(
            name=["--device", "-d"], help=DEVICE_HELP, show_default=lambda _: "the first Vulkan device"
        ),
    ] = "",
    sets: Annotated[
        list[str] | None,
        Parameter(
            name="--set",
            negative="",
            help="What to compile: an archive (again for several) or a manifest.",
            show_default=lambda _: "the set that ships with the program",
        ),
    ] = None,
    samples: Annotated[
        int,
        Parameter(
            name=["--samples", "-n"], help="Samples of each contender; from fewer than 5 nothing can be told."
        ),
    ] = 7,
    workers: Annotated[
        int | None,
        Parameter(
            name=["--workers", "-j"],
            help="The most workers to try.",
            show_default=lambda _: "one a processor",
        ),
    ] = None,
    time_limit: Annotated[
        str,
        Parameter(
            name="--time-limit",
            help="Start no sample after this time, such as `90s` or `20m`, and judge what is there.",
        ),
    ] = "10m",
    cache_dir: Annotated[
        Path | None,
        Parameter(
            name="--cache-dir",
            help="Where the profile is kept, beside the cache file that it is for.",
            show_default=lambda _: "the user's cache directory",
        ),
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Measure what is best on a device, and keep it for `compile --mode auto --workers auto`.

    Does the lock of a shared cache cost anything, cold and warm; do more workers help; does merging work; does a cache grow
    whenever it is loaded and saved; how many pipelines should a call have. Every sample is taken in a process of its own,
    contenders take turns, and a difference counts only beyond what the same thing measured twice differs by.

    **EXAMPLES**

        orchestrator calibrate --device radv:navi21
        orchestrator calibrate --device nvidia --set game.foz --time-limit 30m
        orchestrator calibrate --device lavapipe --json > profile.json
    """
    from orchestrator.bench.calibration import calibrate
    from orchestrator.cli.calibrate_report import CalibrationView, calibration_document, show_calibration
    from orchestrator.sets.sample import sample_path
    from orchestrator.stores.profile_file import save_profile

    if not 1 <= samples <= 1000:
        raise UsageError(f"--samples {samples}: a number from 1 to 1000 is expected", "leave it out for 7")
    if workers is not None and not 1 <= workers <= 4096:
        raise UsageError(f"--workers {workers}: a number from 1 to 4096 is expected", "leave it out")
    limit = time_limit_seconds(time_limit)
    names = sets or [SAMPLE]
    directory = usable_directory(cache_dir)
    output = Output(json=json)
    with open_set(names):
        pass  # a set that cannot be opened is refused here, with the words for it
    paths = [str(sample_path()) if name == SAMPLE else str(Path(name).absolute()) for name in names]
    with CalibrationView(output) as view:
        found = calibrate(
            paths,
            device,
            rounds=samples,
            workers=workers,
            time_limit_s=limit,
            on_progress=view.progress,
        )
    kept = None
    if found.profile.cold is not None or found.profile.warm is not None:
        kept = save_profile(directory, found.identity, found.profile)
    output.document(calibration_document(found, kept))
    show_calibration(output, found, kept)
    return ExitCode.OK
