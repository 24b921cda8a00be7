"""The verb `run`: starts a program that reads a cache of the driver's own from packs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from orchestrator.cli.application import DeviceSelector, JsonFlag, TrustedKey
from orchestrator.cli.documents import RunDocument
from orchestrator.cli.errors import UsageError
from orchestrator.cli.output import Output, path_text, styled
from orchestrator.cli.values import trusted_key
from orchestrator.errors import shell_text
from orchestrator.packs.driver import pack_driver
from orchestrator.packs.driver_cache import READ_ONLY, mesa_directory, offered
from orchestrator.stores.files.atomic_file import distrust_directory, likely_cause
from orchestrator.stores.pack import Pack, PackError, is_pack

if TYPE_CHECKING:
    from orchestrator.stores.signing import PublicKey


def run_verb(
    directory: Path,
    /,
    *command: str,
    device: DeviceSelector = "",
    trust: TrustedKey = None,
    json: JsonFlag = False,
) -> int:
    """Start a program that reads what `compile --driver-cache` compiled, beside its driver's own cache.

    For programs that pass no VkPipelineCache. What they compile themselves goes into the driver's own cache,
    as without this. The exit code is the program's; 2 if there is nothing for this device and driver.

    **EXAMPLES**

        orchestrator run pack -- ./game
        orchestrator run ~/.cache/orchestrator/delivered/game --trust team.pub -- ./game
        orchestrator run pack --device radv:navi21 --json

    Args:
        directory: A pack, or a directory of packs such as `install` leaves of a release.
        command: The program and its arguments, after `--`. Without one, the variables are shown, to be set
            otherwise.
    """
    output, own = Output(json=json), mesa_directory()

    def leave_out(error: PackError) -> None:
        output.message(styled("left out: ", "warn"), str(error))

    packs = _packs(directory, trust, leave_out)
    try:
        own.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        said = f"{path_text(own)}: {likely_cause(error)}; without a directory of its own, Mesa reads no cache"
        raise UsageError(said, "set MESA_SHADER_CACHE_DIR or XDG_CACHE_HOME") from None
    with pack_driver(device) as opened:
        given = offered(
            packs,
            opened.device,
            own,
            before=os.environ.get(READ_ONLY, ""),
            on_problem=leave_out if len(packs) > 1 else None,
        )
    variables = {name: os.fsdecode(value) for name, value in given}
    if command:
        _become(command, os.environ | variables)
    output.document(
        lambda: RunDocument(
            directory=path_text(directory),
            device_name=opened.device.device_name,
            driver=opened.device.driver,
            variables={name: path_text(value) for name, value in variables.items()},
        )
    )
    for name, value in variables.items():
        output.line(f"{name}={shell_text(value)}")
    return 0


def _become(command: tuple[str, ...], environment: Mapping[str, str]) -> NoReturn:
    """Let the program take the place of this process: its signals and its exit code are its own."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execlpe(command[0], *command, environment)  # noqa: S606 - it is what the user named
    except OSError as error:
        raise UsageError(f"{command[0]}: cannot be started: {error.strerror}", "check the path") from None


def _packs(directory: Path, trust: Path | None, on_problem: Callable[[PackError], None]) -> list[Pack]:
    """The packs there; of several, those that can be used."""
    key = trusted_key(trust)
    inside = (each for each in sorted(directory.glob("[!.]*")) if not each.is_symlink())
    found = [directory] if is_pack(directory) else list(filter(is_pack, inside))
    if not found:
        step = "name what `compile --driver-cache --out` wrote; or delivered/NAME of the cache directory"
        raise PackError(directory, "no pack, and none in it", step)
    packs = []
    for each in found:
        try:
            packs.append(_opened(each, key))
        except PackError as error:
            if len(found) == 1:
                raise
            on_problem(error)
    return packs or [_opened(found[0], key)]


def _opened(directory: Path, key: PublicKey | None) -> Pack:
    # Whoever else may write there chooses what the program runs.
    if key is None and (reason := distrust_directory(directory)):
        raise PackError(directory, reason, "name the public key of who signed it (--trust)")
    return Pack.open(directory, key)
