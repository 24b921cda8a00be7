"""The verb `refresh`: compiles again what was compiled for other drivers than the present ones."""

from __future__ import annotations

import math
import os
import sys
import time as clock
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from attrs import evolve
from cyclopts import Parameter

from orchestrator.cli.application import CacheDirectory, Flag, JsonFlag, PrivateKey, in_range
from orchestrator.cli.documents import RefreshDocument, RefreshedCompile
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, Style, path_text, plural, styled
from orchestrator.cli.stopping import run_until_signal
from orchestrator.cli.values import named_directory, signing_key, time_limit_seconds
from orchestrator.devices.listing import list_one
from orchestrator.devices.modes import CacheMode
from orchestrator.errors import NoDeviceError, OrchestratorError, shell_text, shown
from orchestrator.packs.growing import GrowingPack
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import CompileReport
from orchestrator.sets.opening import open_paths
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.compiles import RememberedCompile, remember_compile, remembered_compiles
from orchestrator.supervise.targets import IN_TURN, TargetResult

if TYPE_CHECKING:
    from orchestrator.stores.signing import SigningKey

_UNITS: Final = {
    "orchestrator-refresh.service": """[Unit]
Description=Compile again the Vulkan pipelines that do not fit the present drivers

[Service]
Type=oneshot
ExecStart={command}
SuccessExitStatus=75
""",
    "orchestrator-refresh.timer": """[Unit]
Description=Look every day whether Vulkan drivers have changed

[Timer]
OnCalendar=daily
Persistent=true

[Install]
WantedBy=timers.target
""",
}
_STYLES: Final[dict[str, Style]] = {
    "fits": "dim",
    "compiled": "good",
    "needed": "warn",
    "left": "warn",
    "failed": "bad",
}


def refresh_verb(
    *,
    time: str = "",
    nice: Annotated[int, Parameter(validator=in_range(0, 19))] = 0,
    idle: Flag = False,
    dry_run: Flag = False,
    systemd: Flag = False,
    cache_dir: CacheDirectory = None,
    sign: PrivateKey = None,
    json: JsonFlag = False,
) -> int:
    """Compile again what was compiled before and does not fit the present drivers any more.

    `compile` remembers in the cache directory which set it compiled for which device, with which options, and
    for which pack. After an update of a driver this verb does the same again, into a cache file of the new
    driver; a pack keeps what it has of other drivers.

    **EXAMPLES**

        orchestrator refresh --dry-run
        orchestrator refresh --idle --time 10m
        orchestrator refresh --sign team.key
        orchestrator refresh --idle --time 1h --systemd

    Args:
        time: End after this time, such as `10m`, with exit code 75 (a number alone is seconds). The same
            command continues.
        nice: Give way to other programs on this machine: 0 to 19, as nice(1).
        idle: Use only processors that no other program wants (SCHED_IDLE).
        dry_run: Only show what does not fit.
        systemd: Print a systemd user unit and its timer, which run this command every day. Installs nothing.
    """
    directory, out = named_directory(cache_dir), Output(json=json)
    limit_s = time_limit_seconds(time, "--time") if time else math.inf
    if systemd:
        return _print_units(out, directory if cache_dir else None, sign, time=time, nice=nice, idle=idle)
    if nice:
        os.nice(nice)
    if idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    return _refresh(directory, out, 0.0 if dry_run else limit_s, signing_key(sign))


def _refresh(directory: Path, out: Output, limit_s: float, key: SigningKey | None) -> ExitCode:
    ends_s = clock.monotonic() + limit_s
    done: list[RefreshedCompile] = []
    present: dict[str, str] = {}
    for each in remembered_compiles(directory):
        done.append(_refreshed(directory, each, present, ends_s, key))
        out.line(
            styled(f"{done[-1].outcome:9}", _STYLES.get(done[-1].outcome, "warn")),
            f"{' '.join(done[-1].set)} for {each.selector or 'the first device'}",
            f" in {done[-1].pack}" if done[-1].pack else "",
            f": {done[-1].detail}" if done[-1].detail else "",
        )
    out.document(lambda: RefreshDocument(compiles=tuple(done)))
    found = [each.outcome for each in done]
    out.line(f"{plural(len(done), 'compile')} remembered, {found.count('needed')} to be done")
    if "failed" in found:
        return ExitCode.PIPELINES_FAILED
    return ExitCode.OUT_OF_TIME if limit_s and "needed" in found else ExitCode.OK


def _refreshed(
    directory: Path, was: RememberedCompile, present: dict[str, str], ends_s: float, key: SigningKey | None
) -> RefreshedCompile:
    """What becomes of a compile; `present` has names of cache files by selector, and gets more."""
    pack = os.fsdecode(was.pack)
    paths = tuple(map(path_text, was.set_paths))
    told = partial(RefreshedCompile, set=paths, selector=was.selector, pack=path_text(pack))
    needed = filter(None, (*was.set_paths, pack))
    if lost := next((each for each in needed if not Path(each).exists()), None):
        return told(outcome="left", detail=f"{path_text(lost)} is not there any more")
    try:
        if was.selector not in present:
            present[was.selector] = cache_path(directory, list_one(was.selector).identity).name
        if present[was.selector] == was.cache_file:
            return told(outcome="fits")
        if (left_s := ends_s - clock.monotonic()) <= 0:
            return told(outcome="needed", detail=f"it was compiled into {was.cache_file}")
        options = msgspec.msgpack.decode(was.options, type=CompileOptions)
        options = evolve(options, time_limit_s=left_s if left_s < math.inf else None)
        report = _into_pack(directory, was, options, key) if was.pack else _compiled(directory, was, options)
        if report.stopped:
            why = "the time limit was reached" if report.out_of_time else "the device was lost"
            return told(outcome="needed", detail=why)
        remember_compile(directory, msgspec.structs.replace(was, cache_file=present[was.selector]))
    except NoDeviceError as error:
        return told(outcome="left", detail=str(error))
    except (OrchestratorError, msgspec.MsgspecError) as error:
        step = getattr(error, "next_step", "")
        return told(outcome="failed", detail=shown("; ".join(filter(None, (str(error), step)))))
    counts = report.outcomes
    detail = f"{counts.compiled:,} compiled, {counts.cache_hits:,} cache hits, {counts.failed:,} failed"
    return told(outcome="failed" if counts.failed else "compiled", detail=detail)


def _compiled(directory: Path, was: RememberedCompile, options: CompileOptions) -> CompileReport:
    return run_until_signal(partial(IN_TURN.compile, was.set_paths, options, cache_directory=directory))


def _into_pack(
    directory: Path, was: RememberedCompile, options: CompileOptions, key: SigningKey | None
) -> CompileReport:
    path, result = Path(os.fsdecode(was.pack)), TargetResult(was.selector)
    with open_paths(was.set_paths):  # before the pack is touched
        pass
    fills = directory if options.mode is CacheMode.NONE else None
    with GrowingPack.writing(path, key, [was.selector], driver_caches=fills) as pack:
        try:
            again = evolve(options, environment=pack.environments.get(was.selector, ()))
            report = _compiled(path, was, again)
            result = evolve(result, report=report)
        finally:
            pack.finish([result])
        for problem in pack.problems.values():
            raise problem
    return report


def _print_units(
    out: Output, directory: Path | None, key: Path | None, *, time: str, nice: int, idle: bool
) -> ExitCode:
    words = [sys.executable, "-m", "orchestrator", "refresh"]
    words += ["--idle"] if idle else []
    words += ["--nice", str(nice)] if nice else []
    words += ["--time", time] if time else []
    words += ["--cache-dir", str(directory.absolute())] if directory else []
    words += ["--sign", str(key.absolute())] if key else []
    command = " ".join(shell_text(each).replace("%", "%%").replace("$", "$$") for each in words)
    units = {name: text.format(command=command) for name, text in _UNITS.items()}
    out.document(lambda: RefreshDocument(units=units))
    for name, text in units.items():
        out.out.print(
            f"# ~/.config/systemd/user/{name}\n{text}", soft_wrap=True, markup=False, highlight=False
        )
    out.line("# then: systemctl --user enable --now orchestrator-refresh.timer")
    return ExitCode.OK
