"""What drivers and loaders read of a process: variables and names that may change code, or are known not to.

Facts: the lists of environment variables and driver options in Mesa's documentation, the application profiles that Mesa installs
(drirc), the environment variables of NVIDIA's driver README. A variable that a driver does not know changes nothing and costs one
process.

Guarantees: values; reading profiles never raises. What the user has set in a list of words stays.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from attrs import frozen

_RADV, _NVIDIA, _ANV, _LAVAPIPE, _TURNIP, _NVK = 3, 4, 6, 13, 18, 24
"""VkDriverId."""

_FLAGS: Final = {
    "RADV_DEBUG": [
        "nodcc",
        "nohiz",
        "nofmask",
        "nofastclears",
        "nongg",
        "nonggc",
        "splitfma",
        "invariantgeom",
        "zerovram",
        "nodynamicbounds",
        "nomeshshader",
        "noeso",
        "nogpl",
        "nobinning",
        "novrsflatshading",
        "noatocdithering",
        "nocache",
        "psocachestats",
        "epilogs",
        "llvm",
    ],
    "RADV_PERFTEST": [
        "cswave32",
        "gewave32",
        "pswave32",
        "rtwave32",
        "rtwave64",
        "nggc",
        "localbos",
        "emulate_rt",
        "nircache",
        "nosam",
    ],
    "ACO_DEBUG": ["noopt", "nosched", "novn", "validatera", "force-waitcnt", "force-waitdeps"],
    "INTEL_DEBUG": ["no8", "no16", "no32", "nofc", "spill_fs", "soft64", "noccs"],
    "GALLIVM_DEBUG": ["tgsi", "ir", "asm", "perf"],
    "LP_DEBUG": ["rast", "setup", "fence"],
    "TU_DEBUG": ["nolrz", "sysmem", "gmem", "noubwc", "nobin"],
    "NAK_DEBUG": ["serial", "spill", "annotate"],
    "NIR_DEBUG": ["clone", "serialize"],
}
"""Variables that hold a list of words, each tried alone beside what the user has set."""

_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "RADV_FORCE_VRS": ("2x2",),
    "RADV_TEX_ANISO": ("16",),
    "RADV_PROFILE_PSTATE": ("peak",),
    "MESA_VK_VERSION_OVERRIDE": ("1.3",),
    # Options of drirc are read from variables of the same name, too.
    "radv_ssbo_non_uniform": ("true",),
    "radv_tex_non_uniform": ("true",),
    "radv_lower_terminate_to_discard": ("true",),
    "radv_enable_mrt_output_nan_fixup": ("true",),
    "radv_disable_shrink_image_store": ("true",),
    "radv_disable_sinking_load_input_fs": ("true",),
    "radv_disable_trunc_coord": ("true",),
    "radv_disable_aniso_single_level": ("true",),
    "radv_disable_ngg_gs": ("true",),
    "radv_clear_lds": ("true",),
    "radv_override_uniform_offset_alignment": ("16",),
    "radv_override_compute_shader_version": ("1",),
    "LP_NATIVE_VECTOR_WIDTH": ("128",),
    "__GL_THREADED_OPTIMIZATIONS": ("1",),
    "__GL_LOG_MAX_ANISO": ("4",),
    "__GL_FSAA_MODE": ("5",),
    "__GL_YIELD": ("USLEEP",),
    "__GL_SYNC_TO_VBLANK": ("0",),
    "__GL_SORT_FBCONFIGS": ("0",),
    "__GL_ALLOW_UNOFFICIAL_PROTOCOL": ("1",),
    "__GL_NextGenCompiler": ("0",),
    "__GL_DXVK_OPTIMIZATIONS": ("1",),
    "__GL_ExperimentalPerfStrategy": ("1",),
    "__GL_MaxFramesAllowed": ("1",),
    "__GL_SHADER_DISK_CACHE_SKIP_CLEANUP": ("1",),
    "__GL_OpenGLImageSettings": ("3",),
}

_RADV_NAMES: Final = ("RADV_", "ACO_", "NIR_", "MESA_", "radv_")
_PREFIXES: Final[Mapping[int, tuple[str, ...]]] = {
    _RADV: _RADV_NAMES,
    _NVIDIA: ("__GL_",),
    _ANV: ("INTEL_", "NIR_", "MESA_"),
    _LAVAPIPE: ("GALLIVM_", "LP_", "NIR_", "MESA_"),
    _TURNIP: ("TU_", "NIR_", "MESA_"),
    _NVK: ("NAK_", "NIR_", "MESA_"),
}
_DRIRC_DEVICE: Final = {_RADV: "radv", _ANV: "anv", _TURNIP: "turnip", _NVK: "nvk"}
_DRIRC_FOLDERS: Final = ("/usr/share/drirc.d", "/usr/local/share/drirc.d", "/etc")

#: Names that drivers and applications are known to treat in a way of their own, tried on every driver.
_ENGINES: Final = (
    "orchestrator doctor",
    "DXVK",
    "vkd3d",
    "mesa zink",
    "UnrealEngine",
    "Unity",
    "idTech",
    "Source2",
)
_APPLICATIONS: Final = (
    "orchestrator doctor",
    "DOOM",
    "DOOMEternal",
    "WarThunder",
    "Red Dead Redemption 2",
    "Rage 2",
)
_EXECUTABLES: Final = ("doom", "vkcube", "hl2_linux")


@frozen
class KnownNames:
    """Names for which a driver may have a profile.

    Attributes:
        applications: VkApplicationInfo::pApplicationName.
        engines: VkApplicationInfo::pEngineName.
        executables: Name of the process's executable.
        unreadable: Patterns of profiles for which no name could be made up.
    """

    applications: tuple[str, ...]
    engines: tuple[str, ...]
    executables: tuple[str, ...]
    unreadable: tuple[str, ...]


def environments(
    driver_id: int, base: Mapping[str, str] | None = None
) -> Iterator[tuple[str, dict[str, str]]]:
    """The variables to try on a driver: what each is called, and what the process gets.

    Args:
        driver_id: VkDriverId.
        base: What the user has set; this process's environment where not given.
    """
    given = os.environ if base is None else base
    prefixes = _PREFIXES.get(driver_id, ())
    for name, words in _FLAGS.items():
        if name.startswith(prefixes):
            for word in words:
                already = given.get(name, "")
                if word not in already.split(","):
                    yield f"{name}={word}", {name: f"{already},{word}" if already else word}
    for name, values in _VALUES.items():
        if name.startswith(prefixes):
            for value in values:
                if given.get(name) != value:
                    yield f"{name}={value}", {name: value}


def layer_environment(layer: str, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that enable a layer beside those that the user has enabled (loader interface, "Layers").

    Args:
        layer: Its name.
        base: As of `environments`.
    """
    given = os.environ if base is None else base
    old, new = given.get("VK_INSTANCE_LAYERS", ""), given.get("VK_LOADER_LAYERS_ENABLE", "")
    return {
        "VK_INSTANCE_LAYERS": os.pathsep.join(filter(None, (old, layer))),
        "VK_LOADER_LAYERS_ENABLE": ",".join(filter(None, (new, layer))),
    }


def known_names(driver_id: int, folders: Iterable[str] | None = None) -> KnownNames:
    """Names to try on a driver: those of its installed application profiles, and a few that any driver may know.

    Args:
        driver_id: VkDriverId.
        folders: Where Mesa's profiles are; where not given, where Mesa looks: DRIRC_CONFIGDIR or the usual folders.
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
        root = ElementTree.fromstring(path.read_bytes())  # noqa: S314 - the system's own file, read by the driver too
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
