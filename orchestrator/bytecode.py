"""Byte code that is kept beside the interpreter's own, so that a process of ours starts sooner.

The interpreter keeps the byte code of each module in a file. Two things take a third of the imports even so:
to find and read some hundred files, and to compile the methods that attrs generates. So there are more files
where the interpreter keeps byte code (PYTHONPYCACHEPREFIX): one of what a program imports at a time, such as
until it knows its verb, and one of generated methods.

Guarantees: what is kept is used only where the interpreter would use the same. If a file is missing, damaged
or of another interpreter, only time is lost. Nothing is written where that is forbidden
(PYTHONDONTWRITEBYTECODE) or impossible. Several processes may add to a file; of two at once, one may be lost.
Assumptions: a process of ours; one thread at a time. The files are as trusted as the interpreter's own. This
module is imported before what it could give, so it imports only what every interpreter has loaded.
"""

from __future__ import annotations

import marshal
import os
import sys
import zlib
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, all_suffixes

TYPE_CHECKING = False  # importing `typing` takes as long as starting Python
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import CodeType, ModuleType
    from typing import Any, Final

    _Fields = tuple[str, str | None, bool, int, int]
    _Entry = tuple[Any, bytes | memoryview]

_FORMAT: Final = 3  # another one where what is kept of a module or a class changes
_HEAD: Final = f"{_FORMAT} {sys.version}".encode()
_NUMBER_BYTES: Final = 4  # of a sum, and of a size
_SALT: Final = r"^ +-?\d+,$"  # on a line of its own

_kept: list[GeneratedCode | ModuleCode] = []


def keep_generated_code() -> None:
    """Let attrs use kept byte code from now on. Imports attrs."""
    import attr._make as attrs_maker

    kept = GeneratedCode(_place("attrs_classes"))
    vars(attrs_maker)["compile"] = kept.compile
    _kept.append(kept)


def keep_module_code(name: str) -> None:
    """Take modules from kept byte code until `leave_module_code`.

    All that earlier processes imported in the same time is read at once. So call it where a program imports
    the same each time.

    Args:
        name: Part of the name of the file.
    """
    kept = ModuleCode(_place(f"modules_{name}"))
    kept.install()
    _kept.append(kept)


def leave_module_code() -> None:
    """Import as usual from now on; what is imported later is not kept."""
    for each in _kept:
        if isinstance(each, ModuleCode):
            each.remove()


def save_byte_code() -> None:
    """Keep the byte code that this process had to search or make."""
    for each in _kept:
        each.save()


class GeneratedCode:
    """Keeps the byte code of methods that attrs generates.

    attrs writes the methods of a class as text and compiles it when the class is made: 0.3 ms for each of the
    180 classes of a compile, including those of libraries. Here the byte code is kept under the name that
    attrs gives to the text, together with the text, and used again only for the same text. One number may
    differ: attrs mixes it into the hashes of a class, a new one in each process; the kept byte code has the
    number of the process that compiled it.

    Should attrs compile in another way, nothing is gained and nothing lost.
    """

    def __init__(self, path: str) -> None:
        """Use a file, which need not exist."""
        self._path = path
        self._known: dict[str, _Entry] = _read(path)
        self._has_news = False

    def compile(self, text: str, name: str, mode: str) -> CodeType:
        """As the builtin function of this name."""
        known, lasting = self._known.get(name), _lasting(text)
        if known is not None and known[0] == lasting:
            kept: CodeType = marshal.loads(known[1])  # noqa: S302 - as the interpreter does
            return kept
        code: CodeType = compile(text, name, mode)
        self._known[name] = lasting, marshal.dumps(code)
        self._has_news = True
        return code

    def save(self) -> None:
        """Add what was compiled anew to the file."""
        if self._has_news:
            self._has_news = False
            _write(self._path, _read(self._path) | self._known)


class ModuleCode:
    """Keeps the byte code of modules in one file; a finder of `sys.meta_path`.

    It is asked before the interpreter searches its path. It gives only what the interpreter would find in the
    same place, and only as long as the source is unchanged.
    """

    def __init__(self, path: str) -> None:
        """Use a file, which need not exist."""
        self._path = path
        self._missed: list[tuple[int, str]] = []
        self._known = _modules(path)
        for name in _hidden(self._known):
            del self._known[name]

    def install(self) -> None:
        """Give modules, and notice those that are not kept, until `remove`."""
        finders = sys.meta_path
        finders.insert(finders.index(PathFinder) if PathFinder in finders else len(finders), self)

    def remove(self) -> None:
        """Give modules no longer. Idempotent."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._known.clear()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder.find_spec`."""
        kept = self._known.pop(name, None)
        if kept is None or not ((path is None or kept.root in path) and kept.is_current()):
            self._missed.append((os.getpid(), name))
            return None
        loader = _KeptLoader(name, kept.origin, kept.code)
        spec = ModuleSpec(name, loader, origin=kept.origin, is_package=kept.is_package)
        spec.has_location, spec.cached = True, kept.cached
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(os.path.dirname(kept.origin))  # noqa: PTH120
        return spec

    def save(self) -> None:
        """Add the modules to the file that were noticed in this process; gives modules no longer."""
        self.remove()
        here = os.getpid()
        missed = [name for process_id, name in self._missed if process_id == here]
        self._missed.clear()
        if not missed or not _may_write(self._path):
            return  # to gather what cannot be kept would take as long as to import it
        news = {name: kept for name in missed if (kept := _module(name)) is not None}
        if news:
            current = {name: kept for name, kept in _modules(self._path).items() if kept.is_current()}
            _write(self._path, {name: (kept.fields, kept.code) for name, kept in (current | news).items()})


class _KeptModule:
    """The byte code of a module.

    Args:
        fields: Path of its source, path of the interpreter's own byte code, whether it is a package, when its
            source was modified, ns, and the size of that, bytes.
        code: Its byte code, marshalled: of what earlier processes needed, this one may need little.
    """

    def __init__(self, fields: _Fields, code: bytes | memoryview) -> None:
        self.fields, self.code = fields, code
        self.origin, self.cached, self.is_package, *self._state = fields

    @property
    def root(self) -> str:
        """The folder that it was found in."""
        folder = self.origin.rpartition(os.sep)[0]
        return folder.rpartition(os.sep)[0] if self.is_package else folder

    def is_current(self) -> bool:
        """Whether the source is as it was."""
        try:
            found = os.stat(self.origin)  # noqa: PTH116 - for some hundred modules
        except OSError:
            return False
        return [found.st_mtime_ns, found.st_size] == self._state


class _KeptLoader(SourceFileLoader):
    """Has the byte code of its module already."""

    def __init__(self, name: str, origin: str, code: bytes | memoryview) -> None:
        super().__init__(name, origin)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - its name in SourceFileLoader
        """See `SourceFileLoader.get_code`."""
        code: CodeType = marshal.loads(self._code)  # noqa: S302 - as the interpreter does
        return code


def _module(name: str) -> _KeptModule | None:
    """A module that was imported, unless it is none that the interpreter keeps byte code of."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is None or spec.name != name or type(spec.loader) is not SourceFileLoader:
        return None
    try:
        found = os.stat(spec.origin)  # noqa: PTH116
        code = spec.loader.get_code(name)
    except (OSError, ImportError, SyntaxError):  # its source is gone, or another one by now
        return None
    if code is None:
        return None
    is_package = spec.submodule_search_locations is not None
    fields = spec.origin, spec.cached, is_package, found.st_mtime_ns, found.st_size
    return _KeptModule(fields, marshal.dumps(code))


def _modules(path: str) -> dict[str, _KeptModule]:
    return {name: _KeptModule(*entry) for name, entry in _read(path).items()}


def _hidden(known: dict[str, _KeptModule]) -> Iterable[str]:
    """Names of modules that the interpreter would not find where they were found."""
    roots = {name: kept.root for name, kept in known.items() if "." not in name}
    suffixes = tuple(all_suffixes())
    for folder in sys.path:
        try:
            with os.scandir(folder or ".") as there:
                shown = {each.name for each in there if each.name.endswith(suffixes) or each.is_dir()}
        except NotADirectoryError:  # such as a zip file, which may have any of those that are not found yet
            roots = dict.fromkeys(roots, "")
            continue
        except OSError:
            continue
        for name in {each.partition(".")[0] for each in shown}.intersection(roots):
            if roots[name] == folder:
                del roots[name]
            else:
                roots[name] = ""  # another module hides it, wherever it is
    return [name for name in known if name.partition(".")[0] in roots]


def _place(name: str) -> str:
    """Where the interpreter would keep the byte code of a module of this package; "" if nowhere."""
    folder, _, file = (__spec__.cached or "").rpartition(os.sep)
    return f"{folder}{os.sep}{name}.{file.partition('.')[2]}" if folder else ""


def _lasting(text: str) -> str:
    """A text without the number that differs in each process."""
    if "__hash__" not in text:
        return text
    import re

    return re.sub(_SALT, "", text, flags=re.MULTILINE)


def _read(path: str) -> dict[str, _Entry]:
    """What is kept in a file, by name: a value, and code, which is copied only where it is used.

    The file is not mapped: Python's map keeps a descriptor, which a fork of ours closes, and whose number it
    would close again when another file has it.
    """
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            found = memoryview(file.read())
    except OSError:
        return {}
    start = len(_HEAD) + _NUMBER_BYTES
    data = found[start:]
    if found[:start] != _HEAD + _number(zlib.crc32(data)):
        return {}
    codes = _NUMBER_BYTES + int.from_bytes(data[:_NUMBER_BYTES], "little")
    index = marshal.loads(data[_NUMBER_BYTES:codes])  # noqa: S302 - as the interpreter does
    return {name: (value, data[codes + begin : codes + end]) for name, (value, begin, end) in index.items()}


def _number(value: int) -> bytes:
    return value.to_bytes(_NUMBER_BYTES, "little")


def _may_write(path: str) -> bool:
    """Whether byte code may be written there; makes the folder."""
    if sys.dont_write_bytecode or not path:
        return False
    folder = os.path.dirname(path)  # noqa: PTH120
    try:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _write(path: str, known: dict[str, _Entry]) -> None:
    """Replace a file, if byte code may be written there."""
    if not _may_write(path):
        return
    places, end = {}, 0
    for name, (value, code) in known.items():
        places[name] = value, end, end + len(code)
        end += len(code)
    index = marshal.dumps(places)
    data = b"".join((_number(len(index)), index, *(code for _, code in known.values())))
    new = f"{path}.{os.getpid()}"
    try:
        with open(new, "wb") as file:  # noqa: PTH123
            file.write(b"".join((_HEAD, _number(zlib.crc32(data)), data)))
        os.replace(new, path)  # noqa: PTH105
    except OSError:  # not kept, as the interpreter does it
        try:
            os.unlink(new)  # noqa: PTH108
        except OSError:
            return  # it was not even made
