"""What the verb `compile` can be asked for.

Assumptions: the process that parses the command line need not be the one that works (see program.py), so the
values are plain ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from attrs import frozen
from cyclopts import Parameter

from orchestrator.cli.application import (
    DEVICE_HELP,
    FIRST_DEVICE,
    CacheDirectory,
    Flag,
    KeyFile,
    in_range,
)


@frozen(kw_only=True)
class CompileArguments:
    """`CompileOptions` and places, as they are said on the command line.

    Attributes:
        workers: Number of workers, or `auto`: what `calibrate` found best, else one a processor.
        mode: `auto`: what `calibrate` found best on the device, else `per-worker`. `shared`: one cache for
            all workers. `per-worker`: one externally synchronized cache each, merged at the end.
            `per-worker-internal`: the same without the flag, as a control. `two-level`: look up in the merged
            cache, compile what it lacks in a cache for each worker, merge on the way. `binaries`: keep the
            binaries of each pipeline in a store of ours (VK_KHR_pipeline_binary). `none`: no cache, nothing
            is kept.
        merge: `barrier`: merge worker caches at the end. `rolling`: also while workers run, and save what is
            merged. `auto`: rolling in mode two-level, else at the end.
        driver_caches: Leave the driver's own disk and memory caches on; figures then say little about the
            cache here.
        relax_driver_version: Load a cache file of another driverVersion if all else agrees. For desktop
            drivers that change pipelineCacheUUID whenever their data changes.
        trace: Write a timeline: Chrome trace events, which ui.perfetto.dev opens.
        pipeline_stats: Write what the driver says about the code of each pipeline, as CSV with the columns of
            `fossilize-replay --enable-pipeline-stats`. Creates every pipeline once more, without a cache.
        spirv_val: What is done about shader modules that may be invalid. `warn`: ask spirv-val, and say what
            it refuses. `skip`: leave out the pipelines of modules that it refuses. `isolate`: compile every
            pipeline in a child process first, and leave out those that the driver dies of or does not come
            back from.
        pipeline_keys: Compile once what is the same pipeline to the driver. `auto`: ask it for the keys of
            pipelines that have their code in common and that the cache is not expected to hold. `all`: of all
            of those. `off`: ask for none.
        time_limit: Begin no more work after this time, such as `500ms`, `2s` or `8h`, counted from the first
            pipeline; a number alone is seconds. What is done is kept, and running again goes on.
        shard: Compile one of N parts of the set only, `K/N` such as `2/4`: each pipeline is in one of them,
            which its key decides. For several processes or machines that share the work.
        plan: Whether the decoded set is kept beside the cache file as a plan, which the next run takes
            instead of reading the set. `off`: neither.
        identifiers: Create pipelines from identifiers of their shader modules first, and read the SPIR-V only
            of those that the driver does not find so (VK_EXT_shader_module_identifier). Identifiers are kept
            in the cache directory.
        only: Compile the pipeline of this key only, 16 hex digits as reports show them, also where it is in
            quarantine. May be given several times.
        retry_quarantined: Try pipelines again that ended the driver in an earlier run. Those that compile now
            leave the quarantine.
        timeout: What the driver may take for one pipeline, such as `5s` (a number alone is seconds), before
            its process is killed and the pipeline blamed, or `off`. `auto`: 60 s, or 20 times what was
            recorded of it, whichever is more; longer on a machine that is busy.
        binaries_disk: What the store of mode `binaries` may have on disk from now on, such as `2G` (a number
            alone is bytes). What is worth least leaves it first.
        binaries_memory: What binaries may have that are made ahead of time, such as `1G` (a number alone is
            bytes); the others are read when they are needed.
        memory: What a process that compiles may have for its data, such as `2G` or `500M` (a number alone is
            bytes). Where a pipeline alone takes more, it is blamed.
        driver_log: Write all that the driver prints to this file.
        in_process: Compile in this process, which a crash of the driver then ends, such as for a debugger.
        allow_damaged: Exit with 0 also where records of the set could not be read, if all that could be read
            compiled.
        out: Make a pack: a directory with the cache files of all targets, or in mode binaries with what their
            pipelines were compiled to, and a manifest. Cache files are kept
            there while they are made, unless --cache-dir says otherwise, so the same command goes on.
        progress: `jsonl`: write how far it is, one JSON object a line, to descriptor 3; `jsonl:FD`: to
            another one. For programs.
        control: Take commands from this descriptor, one JSON object a line: what comes first, what is left
            out, how long work may begin, and to stop. Needs `--progress`, for the answers.
        nice: Let other programs of this machine go first: 0 to 19, as nice(1).
    """

    device: Annotated[
        list[str] | None,
        FIRST_DEVICE,
        Parameter(
            help=DEVICE_HELP
            + " A pattern such as `radv:*` is every family that the installed driver has. May "
            "be given several times."
        ),
    ] = None
    workers: Annotated[str, Parameter(alias="-j")] = "auto"
    mode: Literal["auto", "shared", "per-worker", "per-worker-internal", "two-level", "binaries", "none"] = (
        "auto"
    )
    merge: Literal["auto", "barrier", "rolling"] = "auto"
    cache_dir: Annotated[
        CacheDirectory, Parameter(help="Where the cache file is kept, one file a device and driver.")
    ] = None
    driver_caches: Flag = False
    relax_driver_version: Flag = False
    trace: Path | None = None
    pipeline_stats: Path | None = None
    spirv_val: Literal["off", "warn", "skip", "isolate"] = "off"
    pipeline_keys: Literal["auto", "all", "off"] = "auto"
    time_limit: Annotated[str, Parameter(alias="--time-budget", show_default=lambda _: "none")] = ""
    shard: Annotated[str, Parameter(show_default=lambda _: "all of it")] = ""
    plan: Literal["auto", "off"] = "auto"
    identifiers: Flag = False
    only: Annotated[list[str] | None, Parameter(negative="")] = None
    retry_quarantined: Flag = False
    timeout: str = "auto"
    binaries_disk: Annotated[str, Parameter(show_default=lambda _: "as before, else 512M")] = ""
    binaries_memory: str = "256M"
    memory: Annotated[str, Parameter(show_default=lambda _: "no limit")] = ""
    driver_log: Path | None = None
    in_process: Flag = False
    allow_damaged: Flag = False
    out: Annotated[Path | None, Parameter(alias="-o", show_default=lambda _: "none")] = None
    key: KeyFile = None
    progress: Annotated[str, Parameter(show_default=lambda _: "none")] = ""
    control: Annotated[int | None, Parameter(show_default=lambda _: "none", validator=in_range(0))] = None
    nice: Annotated[int, Parameter(validator=in_range(0, 19))] = 0


COMPILE_DEFAULTS = CompileArguments()
"""What is taken where nothing is said."""
