"""The two sides of a live comparison: which driver each has, and what proves that it was loaded.

    NAME=DRIVER[+VARIABLE=VALUE]...

DRIVER is `installed` or nothing; a manifest; a library; or a folder: a prefix, a build, an unpacked package.
Every process of a side has the loader's variables of that side from its start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from struct import unpack_from
from typing import Final

import msgspec
from attrs import frozen

from orchestrator.devices.vulkan.manifests import library_named_by
from orchestrator.errors import OrchestratorError
from orchestrator.regress.results import Side

INSTALLED: Final = "installed"
_PLUS: Final = re.compile(r"\+(?=[A-Za-z_][A-Za-z0-9_]*=)")
_NAME: Final = re.compile(r"[A-Za-z0-9_.,@~-]+")
_PT_NOTE: Final = 4  # <elf.h>, as the offsets below, of a 64-bit file
_NT_GNU_BUILD_ID: Final = 3
_HEAD: Final = 1 << 16
_DRIVERS: Final = {3: "radv", 5: "anv", 6: "anv", 18: "turnip", 24: "nvk"}
"""Names in directions.csv by VkDriverId."""


class SideError(OrchestratorError):
    """A side cannot be what the command line says."""


class SameDriverError(SideError):
    """Both sides are one and the same."""


class Proof(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a process that has opened the device says of its driver."""

    side: Side  # still without a name
    file: tuple[int, int]  # device and inode of its library


@frozen
class SideDriver:
    """A side, as the command line has it."""

    name: str
    driver: str
    variables: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> SideDriver:
        """Parse a side.

        Raises:
            ValueError: It is none.
        """
        name, equals, rest = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise ValueError(f"{text!r}: NAME=DRIVER is expected, such as main=/opt/mesa-main")
        driver, *variables = _PLUS.split(rest) if rest[:1] != "+" else ["", *_PLUS.split(rest)[1:]]
        return cls(name, driver or INSTALLED, dict(each.split("=", 1) for each in variables))

    def environment(self, folder: Path) -> dict[str, str]:
        """Variables of its processes; a manifest that has to be written goes into a folder.

        Raises:
            SideError: There is no driver where it says.
        """
        found = dict(os.environ)
        if self.driver != INSTALLED:
            path = Path(self.driver).absolute()
            manifests = os.pathsep.join(self._manifests(path, folder))
            found |= {"VK_DRIVER_FILES": manifests, "VK_ICD_FILENAMES": manifests, "VK_ADD_DRIVER_FILES": ""}
            if path.is_dir():
                libraries = {str(library.parent) for _, library in _drivers_in(path)}
                given = filter(None, [found.get("LD_LIBRARY_PATH")])
                found["LD_LIBRARY_PATH"] = os.pathsep.join([*sorted(libraries), *given])
        return {**found, **self.variables}

    def _manifests(self, path: Path, folder: Path) -> list[str]:
        if path.suffix == ".json" and path.is_file():
            return [str(path)]
        if path.is_dir():
            libraries = [library for _, library in _drivers_in(path)]
            if not libraries:
                raise SideError(
                    f"{self.name}: {path} has no Vulkan driver: a prefix, a build or an unpacked package is "
                    "expected, with a manifest `*icd*.json` and the library that it names"
                )
        elif path.is_file():
            libraries = [path]
        else:
            raise SideError(
                f"{self.name}: {path} is not there; a manifest, a library or a folder is expected"
            )
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for each in libraries:
            at = folder / f"{self.name}-{each.name}.json"
            icd = {"library_path": str(each), "api_version": "1.4.0"}
            at.write_bytes(msgspec.json.encode({"file_format_version": "1.0.0", "ICD": icd}))
            written.append(str(at))
        return written


def _drivers_in(folder: Path) -> Iterator[tuple[Path, Path]]:
    # Manifests, and the library of each in the folder: those of packages name where it would be installed.
    seen: set[Path] = set()
    for manifest in sorted(folder.rglob("*icd*.json")):
        name = library_named_by(manifest)
        library = next((each for each in folder.rglob(name) if each.is_file()), None) if name else None
        if library is not None and library.resolve() not in seen:
            seen.add(library.resolve())
            yield manifest, library


def require_different(sides: tuple[SideDriver, SideDriver], proofs: tuple[Proof, Proof]) -> str:
    """What is to be noted of two sides, or "".

    Raises:
        SameDriverError: Both loaded the same file, with the same variables.
    """
    (one, other), (first, second) = sides, (each.side for each in proofs)
    if one.variables != other.variables:
        return ""
    if proofs[0].file == proofs[1].file:
        raise SameDriverError(
            f"{one.name} and {other.name} are the same: both loaded {first.library}, build {first.build_id}, "
            "with the same variables"
        )
    if first.build_id == second.build_id:
        return f"{one.name} and {other.name} are two copies of one build ({first.build_id})"
    return ""


# --- in the process that loads the driver


def proof_of(device_name: str, driver_id: int, driver_info: str, manifests: list[str]) -> Proof:
    """What this process says of the driver that it has opened.

    Raises:
        SideError: No library that a manifest names is loaded.
    """
    names = {library_named_by(Path(each)) for each in manifests} - {""}
    mapped = (
        line.split(maxsplit=5)[-1].rstrip() for line in Path("/proc/self/maps").read_text().splitlines()
    )
    paths = [each for each in dict.fromkeys(mapped) if Path(each).name.lower() in names]
    if not paths:
        raise SideError(f"{driver_info}: none of {', '.join(sorted(names))} is loaded in its process")
    path = Path(paths[0])
    state = path.stat()
    driver = _DRIVERS.get(driver_id, "")
    told = Side("", driver, device_name, driver_info, str(path), build_id_of(path))
    return Proof(side=told, file=(state.st_dev, state.st_ino))


def build_id_of(library: Path) -> str:
    """The build id of a library, or the hash of its content where it has none."""
    with library.open("rb") as stream:
        data = stream.read(_HEAD)
        if data[:5] == b"\x7fELF\x02":
            start, size, count = unpack_from("<Q", data, 32)[0], *unpack_from("<HH", data, 54)
            for at in range(start, start + size * count, size):
                kind, offset, length = unpack_from("<I4xQ16xQ", data, at)
                if kind == _PT_NOTE:
                    stream.seek(offset)
                    if found := _build_id_in(stream.read(length)):
                        return found
        stream.seek(0)
        digest = blake2b(digest_size=20)
        while part := stream.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _build_id_in(notes: bytes) -> str:
    at = 0
    while at + 12 <= len(notes):
        name, size, kind = unpack_from("<III", notes, at)
        begin = at + 12 + (name + 3 & ~3)
        if kind == _NT_GNU_BUILD_ID and notes[at + 12 : at + 16] == b"GNU\0":
            return notes[begin : begin + size].hex()
        at = begin + (size + 3 & ~3)
    return ""
