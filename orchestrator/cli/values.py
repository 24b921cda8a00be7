"""What words of the command line stand for: sizes, times, keys, sets, and places that are checked before use.

Guarantees: what cannot be meant raises UsageError, with what is expected.
Assumptions: nothing heavy is imported at the top.
"""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from orchestrator.cli.errors import UsageError
from orchestrator.cli.output import OutputError, display, plural
from orchestrator.errors import ArchiveError, shell_text
from orchestrator.process import flush_c_streams
from orchestrator.sets.inputs import irregular
from orchestrator.sets.sample import SAMPLE, sample_path
from orchestrator.stores.files.atomic_file import (
    SaveError,
    distrust_directory,
    ensure_directory,
    is_directory,
    likely_cause,
    unwritable,
    write_document,
)

if TYPE_CHECKING:
    from orchestrator.devices.device import Device
    from orchestrator.sets.pipeline_set import PipelineSet
    from orchestrator.stores.signing import PublicKey, SigningKey

_PROGRAM = "orchestrator"
MOST_WORKERS = 4096
MOST_SAMPLES = 1000
"""Of a cell or contender: before each sample, all that are left are gone through."""

_MOST_BYTES = 1 << 62  # as good as no bound, and a number that other programs take
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|min|h|d|w|)")
_SECONDS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}


def size_bytes(text: str, option: str, least: int = 0) -> int:
    """Bytes of a size such as ``500M`` or ``2G``."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{option} {text!r}: a size is expected", "such as 500M or 2G")
    size = int(min(float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " "), _MOST_BYTES))
    if size < least:
        raise UsageError(f"{option} {text!r}: at least {least >> 20}M are needed")
    return size


def hash_number(text: str) -> int:
    """The hash that 16 hex digits stand for."""
    if not re.fullmatch(r"[0-9a-fA-F]{1,16}", text):
        raise UsageError(
            f"{text!r} is not a key of a pipeline: 16 hex digits are expected",
            "`orchestrator list SET --pipelines` shows the keys of a set",
        )
    return int(text, 16)


def time_limit_seconds(text: str, option: str = "--time-limit") -> float:
    """Seconds of a time such as ``90s``, ``20m`` or ``2h``; without a unit they are seconds."""
    found = _TIME.fullmatch(text)
    if found is None or not float(found[1]):
        raise UsageError(f"{option} {text!r}: a time above 0 is expected", "such as 90s, 20m or 2h")
    return float(found[1]) * _SECONDS[found[2]]


def pipeline_limit(text: str) -> float | None:
    """Seconds of `--timeout` for one pipeline; None for ``auto``."""
    if text == "auto":
        return None
    return math.inf if text == "off" else time_limit_seconds(text, "--timeout")


def age_ns(text: str | None) -> int | None:
    """Nanoseconds of an age such as ``30d``; without a unit they are days."""
    if text is None:
        return None
    found = _TIME.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(f"--older-than {text!r}: a time is expected", "such as 30d, 12h or 4w")
    return int(min(float(found[1]) * _SECONDS[found[2] or "d"] * 1e9, _MOST_BYTES))


def named_directory(given: Path | None) -> Path:
    """The directory of cache files; one that was named is there."""
    if given is not None and not is_directory(given):
        raise UsageError(f"{given}: no such directory", "name the directory of --cache-dir of `compile`")
    return cache_files_directory(given)


def cache_files_directory(given: Path | None) -> Path:
    """The directory for cache files, which may not be there."""
    try:
        return platformdirs.user_cache_path(_PROGRAM) if given is None else given
    except RuntimeError as error:
        step = "name one with --cache-dir, or set HOME or XDG_CACHE_HOME"
        raise UsageError(f"there is no directory for cache files: {error}", step) from None


def usable_directory(given: Path | None) -> Path:
    """The directory for cache files, created if need be, and found fit before anything is compiled for it."""
    directory = cache_files_directory(given)
    if (reason := roots_in_home(directory)) is None:
        ensure_directory(directory)
        reason = unfit_directory(directory)
    if reason is not None:
        raise SaveError(directory, "writing", reason)
    return directory


def roots_in_home(directory: Path) -> str | None:
    """Why root does not create a directory, and what mends it: a user who has used sudo could not use it."""
    there = next(each for each in (directory, *directory.absolute().parents) if os.path.lexists(each))
    owner = there.stat().st_uid
    users = {os.environ.get("SUDO_UID")}
    with suppress(OSError):  # HOME may name what is not there
        users.add(str(Path.home().stat().st_uid))
    if there == directory or os.geteuid() != 0 or owner == 0 or str(owner) not in users:
        return None
    return (
        f"user {owner} owns {there}, and could not use what user 0, who runs this, creates there; "
        f"mend: run this as user {owner}, without sudo, or use a directory of root's"
    )


def unfit_directory(directory: Path) -> str | None:
    """Why nothing can be kept in a directory that is there, and the command that mends it; None if it can."""
    try:
        reason = distrust_directory(directory)
    except OSError as error:
        return likely_cause(error)
    return reason or unwritable(directory / "probe")


def require_writable(
    *paths: Path | None, inputs: Sequence[str | Path] = (), outputs: Sequence[Path] = ()
) -> None:
    """Refuse files that cannot or must not be written, before anything is to be written. What is there stays.

    Args:
        paths: The files, each of which is to hold something else.
        inputs: What is read, and must not be written over.
        outputs: What the verb itself writes there, likewise.
    """
    taken = {os.path.realpath(each): f"this command writes {each} itself" for each in outputs}
    taken |= {os.path.realpath(each): f"it would overwrite the input {each}" for each in inputs}
    for path in paths:
        if path is None:
            continue
        real, folder = os.path.realpath(path), path.absolute().parent
        reason, step = taken.get(real, ""), "name another file"
        taken[real] = "two options name it"
        if reason:
            pass
        elif path.exists() and not path.is_file():
            reason, step = "it is no regular file", "name a file"
        elif path.is_file() and _is_kept(Path(real)):
            reason = "what is there is kept by `compile`, and would be lost"
            step += f"; `orchestrator inspect {shell_text(path)}` says what is there"
        elif not folder.is_dir():
            reason, step = "its directory is not there", f"mkdir -p {shell_text(folder)}"
        else:
            reason, step = unwritable(path) or "", "name another place"
        if reason:
            raise UsageError(f"{path}: cannot be written: {reason}", step)


def _is_kept(path: Path) -> bool:
    from orchestrator.stores.inspection import CacheFileKind, inspect_beside, inspect_cache_file

    return inspect_beside(path) is not None or inspect_cache_file(path).kind is CacheFileKind.CACHE_FILE


def write_beside(option: str, path: Path, content: bytes) -> None:
    """Write a file that an option asks for, beside the work."""
    try:
        write_document(path, content)
    except SaveError as error:
        raise OutputError(f"{option} {path}: cannot be written: {error.reason}") from error


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """A block that imports what an extra of this package installs, which is needed for `what`."""
    try:
        yield
    except ModuleNotFoundError as error:
        step = f"install what it needs: pip install 'vulkan-pipeline-orchestrator[{name}]'"
        library = (error.name or "").partition(".")[0]
        raise UsageError(f"{what}: {library} is not installed", step) from None


def signing_key(path: Path | None) -> SigningKey | None:
    """The key of `--sign`."""
    if path is None:
        return None
    with extra("sign", "--sign"):
        from orchestrator.stores.signing import SigningKey
    return SigningKey.read(path)


def trusted_key(path: Path | None) -> PublicKey | None:
    """The key of `--trust`."""
    if path is None:
        return None
    with extra("sign", "--trust"):
        from orchestrator.stores.signing import PublicKey
    return PublicKey.read(path)


def show_words(data: bytes) -> None:
    """Show what a driver prints, but for noise, from any thread."""
    from orchestrator.devices.noise import is_noise

    lines = [each for each in data.splitlines(keepends=True) if not is_noise(each)]
    sys.stderr.write(b"".join(lines).decode("utf-8", "backslashreplace"))
    sys.stderr.flush()


@contextmanager
def _words_shown() -> Iterator[None]:
    sys.stderr.flush()
    with open(os.memfd_create("words"), "w+b") as words, open(os.dup(2), "wb") as stderr:  # noqa: PTH123
        os.dup2(words.fileno(), 2)
        try:
            yield
        finally:
            flush_c_streams()
            os.dup2(stderr.fileno(), 2)
            words.seek(0)
            show_words(words.read())


def run_again_for(selector: str) -> int | None:
    """Run this command in a new interpreter, if this one cannot open a device; the exit code, else None."""
    from orchestrator.devices.families import require_family
    from orchestrator.devices.selectors import needed_at_start

    at_start = needed_at_start(selector)
    if not at_start:
        return None
    require_family(selector)  # the drm-shim ends a program that it starts with at a GPU that it lacks
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *display.command],
        env=os.environ | at_start,
        stdout=sys.stdout.fileno(),
        close_fds=False,
    ) as again:
        while True:
            try:
                code = again.wait()
            except KeyboardInterrupt:
                again.send_signal(signal.SIGINT)
            else:
                return code if code >= 0 else 128 - code


@contextmanager
def opened_device(selector: str) -> Iterator[Device]:
    """A device for the block; the environment of this process is set for it.

    A child opens it first, so that a driver that ends its process is an error that names it.
    """
    from orchestrator.devices.listing import list_one
    from orchestrator.devices.opening import open_device, own_process

    list_one(selector)
    own_process(selector)
    with _words_shown():
        device = open_device(selector)
    try:
        yield device
    finally:
        device.close()


def open_set(names: Sequence[str]) -> PipelineSet:
    """Open a set, which the caller closes: archives, or one manifest; ``sample`` is ours."""
    from orchestrator.sets.opening import open_paths

    return open_paths(archive_paths(names))


def used_keys(path: Path | None, opened: PipelineSet) -> frozenset[int]:
    """Keys of the pipelines of a set that the list of `--used` names; none without a list."""
    from orchestrator.sets.extraction import listed_keys

    if path is None:
        return frozenset()
    if keys := listed_keys(str(path)).intersection(opened.pipelines.keys.tolist()):
        return keys
    raise UsageError(
        f"--used {path}: names no pipeline of {opened.name}",
        f"`orchestrator list {shell_text(path)} --pipelines` shows the keys that it has",
    )


def damage_to_measure(names: Sequence[str]) -> str:
    """What to say of a set that is measured, where its archives are damaged, or "" where they are not."""
    with open_set(names) as opened:
        if not len(opened):
            files = " ".join(map(shell_text, names))
            step = f"`orchestrator list {files}` shows what it holds; `{SAMPLE}` is a set that has some"
            raise UsageError(f"{opened.name}: holds no pipelines", step)
        if not opened.damage:
            return ""
        lost = f"{plural(len(opened.damage), 'place')} of {opened.name} cannot be read"
        return f"damaged: {lost}, and the rest is measured; `orchestrator list` shows what was lost"


def archive_paths(names: Sequence[str]) -> list[str]:
    """Paths of a set's archives, or of one manifest."""
    manifests = [name for name in names if name.lower().endswith(".toml")]
    if manifests and len(names) > 1:
        raise UsageError(
            f"{manifests[0]}: a manifest cannot be combined with other sets",
            f"pack it (`orchestrator pack {shell_text(manifests[0])} -o OUT.foz`), and name the archive",
        )
    return list(names) if manifests else [_archive(name) for name in names]


def set_paths(names: Sequence[str]) -> tuple[str, ...]:
    """`archive_paths`, absolute, for a process that opens the set by its paths."""
    return tuple(str(Path(path).absolute()) for path in archive_paths(names))


def _archive(name: str) -> str:
    if name == SAMPLE:
        try:
            return str(sample_path())
        except FileNotFoundError as error:
            raise UsageError(f"the sample set is not there: {error}") from error
    with suppress(OSError, ValueError):  # whoever opens it says why it cannot be
        # Not left to the child that opens it: its /dev/fd is another one.
        if kind := irregular(Path(name).stat().st_mode):
            raise ArchiveError(name, 0, f"no regular file: it is {kind}")
    return os.path.realpath(name) if name.startswith(("/dev/", "/proc/")) else name
