"""What is tried: the variations of a bisection, and what drivers and loaders are known to read of a process.

Features are tried structure by structure. Of a structure that matters, or that cannot be enabled as a whole,
each member is tried alone; where none of them matters alone the structure is named. What matters alone is
then in the baseline of another round, in which all that does not matter alone is tried again.

Sources of the names: the environment variables and driver options in Mesa's documentation, the application
profiles that Mesa installs (drirc), the environment variables in the README of NVIDIA's driver. A variable
that a driver does not know costs one process and changes nothing. What the user has set in a list of words
stays.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from attrs import evolve, frozen

from orchestrator.devices.request import ApplicationInfo, Feature
from orchestrator.key_dependence.messages import Aspect, Surveyed, Variation

_RADV, _NVIDIA, _ANV, _LAVAPIPE, _TURNIP, _NVK = 3, 4, 6, 13, 18, 24  # VkDriverId

_FLAGS: Final = {
    "RADV_DEBUG": "nodcc nohiz nofmask nofastclears nongg nonggc splitfma invariantgeom zerovram "
    "nodynamicbounds nomeshshader noeso nogpl nobinning novrsflatshading noatocdithering nocache "
    "psocachestats epilogs llvm",
    "RADV_PERFTEST": "cswave32 gewave32 pswave32 rtwave32 rtwave64 nggc localbos emulate_rt nircache nosam",
    "ACO_DEBUG": "noopt nosched novn validatera force-waitcnt force-waitdeps",
    "INTEL_DEBUG": "no8 no16 no32 nofc spill_fs soft64 noccs",
    "GALLIVM_DEBUG": "tgsi ir asm perf",
    "LP_DEBUG": "rast setup fence",
    "TU_DEBUG": "nolrz sysmem gmem noubwc nobin",
    "NAK_DEBUG": "serial spill annotate",
    "NIR_DEBUG": "clone serialize",
}
"""Variables that hold a list of words, each tried alone beside what the user has set."""

# Options of drirc are read from variables of the same name, too.
_VALUES: Final = """
    RADV_FORCE_VRS=2x2 RADV_TEX_ANISO=16 RADV_PROFILE_PSTATE=peak MESA_VK_VERSION_OVERRIDE=1.3
    radv_ssbo_non_uniform=true radv_tex_non_uniform=true radv_lower_terminate_to_discard=true
    radv_enable_mrt_output_nan_fixup=true radv_disable_shrink_image_store=true
    radv_disable_sinking_load_input_fs=true radv_disable_trunc_coord=true radv_disable_aniso_single_level=true
    radv_disable_ngg_gs=true radv_clear_lds=true radv_override_uniform_offset_alignment=16
    radv_override_compute_shader_version=1 LP_NATIVE_VECTOR_WIDTH=128 __GL_THREADED_OPTIMIZATIONS=1
    __GL_LOG_MAX_ANISO=4 __GL_FSAA_MODE=5 __GL_YIELD=USLEEP __GL_SYNC_TO_VBLANK=0 __GL_SORT_FBCONFIGS=0
    __GL_ALLOW_UNOFFICIAL_PROTOCOL=1 __GL_NextGenCompiler=0 __GL_DXVK_OPTIMIZATIONS=1
    __GL_ExperimentalPerfStrategy=1 __GL_MaxFramesAllowed=1 __GL_SHADER_DISK_CACHE_SKIP_CLEANUP=1
    __GL_OpenGLImageSettings=3
"""
_PREFIXES: Final[Mapping[int, tuple[str, ...]]] = {
    _RADV: ("RADV_", "ACO_", "NIR_", "MESA_", "radv_"),
    _NVIDIA: ("__GL_",),
    _ANV: ("INTEL_", "NIR_", "MESA_"),
    _LAVAPIPE: ("GALLIVM_", "LP_", "NIR_", "MESA_"),
    _TURNIP: ("TU_", "NIR_", "MESA_"),
    _NVK: ("NAK_", "NIR_", "MESA_"),
}
_DRIRC_DEVICE: Final = {_RADV: "radv", _ANV: "anv", _TURNIP: "turnip", _NVK: "nvk"}
_DRIRC_FOLDERS: Final = ("/usr/share/drirc.d", "/usr/local/share/drirc.d", "/etc")

# Names that drivers and applications are known to treat in a way of their own, tried on every driver.
_OURS: Final = "orchestrator doctor"
_ENGINES: Final = (_OURS, "DXVK", "vkd3d", "mesa zink", "UnrealEngine", "Unity", "idTech", "Source2")
_APPLICATIONS: Final = (_OURS, "DOOM", "DOOMEternal", "WarThunder", "Red Dead Redemption 2", "Rage 2")
_EXECUTABLES: Final = ("doom", "vkcube", "hl2_linux")

_MINORS = range(5)
_A_VERSION = 7 << 22 | 1 << 12


def chosen(variations: Iterable[Variation], only: Collection[str]) -> list[Variation]:
    """Those variations whose text has one of some words in it, whatever their case; all without words."""
    words = [each.lower() for each in only]
    return [each for each in variations if not words or any(word in each.text.lower() for word in words)]


def chosen_features(features: Iterable[Feature], only: Collection[str]) -> list[Feature]:
    """As `chosen`, of features."""
    words = [each.lower() for each in only]
    names = {each: f"{Aspect.FEATURE.value} {'::'.join(each)}".lower() for each in features}
    return [each for each, name in names.items() if not words or any(word in name for word in words)]


def structures(features: Iterable[Feature], given: frozenset[Feature] = frozenset()) -> list[Variation]:
    """A variation for each structure, with all its members; a structure of one member is that member's."""
    by_structure: dict[str, list[Feature]] = {}
    for each in features:
        by_structure.setdefault(each[0], []).append(each)
    return [
        Variation(
            aspect=Aspect.FEATURE,
            name=name if len(members) > 1 else "::".join(members[0]),
            features=frozenset(members),
            given=given,
        )
        for name, members in sorted(by_structure.items())
    ]


def members(variation: Variation) -> list[Variation]:
    """A variation for each member of a structure; none where it has one only."""
    if len(variation.features) < 2:
        return []
    return [
        Variation(
            aspect=Aspect.FEATURE, name="::".join(each), features=frozenset({each}), given=variation.given
        )
        for each in sorted(variation.features)
    ]


def in_one_process(found: Surveyed) -> list[Variation]:
    """What is of a device, beside its features: extensions, versions, names."""
    return [
        *(
            Variation(aspect=Aspect.EXTENSION, name=name, extensions=frozenset({name}))
            for name in found.extensions
        ),
        *_versions(found.application),
        *_names(found),
    ]


def in_own_processes(found: Surveyed) -> list[Variation]:
    """What is of a process: the environment, layers, the name of the executable."""
    driver_id = found.identity.driver_id
    return [
        *(
            Variation(aspect=Aspect.ENVIRONMENT, name=name, environment=variables)
            for name, variables in environments(driver_id)
        ),
        *(
            Variation(aspect=Aspect.LAYER, name=layer, environment=layer_environment(layer))
            for layer in found.layers
        ),
        *(
            Variation(aspect=Aspect.EXECUTABLE, name=name, executable=name)
            for name in known_names(driver_id).executables
        ),
    ]


def _versions(base: ApplicationInfo) -> list[Variation]:
    others = [1 << 22 | minor << 12 for minor in _MINORS]
    return [
        Variation(
            aspect=Aspect.API_VERSION,
            name=f"{version >> 22}.{version >> 12 & 0x3FF}"
            + (f".{version & 0xFFF}" if version & 0xFFF else ""),
            application=evolve(base, api_version=version),
        )
        for version in (*others, base.api_version | 1)
        if version != base.api_version
    ]


def _names(found: Surveyed) -> list[Variation]:
    base, known = found.application, known_names(found.identity.driver_id)
    version = {f"{_A_VERSION >> 22}.{_A_VERSION >> 12 & 0x3FF}": _A_VERSION}
    values: dict[Aspect, tuple[str, Mapping[str, Any]]] = {
        Aspect.APPLICATION_NAME: ("application_name", {name: name for name in known.applications}),
        Aspect.APPLICATION_VERSION: ("application_version", version),
        Aspect.ENGINE_NAME: ("engine_name", {name: name for name in known.engines}),
        Aspect.ENGINE_VERSION: ("engine_version", version),
    }
    return [
        Variation(aspect=aspect, name=name, application=evolve(base, **{field: value}))
        for aspect, (field, named) in values.items()
        for name, value in named.items()
    ]


@frozen
class KnownNames:
    """Names for which a driver may have a profile.

    `unreadable` are patterns of profiles for which no name could be made up.
    """

    applications: tuple[str, ...]
    engines: tuple[str, ...]
    executables: tuple[str, ...]
    unreadable: tuple[str, ...]


def environments(
    driver_id: int, base: Mapping[str, str] | None = None
) -> Iterator[tuple[str, dict[str, str]]]:
    """The variables to try on a driver (VkDriverId): what each is called, and what the process gets.

    `base` is what the user has set; this process's environment where not given.
    """
    given = os.environ if base is None else base
    prefixes = _PREFIXES.get(driver_id, ())
    for name, words in _FLAGS.items():
        if name.startswith(prefixes):
            for word in words.split():
                already = given.get(name, "")
                if word not in already.split(","):
                    yield f"{name}={word}", {name: f"{already},{word}" if already else word}
    for each in _VALUES.split():
        name, _, value = each.partition("=")
        if name.startswith(prefixes) and given.get(name) != value:
            yield each, {name: value}


def layer_environment(layer: str, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that enable a layer beside those that the user has enabled (loader, "Layers")."""
    given = os.environ if base is None else base
    old, new = given.get("VK_INSTANCE_LAYERS", ""), given.get("VK_LOADER_LAYERS_ENABLE", "")
    return {
        "VK_INSTANCE_LAYERS": os.pathsep.join(filter(None, (old, layer))),
        "VK_LOADER_LAYERS_ENABLE": ",".join(filter(None, (new, layer))),
    }


def known_names(driver_id: int, folders: Iterable[str] | None = None) -> KnownNames:
    """Names to try: those of a driver's installed application profiles, and a few that any driver may know.

    The folders are those of Mesa's profiles; where not given, where Mesa looks (DRIRC_CONFIGDIR, or its own).
    Never raises.
    """
    found: dict[str, dict[str, None]] = {
        "application_name_match": dict.fromkeys(_APPLICATIONS),
        "engine_name_match": dict.fromkeys(_ENGINES),
        "executable": dict.fromkeys(_EXECUTABLES),
    }
    unreadable: list[str] = []
    device = _DRIRC_DEVICE.get(driver_id)
    if folders is None:
        configured = os.environ.get("DRIRC_CONFIGDIR", "")
        folders = (configured,) if configured else _DRIRC_FOLDERS
    paths = [
        path for folder in folders for path in [*sorted(Path(folder).glob("*.conf")), Path(folder) / "drirc"]
    ]
    for path in paths if device else ():
        for attribute, pattern in _profiles(path, str(device)):
            name = pattern if attribute == "executable" else _name_for(pattern)
            if name is None:
                unreadable.append(pattern)
            else:
                found[attribute][name] = None
    return KnownNames(
        tuple(found["application_name_match"]),
        tuple(found["engine_name_match"]),
        tuple(name for name in found["executable"] if "/" not in name),
        tuple(dict.fromkeys(unreadable)),
    )


def _profiles(path: Path, device: str) -> Iterator[tuple[str, str]]:
    """What the profiles of a driver in one file go by: attribute and value."""
    try:
        # The system's own file; the driver reads it, too.
        root = ElementTree.fromstring(path.read_bytes())  # noqa: S314
    except (OSError, ElementTree.ParseError):
        return  # not there, or nothing that the driver could read either
    for section in root.iter("device"):
        if section.get("driver") != device:
            continue
        for each in section:
            for attribute in ("application_name_match", "engine_name_match", "executable"):
                if value := each.get(attribute):
                    yield attribute, value


def _name_for(pattern: str) -> str | None:
    """A name that a pattern of a profile matches, or None where none is seen in it."""
    for part in pattern.split("|"):
        name = part.strip("^$()").replace("\\.", ".").replace(".*", "")
        try:
            if name and re.search(pattern, name):
                return name
        except re.error:
            return None
    return None
