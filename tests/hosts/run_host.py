"""Proves cache files with the host in C (host.c), which shares only a file's payload with this project.

The tests import this module. It is also a program, for machines that have a driver to prove and no pytest:

    python tests/hosts/run_host.py --device nvidia --out results.json [--host PROGRAM]

It compiles the sample here, hands the driver's bytes to the host, opened as the sample's application
opens its device, and counts hits; then the other way round; then with one thing about the device
changed at a time, which says what the driver's keys depend on. Exit code 0 where every pipeline was
found in both directions, else 1.

What belongs to the proof needs the standard library only, and knows the file format from docs/cache-file.md.
Three things use the package, each where there is nothing to prove: compiling, the name of a driver's
manifest, and the header around a host's bytes.

The driver's own caches are off in every process that this module starts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
REPOSITORY = FOLDER.parent.parent
SOURCE = FOLDER / "host.c"
MANIFEST = REPOSITORY / "orchestrator" / "sets" / "sample" / "sample.toml"
SHADERS = MANIFEST.parent / "shaders"

COMPILER_FLAGS = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Werror")
CACHE_CONTROL = "VkPhysicalDevicePipelineCreationCacheControlFeatures::pipelineCreationCacheControl"
SHADER_OBJECT = "VkPhysicalDeviceShaderObjectFeaturesEXT::shaderObject"

# Of what the host's pipelines need, what an application's record tells: enabled only where it is recorded.
# The rest is enabled because the pipelines need it; no capture could say that an application had it.
_RECORDED_STRUCTURES = (
    "VkPhysicalDeviceMeshShaderFeaturesEXT",
    "VkPhysicalDevicePipelineRobustnessFeatures",
)
_DRIVER_CACHES_OFF = {"MESA_SHADER_CACHE_DISABLE": "true", "__GL_SHADER_DISK_CACHE": "0"}
_NO_DEVICE = 3
_LINKS = "graphics.linked["  # links pipeline libraries, and has no stages of its own

_PREFIX_HEADER_SIZE = 128
_PREFIX_START = struct.Struct("<8sIIQ")  # magic, formatVersion, headerSize, dataSize
_MAGIC = b"\x89OPCF\r\n\x1a"


class HostError(Exception):
    """The host, or what it is given, is not usable; the message says which and why."""


@dataclass(frozen=True)
class Application:
    """What an application tells its instance and asks of its device."""

    api_version: str = "1.3"
    name: str | None = None
    engine: str | None = None
    application_version: int = 0
    engine_version: int = 0
    features: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        arguments = ["--api-version", self.api_version]
        if self.name is not None:
            arguments += ["--application-name", self.name]
        if self.engine is not None:
            arguments += ["--engine-name", self.engine]
        arguments += ["--application-version", str(self.application_version)]
        arguments += ["--engine-version", str(self.engine_version)]
        for each in self.features:
            arguments += ["--feature", each]
        return arguments

    def toggled(self, feature: str) -> Application:
        if feature in self.features:
            return replace(self, features=tuple(each for each in self.features if each != feature))
        return replace(self, features=(*self.features, feature))


@dataclass(frozen=True)
class HostRun:
    """What the host printed."""

    exit_code: int
    pipelines: tuple[dict[str, Any], ...]
    errors: str = field(repr=False)

    @property
    def tried(self) -> frozenset[str]:
        return frozenset(each["name"] for each in self.pipelines if each["result"] != "SKIPPED")

    @property
    def skipped(self) -> frozenset[str]:
        return frozenset(each["name"] for each in self.pipelines if each["result"] == "SKIPPED")

    @property
    def hits(self) -> frozenset[str]:
        return frozenset(each["name"] for each in self.pipelines if each["hit"])

    @property
    def misses(self) -> frozenset[str]:
        return self.tried - self.hits

    @property
    def compiled(self) -> frozenset[str]:
        return frozenset(each for each in self.misses if not each.startswith(_LINKS))

    def summary(self) -> dict[str, Any]:
        return {
            "tried": len(self.tried),
            "hits": len(self.hits),
            "skipped": sorted(self.skipped),
            "missed": sorted(self.misses),
        }


class Host:
    """The program built from host.c. Values only; every call starts a process of its own."""

    def __init__(self, program: Path) -> None:
        self.program = program
        self.pipelines = self._listed("--list")
        self.structures = self._listed("--list-features")

    @classmethod
    def build(cls, folder: Path, compiler: str = "gcc") -> Host:
        program = folder / "host"
        command = [compiler, *COMPILER_FLAGS, "-o", str(program), str(SOURCE), "-lvulkan"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise HostError(f"{' '.join(command)}:\n{done.stderr}")
        return cls(program)

    def _listed(self, option: str) -> tuple[dict[str, Any], ...]:
        done = subprocess.run([self.program, option], capture_output=True, text=True, check=True)
        return tuple(json.loads(line) for line in done.stdout.splitlines())

    def feature(self, structure: str, member: str) -> str:
        for each in self.structures:
            if _stem(each["name"]) == _stem(structure) and member in each["members"]:
                return f"{each['name']}::{member}"
        raise HostError(f"{structure}::{member} is not in the table of {SOURCE.name}; add it there")

    def application(self, record: Mapping[str, Any]) -> Application:
        recorded = [
            self.feature(structure, member)
            for structure, members in record["features"].items()
            for member, value in members.items()
            if value
        ]
        if record["robust_buffer_access"]:
            recorded.append("VkPhysicalDeviceFeatures::robustBufferAccess")
        needed = [
            need
            for each in self.pipelines
            for need in each["needs"]
            if need.partition("::")[0] not in _RECORDED_STRUCTURES
        ]
        return Application(
            api_version=record["api_version"],
            name=record["name"],
            engine=record["engine"],
            application_version=record["application_version"],
            engine_version=record["engine_version"],
            features=tuple(dict.fromkeys(recorded + needed)),
        )

    def run(
        self,
        application: Application,
        environment: Mapping[str, str],
        *,
        device: str = "",
        load: Path | None = None,
        save: Path | None = None,
        forbid: bool = False,
    ) -> HostRun:
        if forbid and CACHE_CONTROL not in application.features:
            application = application.toggled(CACHE_CONTROL)
        command = [str(self.program), "--shaders", str(SHADERS), *application.arguments()]
        command += ["--device", device] if device else []
        command += ["--load", str(load)] if load else []
        command += ["--save", str(save)] if save else []
        command += ["--forbid"] if forbid else []
        done = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode not in (0, 1, _NO_DEVICE):
            raise HostError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
        return HostRun(
            done.returncode, tuple(json.loads(line) for line in done.stdout.splitlines()), done.stderr
        )


def _stem(structure: str) -> str:
    return structure.removesuffix("KHR").removesuffix("EXT")


def recorded_application(archive: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "orchestrator", "list", archive, "--json"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HostError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    applications: list[dict[str, Any]] = json.loads(done.stdout)["applications"]
    if len(applications) != 1:
        raise HostError(f"{archive} has {len(applications)} applications")
    return applications[0]


def strip_prefix_header(content: bytes) -> bytes:
    """The driver's bytes of a cache file, by the table in docs/cache-file.md and not by the package."""
    if len(content) < _PREFIX_HEADER_SIZE:
        raise HostError(f"{len(content)} bytes are no cache file")
    magic, version, header_size, data_size = _PREFIX_START.unpack_from(content)
    if (magic, version, header_size) != (_MAGIC, 1, _PREFIX_HEADER_SIZE):
        raise HostError(f"magic {magic!r}, format version {version}, header of {header_size} bytes")
    payload = content[header_size:]
    if len(payload) != data_size:
        raise HostError(f"dataSize is {data_size}, and {len(payload)} bytes follow the header")
    return payload


def with_prefix_header(payload: bytes, like: bytes) -> bytes:
    from attrs import evolve

    from orchestrator.stores.cache_file import PipelineCachePrefixHeader
    from orchestrator.stores.files.atomic_file import content_hash128

    header = PipelineCachePrefixHeader.unpack(like)
    return evolve(header, data_size=len(payload), data_hash=content_hash128(payload)).pack() + payload


def compile_sets(
    sets: Sequence[str],
    device: str,
    cache_directory: Path,
    environment: Mapping[str, str],
    options: Sequence[str] = (),
) -> dict[str, Any]:
    command = [sys.executable, "-m", "orchestrator", "compile", *sets, "--json"]
    command += ["--device", device, "--cache-dir", str(cache_directory), *options]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=dict(environment), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise HostError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def cache_file(document: Mapping[str, Any]) -> Path:
    return Path(document["cache_file"]["path"])


def sample_statuses(device: str, cache_directory: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Compile the sample in a fresh process with one worker and one cache: each pipeline's status, by name.

    With one worker and one cache, exactly one pipeline of those that are equal to the driver is compiled.
    """
    command = [sys.executable, __file__, "--device", device, "--statuses", str(cache_directory)]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=dict(environment), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise HostError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    statuses: dict[str, str] = json.loads(done.stdout)
    return statuses


def _print_statuses(device: str, cache_directory: Path) -> None:
    from orchestrator import compile  # noqa: A004 - as users have it
    from orchestrator.sets.authoring.manifest import load_manifest

    report = compile("sample", device, cache=cache_directory, workers=1, mode="shared")
    statuses = {(each.kind.value, int(each.key)): each.status.value for each in report.pipelines}
    packed = load_manifest(MANIFEST).pipelines
    print(json.dumps({each.name: statuses[each.kind.value, each.key] for each in packed}))


def device_name(selector: str) -> str:
    driver = selector.partition(":")[0]
    return {"lavapipe": "llvmpipe"}.get(driver, driver)


def quiet_environment(base: Mapping[str, str]) -> dict[str, str]:
    return {**base, **_DRIVER_CACHES_OFF}


def variants(application: Application) -> dict[str, Application]:
    """The application with one thing changed at a time, by the name of that thing."""
    features = (
        SHADER_OBJECT,
        "VkPhysicalDevicePipelineRobustnessFeatures::pipelineRobustness",
        "VkPhysicalDeviceMaintenance5Features::maintenance5",
        "VkPhysicalDeviceMaintenance8FeaturesKHR::maintenance8",
        "VkPhysicalDeviceDescriptorBufferFeaturesEXT::descriptorBuffer",
        "VkPhysicalDevicePrimitivesGeneratedQueryFeaturesEXT::primitivesGeneratedQuery",
        "VkPhysicalDeviceLineRasterizationFeatures::smoothLines",
        "VkPhysicalDeviceFeatures::robustBufferAccess",
        "VkPhysicalDeviceImageRobustnessFeatures::robustImageAccess",
        "VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR::pipelineExecutableInfo",
        CACHE_CONTROL,
    )
    other_version = "1.4" if application.api_version.startswith("1.3") else "1.3"
    return {
        f"apiVersion {other_version}": replace(application, api_version=other_version),
        "names": replace(application, name="another application", engine="another engine"),
        "engine DXVK": replace(application, engine="DXVK"),
        **{f"{each} toggled": application.toggled(each) for each in features},
    }


def prove(
    host: Host, device: str, environment: Mapping[str, str], folder: Path, *, changed: bool = True
) -> dict[str, Any]:
    """Both directions on one device, and with something changed unless told not to; a document of counts."""
    name = device_name(device)
    application = host.application(recorded_application("sample"))

    def run(opened: Application, payload: Path, *, forbid: bool = False) -> dict[str, Any]:
        ran = host.run(opened, environment, device=name, load=payload, forbid=forbid)
        if ran.exit_code == _NO_DEVICE:
            return {"unsupported": ran.errors.strip().rpartition("\n")[2]}
        return ran.summary()

    own = folder / "host.bin"
    saved = host.run(application, environment, device=name, save=own)
    if saved.exit_code == _NO_DEVICE:
        raise HostError(saved.errors)
    document = compile_sets(["sample"], device, folder / "ours", environment)
    ours = folder / "ours.bin"
    content = cache_file(document).read_bytes()
    ours.write_bytes(strip_prefix_header(content))

    empty = sample_statuses(device, folder / "empty", environment)
    theirs = folder / "theirs"
    theirs.mkdir(mode=0o700)
    write_private(theirs / cache_file(document).name, with_prefix_header(own.read_bytes(), content))
    found = sample_statuses(device, theirs, environment)
    others = variants(application) if changed else {}
    return {
        "device": {key: document["device"][key] for key in ("device_name", "driver_name", "driver_info")},
        "application": {"api_version": application.api_version, "features": list(application.features)},
        "host_in_itself": {
            "feedback": run(application, own),
            "forbidden": run(application, own, forbid=True),
        },
        "ours_in_host": {
            "feedback": run(application, ours),
            "forbidden": run(application, ours, forbid=True),
        },
        "host_in_ours": {
            "pipelines": len(saved.tried),
            "hits": sum(found[each] == "cache_hit" for each in saved.tried),
            "missed": sorted(each for each in saved.tried if found[each] != "cache_hit"),
            "compiled_by_host": len(saved.compiled),
            "compiled_from_empty": len(compiled(empty)),
            "compiled_with_host": len(compiled(found)),
        },
        "ours_in_changed_host": {label: run(each, ours) for label, each in others.items()},
        "host_in_changed_host": {label: run(each, own) for label, each in others.items()},
    }


def write_private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


def compiled(statuses: Mapping[str, str]) -> set[str]:
    return {name for name, status in statuses.items() if status == "compiled" and not name.startswith(_LINKS)}


def _all_found(document: Mapping[str, Any]) -> bool:
    there = document["ours_in_host"].values()
    return not document["host_in_ours"]["missed"] and all(
        each.get("tried") and not each["missed"] and not each["skipped"] for each in there
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proof on one device; 0 all found, 1 not, 2 it could not be run."""
    parser = argparse.ArgumentParser(description="prove cache files with a host in C")
    parser.add_argument("--device", required=True, help="selector, such as nvidia or radv:navi21")
    parser.add_argument("--out", type=Path, help="where the counts are written, as JSON")
    parser.add_argument("--host", type=Path, help="the host, built already; else gcc builds it")
    parser.add_argument("--statuses", type=Path, help=argparse.SUPPRESS)  # the child of sample_statuses
    chosen = parser.parse_args(arguments)
    if chosen.statuses:
        _print_statuses(chosen.device, chosen.statuses)
        return 0
    from orchestrator.devices.selectors import environment_of

    environment = {**os.environ, **environment_of(chosen.device)}
    if chosen.host is None and shutil.which("gcc") is None:
        print("no gcc here: build host.c elsewhere and name the program with --host", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            host = Host(chosen.host.resolve()) if chosen.host else Host.build(folder)
            document = prove(host, chosen.device, environment, folder)
        except HostError as error:
            print(error, file=sys.stderr)
            return 2
    text = json.dumps(document, indent=2)
    print(text)
    if chosen.out:
        chosen.out.write_text(text + os.linesep, "utf-8")
    return 0 if _all_found(document) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY))
    raise SystemExit(main())
