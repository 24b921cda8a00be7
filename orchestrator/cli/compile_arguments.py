"""The options of the verb `compile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from attrs import frozen
from cyclopts import Group, Parameter

from orchestrator.cli.application import (
    DEVICE_HELP,
    FIRST_DEVICE,
    CacheDirectory,
    Flag,
    PrivateKey,
    UsedList,
    in_range,
)

WHAT = Parameter(group=Group("What", sort_key=1))
WHERE = Parameter(group=Group("Where it is kept", sort_key=2))
SPEED = Parameter(group=Group("How fast", sort_key=3))
TROUBLE = Parameter(group=Group("When things go wrong", sort_key=4))
OUTPUT = Parameter(group=Group("Output", sort_key=5))


@frozen(kw_only=True)
class CompileArguments:
    """The options of `compile`, as the command line has them.

    Attributes:
        workers: Number of workers. `auto`: what `calibrate` found best, else one per processor.
        mode: The cache topology. `auto`: what `calibrate` found best on the device, else `shared` if the
            cache file is expected to hold nearly the whole set, else `per-worker`. `shared`: one cache for
            all workers. `per-worker`: one externally synchronized cache per worker, merged at the end.
            `per-worker-internal`: the same without the flag, as a control. `two-level`: look up in the merged
            cache, compile what it lacks in a cache per worker, merge during the run. `binaries`: keep the
            binaries of each pipeline in the orchestrator's own store (VK_KHR_pipeline_binary). `none`: no
            cache; nothing is kept.
        merge: When worker caches are merged. `barrier`: when all workers have ended. `rolling`: also while
            they work; the cache file is then saved on the way too. `auto`: `rolling` in mode `two-level`,
            else `barrier`.
        driver_caches: Leave the driver's own disk and memory caches on. Figures then say little about the
            cache here.
        relax_driver_version: Load a cache file even if its driverVersion differs, provided that all else
            agrees. For desktop drivers that change pipelineCacheUUID whenever their data changes.
        trace: Write a timeline as Chrome trace events, which ui.perfetto.dev opens.
        pipeline_stats: Write the driver's statistics of each pipeline's code as CSV, with the columns of
            `fossilize-replay --enable-pipeline-stats`. The driver then has no cache, and nothing is kept.
        spirv_val: What to do about shader modules that may be invalid. `warn`: run spirv-val and report what
            it refuses. `skip`: also leave out the pipelines of refused modules. `isolate`: as `warn`, but
            first compile every pipeline in a child process, and leave out those that crash or hang the driver
            there.
        pipeline_keys: Whether to ask the driver for pipeline keys, so that pipelines that are equal to it are
            compiled once. `auto`: for pipelines that share all their code with another one and that the cache
            is not expected to hold. `all`: for all that the cache is not expected to hold. `off`: never.
        time_limit: Begin no more work after this time, such as `500ms`, `2s` or `8h`, counted from the first
            pipeline; a number alone is seconds. What was compiled is saved; the same command continues.
        shard: Compile one of N parts of the set, `K/N` such as `2/4`. The key of a pipeline decides its part,
            so several processes or machines can share the work.
        plan: Whether to keep the decoded set beside the cache file as a plan, which the next run uses instead
            of reading the set. `off`: neither keep nor use one.
        identifiers: First create pipelines from the identifiers of their shader modules
            (VK_EXT_shader_module_identifier). Read SPIR-V only for pipelines that the driver does not find
            this way. Identifiers are kept in the cache directory.
        only: Compile only the pipeline with this key, 16 hex digits as reports show them, even if it is in
            quarantine. May be given several times.
        used: Compile only pipelines that this list names: an archive whose payloads may be empty, such as
            Fossilize's layer writes of the pipelines that a program bound.
        driver_cache: With `--out`: fill the driver's own cache for the pack, for programs that pass no
            VkPipelineCache; `orchestrator run` offers it to them, and `coverage --run` proves it. Mesa's
            drivers only.
        expect_hits: Forbid compiling, and save nothing: each pipeline must be in the cache. What is missing
            fails, with its application. Proves a cache before it is shipped; `coverage` does it for packs.
        only_these: Write a cache of this set alone. Where the cache file holds pipelines that the set does
            not have, begin with an empty cache, compile everything, and replace the file at the end. With
            `--out` this is so in any case, where the file is known to hold others.
        retry_quarantined: Retry pipelines that crashed or hung the driver in an earlier run. Those that
            compile now leave the quarantine.
        timeout: Longest time in the driver for one pipeline, such as `5s` (a number alone is seconds). Then
            its process is killed and the pipeline is blamed. `off`: no limit. `auto`: 60 s, or 20 times the
            recorded time of the pipeline if that is more. Time in which the driver waits for a processor
            does not count.
        binaries_disk: Size limit of the store of mode `binaries` on disk from now on, such as `2G` (a number
            alone is bytes). What was used least recently is removed first.
        binaries_memory: Size limit of binaries that are created in advance, such as `1G` (a number alone is
            bytes). Others are read when they are needed.
        memory: Limit on the data of each process that compiles, such as `2G` or `500M` (a number alone is
            bytes). A pipeline that exceeds it alone is blamed.
        driver_log: Write everything that the driver prints to this file.
        in_process: Compile in this process, such as for a debugger. If the driver crashes, the program ends.
        allow_damaged: Exit with 0 even if records of the set cannot be read, provided that everything else
            compiled.
        out: Make a pack: a directory with a manifest and the cache files of all targets (in mode `binaries`,
            their pipeline binaries). The files are built there unless `--cache-dir` is given, so the same
            command continues.
        cluster: Compile on the machines of a Dask cluster: the scheduler's address, such as
            `tls://build1:8786`, or `local:N` for N worker processes here. `orchestrator worker` starts one.
        progress: `jsonl`: write the progress to descriptor 3, one JSON object per line. `jsonl:FD`: write to
            another descriptor. For programs.
        control: Read commands from this descriptor, one JSON object per line: promote or cancel pipelines,
            set a time budget, or stop. Needs `--progress` for the answers.
        nice: Give way to other programs on this machine: 0 to 19, as nice(1).
    """

    device: Annotated[
        list[str] | None,
        WHAT,
        FIRST_DEVICE,
        Parameter(
            help=DEVICE_HELP
            + " A pattern such as `radv:*` stands for every matching family of the installed driver. May be "
            "given several times."
        ),
    ] = None
    only: Annotated[list[str] | None, WHAT, Parameter(negative="")] = None
    used: Annotated[UsedList, WHAT] = None
    shard: Annotated[str, WHAT, Parameter(show_default=lambda _: "all of it")] = ""
    identifiers: Annotated[Flag, WHAT] = False
    expect_hits: Annotated[Flag, WHAT] = False
    cluster: Annotated[str, WHAT, Parameter(show_default=lambda _: "this machine alone")] = ""
    cache_dir: Annotated[
        CacheDirectory, WHERE, Parameter(help="Directory for cache files, one file per device and driver.")
    ] = None
    out: Annotated[Path | None, WHERE, Parameter(alias="-o", show_default=lambda _: "none")] = None
    sign: Annotated[PrivateKey, WHERE] = None
    driver_cache: Annotated[Flag, WHERE] = False
    only_these: Annotated[Flag, WHERE] = False
    relax_driver_version: Annotated[Flag, WHERE] = False
    plan: Annotated[Literal["auto", "off"], WHERE] = "auto"
    binaries_disk: Annotated[str, WHERE, Parameter(show_default=lambda _: "as before, else 512M")] = ""
    workers: Annotated[str, SPEED, Parameter(alias="-j")] = "auto"
    mode: Annotated[
        Literal["auto", "shared", "per-worker", "per-worker-internal", "two-level", "binaries", "none"], SPEED
    ] = "auto"
    time_limit: Annotated[str, SPEED, Parameter(alias="--time-budget", show_default=lambda _: "none")] = ""
    nice: Annotated[int, SPEED, Parameter(validator=in_range(0, 19))] = 0
    merge: Annotated[Literal["auto", "barrier", "rolling"], SPEED] = "auto"
    pipeline_keys: Annotated[Literal["auto", "all", "off"], SPEED] = "auto"
    driver_caches: Annotated[Flag, SPEED] = False
    binaries_memory: Annotated[str, SPEED] = "256M"
    timeout: Annotated[str, TROUBLE] = "auto"
    memory: Annotated[str, TROUBLE, Parameter(show_default=lambda _: "no limit")] = ""
    spirv_val: Annotated[Literal["off", "warn", "skip", "isolate"], TROUBLE] = "off"
    retry_quarantined: Annotated[Flag, TROUBLE] = False
    allow_damaged: Annotated[Flag, TROUBLE] = False
    driver_log: Annotated[Path | None, TROUBLE] = None
    in_process: Annotated[Flag, TROUBLE] = False
    progress: Annotated[str, OUTPUT, Parameter(show_default=lambda _: "none")] = ""
    control: Annotated[
        int | None, OUTPUT, Parameter(show_default=lambda _: "none", validator=in_range(0))
    ] = None
    trace: Annotated[Path | None, OUTPUT] = None
    pipeline_stats: Annotated[Path | None, OUTPUT] = None


COMPILE_DEFAULTS = CompileArguments()
"""What is taken where nothing is said."""
