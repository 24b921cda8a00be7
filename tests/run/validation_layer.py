"""The Khronos validation layer over a process of ours: which layer, what it is told, and what it said.

A layer that is older than the driver drops the structures that it does not know from the create infos that it
copies, so that what reaches the driver is not what was asked for. Its setting custom_stype_list names such
structures with their sizes, and the layer passes them on. Which ones it does not know is read from its
library, in which the names of those that it knows stand as text; the registry gives type and size.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import pytest
from attrs import field, frozen

from orchestrator.registry import registry
from tests.drivers import REPOSITORY, driver_environment, missing

LAYER: Final = "VK_LAYER_KHRONOS_validation"
PACKAGE: Final = "vulkan-validationlayers"
# Where loaders look for explicit layers on Unix, after VK_LAYER_PATH (loader interface documentation).
_MANIFEST_FOLDERS: Final = (
    "/etc/vulkan/explicit_layer.d",
    "/usr/local/share/vulkan/explicit_layer.d",
    "/usr/share/vulkan/explicit_layer.d",
)
_BEGINNING: Final = re.compile(r"Validation (?:Error|(?:Performance )?Warning|Information): \[ (\S+) \](.*)")
_NAME: Final = re.compile(rb"Vk[A-Z]\w+")


@frozen
class ValidationLayer:
    """An installed validation layer, of a version of the Vulkan headers such as "1.3.239"."""

    manifest: Path
    version: str

    @classmethod
    def find(cls) -> ValidationLayer:
        """The layer that a loader takes; ends the test where there is none."""
        named = os.environ.get("VK_LAYER_PATH", "")
        folders = named.split(os.pathsep) if named else _MANIFEST_FOLDERS
        for path in [path for folder in folders for path in sorted(Path(folder).glob("*.json"))]:
            layer = json.loads(path.read_text("utf-8"))["layer"]
            if layer["name"] == LAYER:
                break
        else:
            missing(f"the layer {LAYER}; `make setup` as root installs {PACKAGE}")
        return cls(path, layer["api_version"])

    def library(self) -> Path:
        """Its library: beside the manifest, or where the system's linker finds it."""
        named = Path(json.loads(self.manifest.read_text("utf-8"))["layer"]["library_path"])
        if named.parent != Path():
            return (self.manifest.parent / named).resolve()
        root = self.manifest.parents[3]  # <root>/share/vulkan/explicit_layer.d
        # Debian's folder by architecture first; other folders below lib hold copies of other programs.
        found = [
            path for each in ("lib/*-linux-gnu*", "lib64", "lib") for path in root.glob(f"{each}/{named}")
        ]
        assert found, f"no {named} below {root}, which {self.manifest} names"
        return found[0]

    def unknown_structures(self) -> tuple[tuple[int, int], ...]:
        """(VkStructureType, size in bytes) of every structure that is newer than the layer."""
        known = {each.decode() for each in _NAME.findall(self.library().read_bytes())}
        names: dict[str, set[str]] = {}
        for alias, name in registry().aliases.items():
            names.setdefault(name, {name}).add(alias)
        return tuple(
            (each.s_type, each.size)
            for each in registry().structs.values()
            if each.s_type is not None and not known & names.get(each.name, {each.name})
        )

    def settings(self, log: Path) -> str:
        """A vk_layer_settings.txt: all checks, thread safety among them, every message, into a log."""
        structures = ",".join(f"{s_type},{size}" for s_type, size in self.unknown_structures())
        values = {
            "debug_action": "VK_DBG_LAYER_ACTION_LOG_MSG",
            "report_flags": "error,warn",
            "log_filename": str(log),
            "enable_message_limit": "false",
            "duplicate_message_limit": "1000000000",
            "disables": "",
            "enables": "",
            "thread_safety": "true",
            "custom_stype_list": structures,
        }
        return "".join(f"khronos_validation.{name} = {value}\n" for name, value in values.items())


@frozen
class Message:
    """One message of the layer: its VUID, or another name that the layer gave it, and the rest."""

    id: str
    text: str

    def __str__(self) -> str:
        return f"{self.id}: {self.text[:1000]}"


@frozen
class LayeredRun:
    """What a process did, and what the layer said to that, in its order."""

    returncode: int
    stdout: str = field(repr=False)
    stderr: str = field(repr=False)
    messages: tuple[Message, ...]

    def document(self) -> dict[str, Any]:
        """The JSON that the process wrote; fails the test where it did not end with 0."""
        if self.returncode != 0:
            pytest.fail(f"ended with {self.returncode}:\n{self.stderr[-4000:]}", pytrace=False)
        # Newer layers write a line of their own to stdout, before it or after it.
        document: dict[str, Any]
        document, _ = json.JSONDecoder().raw_decode(self.stdout, self.stdout.index("{"))
        return document


def parse_log(text: str) -> tuple[Message, ...]:
    messages: list[tuple[str, list[str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        beginning = _BEGINNING.search(line)
        if beginning:
            messages.append((beginning[1], [beginning[2]]))
        elif messages:
            messages[-1][1].append(line)
        elif line.strip():
            raise ValueError(f"line {number} of the layer's log belongs to no message: {line!r}")
    return tuple(Message(name, "\n".join(lines).strip(" |\n")) for name, lines in messages)


def layer_environment(layer: ValidationLayer, selector: str, folder: Path, log: Path) -> dict[str, str]:
    """The environment of a process that sees one driver, through the layer."""
    variables = {
        name: value
        for name, value in driver_environment(selector).items()
        # A developer's own settings of the layer would decide what it sees.
        if name == "VK_LAYER_PATH" or not name.startswith(("VK_LAYER_", "VK_KHRONOS_VALIDATION_"))
    }
    settings = folder / "vk_layer_settings.txt"
    settings.write_text(layer.settings(log), "utf-8")
    return variables | {"VK_INSTANCE_LAYERS": LAYER, "VK_LAYER_SETTINGS_PATH": str(settings)}


def run_layered(
    layer: ValidationLayer,
    selector: str,
    folder: Path,
    arguments: Sequence[str],
    *,
    timeout_s: float = 300.0,
) -> LayeredRun:
    """Run Python with arguments, such as ["-m", "orchestrator", "devices"], under the layer.

    The folder gets settings and log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _LogPipe(folder / "log") as log:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=REPOSITORY,
            env=layer_environment(layer, selector, folder, log.path),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    return LayeredRun(done.returncode, done.stdout, done.stderr, parse_log(log.text))


class _LogPipe:
    """A named pipe that is read to its end, because a layer empties a log for each instance."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = ""

    def __enter__(self) -> Self:
        os.mkfifo(self.path, 0o600)
        # Without a writer a pipe opens for reading only if that may not block, and it would end early.
        reading = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(reading, True)
        self._writing = os.open(self.path, os.O_WRONLY)
        self._reader = threading.Thread(target=self._read, args=(reading,))
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._writing)
        self._reader.join()

    def _read(self, reading: int) -> None:
        with open(reading, encoding="utf-8", errors="replace") as file:
            self.text = file.read()
