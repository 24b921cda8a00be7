"""What the command line decides before it imports the program: whether to start again for a compile.

Guarantees: only what every interpreter has loaded is imported here, since each millisecond counts twice in a
program that starts again; platformdirs, where the directory of cache files is not given.
"""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False  # importing `typing` takes as long as starting Python
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import Final

_PROGRAM: Final = "orchestrator"
_LARGE_BYTES: Final = 4 << 20
"""Divided by the number of processors: the more threads allocate, the more they gain. With 2 processors a
captured set of 2.5 MB, which compiles in a second, gains 30 ms, twice what the start costs."""
_LEAST_BYTES: Final = 1 << 20
_DIRECTORY_OPTION: Final = "--cache-dir"
_PLAN_SUFFIX: Final = ".plan"  # of orchestrator.stores.kinds.PLAN, which imports too much


def compiles_much(tokens: Sequence[str]) -> bool:
    """Whether the work probably takes seconds, so that it is worth 10 to 15 ms to start again for it.

    To calibrate does. To compile does from 4 MiB of sets divided by the number of processors on, and not
    below 1 MiB, if they `are_new`.

    Args:
        tokens: The arguments of the command line.
    """
    if tokens[:1] != ["compile"]:
        return tokens[:1] == ["calibrate"]
    least = max(_LEAST_BYTES, _LARGE_BYTES // len(os.sched_getaffinity(0)))
    return are_new(tokens[1:], least, lambda: _given_directory(tokens) or cache_directory(None))


def are_new(paths: Iterable[str], least_bytes: int, directory: Callable[[], Path | str]) -> bool:
    """Whether sets are of some size, and were probably not compiled before.

    If they were, a plan in the directory of cache files is newer than all of them.

    Args:
        paths: Their paths; what is no path of a file is passed over.
        least_bytes: Size.
        directory: Gives the directory of cache files.
    """
    files = list(_files(paths))
    if sum(each.st_size for each in files) < least_bytes:
        return False
    newest = max(each.st_mtime for each in files)
    try:
        place = directory()
        names = [each for each in os.listdir(place) if each.endswith(_PLAN_SUFFIX)]  # noqa: PTH208
    except (OSError, ValueError, RuntimeError):
        return True
    saved = _files(os.path.join(place, each) for each in names)  # noqa: PTH118
    return not any(each.st_mtime >= newest for each in saved)


def is_program() -> bool:
    """Whether Python was started for this program, and not for another one that calls its `main`."""
    name, *arguments = sys.argv
    package = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120
    is_ours = os.path.basename(name) == _PROGRAM or name == os.path.join(package, "__main__.py")  # noqa: PTH118, PTH119
    return is_ours and sys.orig_argv[len(sys.orig_argv) - len(arguments) :] == arguments


def cache_directory(given: Path | None) -> Path:
    """The directory for cache files, which may not be there.

    Raises:
        RuntimeError: None is given, and the user has no home directory.
    """
    if given is not None:
        return given
    import platformdirs

    return platformdirs.user_cache_path("orchestrator")


def _files(paths: Iterable[str]) -> Iterator[os.stat_result]:
    """What the system says of those that are files."""
    for path in paths:
        try:
            found = os.stat(path)  # noqa: PTH116
        except (OSError, ValueError):  # another argument
            continue
        if stat.S_ISREG(found.st_mode):
            yield found


def _given_directory(tokens: Sequence[str]) -> str | None:
    given = None
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        name, equals, value = token.partition("=")
        if name == _DIRECTORY_OPTION:
            given = value if equals else following
    return given
