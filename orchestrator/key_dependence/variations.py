"""The variations of a bisection, and the variables and names that drivers are known to read.

Features are tried by structure. If a structure matters, or cannot be enabled as a whole, each member is tried
alone; if no member matters alone, the result is the structure. In another round, a feature that matters is in
the baseline, and all features that do not matter alone are tried again.

Sources: the environment variables and driver options in Mesa's documentation, the application profiles that
Mesa installs (drirc), the README of NVIDIA's driver. An unknown variable costs one process and changes
nothing. Words that the user has set in a list stay.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from attrs import evolve, frozen
from msgspec.structs import replace

from orchestrator.devices.request import Feature
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
"""Variables with a list of words; each word is tried alone, in addition to those that the user has set."""

# Mesa also reads drirc options from variables of the same name.
_VALUES: Final = """
    RADV_FORCE_VRS=2x2 RADV_TEX_ANISO=16 RADV_PROFILE_PSTATE=peak MESA_VK_VERSION_OVERRIDE=1.3
    radv_ssbo_non_uniform=true radv_tex_non_uniform=true radv_lower_terminate_to_discard=true
    radv_enable_mrt_output_nan_fixup=true radv_disable_shrink_image_store=true
    radv_disable_sinking_load_input_fs=true radv_disable_trunc_coord=true radv_disable_aniso_single_level=true
    radv_disable_ngg_gs=true radv_clear_lds=true radv_override_uniform_offset_alignment=16
    radv_override_compute_shader_version=1 radv_override_graphics_shader_version=1 radv_split_fma=true
    radv_rt_wave64=true radv_no_implicit_varying_subgroup_size=true radv_force_exact_glsl_fma=true
    radv_force_nan_preserve_min_max=true LP_NATIVE_VECTOR_WIDTH=128 __GL_THREADED_OPTIMIZATIONS=1
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

# Names that some drivers treat specially, tried on every driver, by the attribute of Mesa's profiles.
_OURS: Final = "orchestrator doctor"
_APPLICATIONS: Final = (_OURS, "DOOM", "DOOMEternal", "WarThunder", "Red Dead Redemption 2", "Rage 2")
_ENGINES: Final = (_OURS, "DXVK", "vkd3d", "mesa zink", "UnrealEngine", "Unity", "idTech", "Source2")
_NAMES: Final = {
    "application_name_match": _APPLICATIONS,
    "engine_name_match": _ENGINES,
    "executable": ("doom", "vkcube", "hl2_linux"),
}

_MINORS = range(5)
_A_VERSION = 7 << 22 | 1 << 12


def structures(features: Iterable[Feature], given: frozenset[Feature] = frozenset()) -> list[Variation]:
    """One variation per structure with all its members; a single member gives the variation its name."""
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


def parts(variation: Variation) -> list[Variation]:
    """A variation's features by structure, or those of one structure by member; empty for a single one."""
    by_structure = structures(variation.features, variation.given)
    if len(by_structure) == 1:
        by_structure = [
            Variation(
                aspect=Aspect.FEATURE, name="::".join(each), features=frozenset({each}), given=variation.given
            )
            for each in sorted(variation.features)
        ]
    return [replace(each, groups=variation.groups) for each in by_structure] if len(by_structure) > 1 else []


def besides_features(found: Surveyed) -> list[Variation]:
    """The variations of extensions, of what the application tells, and of the process."""
    base, driver_id = found.application, found.identity.driver_id
    names = known_names(driver_id)
    versions = (*(1 << 22 | minor << 12 for minor in _MINORS), base.api_version | 1)
    told: list[tuple[Aspect, str, Any]] = [
        *((Aspect.API_VERSION, "api_version", each) for each in versions if each != base.api_version),
        *((Aspect.APPLICATION_NAME, "application_name", each) for each in names.applications),
        (Aspect.APPLICATION_VERSION, "application_version", _A_VERSION),
        *((Aspect.ENGINE_NAME, "engine_name", each) for each in names.engines),
        (Aspect.ENGINE_VERSION, "engine_version", _A_VERSION),
    ]
    environment = [(Aspect.ENVIRONMENT, *each) for each in _environments(driver_id)]
    environment += [(Aspect.LAYER, each, _layer_environment(each)) for each in found.layers]
    return [
        *(
            Variation(aspect=Aspect.EXTENSION, name=name, extensions=frozenset({name}))
            for name in found.extensions
        ),
        *(
            Variation(
                aspect=aspect,
                name=value if isinstance(value, str) else _version_text(value),
                application=evolve(base, **{field: value}),
            )
            for aspect, field, value in told
        ),
        *(
            Variation(aspect=aspect, name=name, environment=variables)
            for aspect, name, variables in environment
        ),
        *(Variation(aspect=Aspect.EXECUTABLE, name=name, executable=name) for name in names.executables),
    ]


def _version_text(version: int) -> str:
    patch = f".{version & 0xFFF}" if version & 0xFFF else ""
    return f"{version >> 22}.{version >> 12 & 0x3FF}{patch}"


def out_of_reach(found: Surveyed) -> list[tuple[Variation, str]]:
    """Variations that cannot be tried on a device, each with the reason."""
    rows = (
        (
            Aspect.EXTENSION,
            found.extensions_not_alone,
            "the version includes it, it excludes another one, or it needs its features",
        ),
        (Aspect.LAYER, found.layers_active, "it is active already, so the baseline has it"),
        (
            Aspect.EXECUTABLE,
            known_names(found.identity.driver_id).unreadable,
            "the driver has a profile for it that a name alone does not select",
        ),
    )
    return [(Variation(aspect=aspect, name=name), reason) for aspect, names, reason in rows for name in names]


@frozen
class KnownNames:
    """Names for which a driver may have a profile; `unreadable` are patterns that give no name."""

    applications: tuple[str, ...]
    engines: tuple[str, ...]
    executables: tuple[str, ...]
    unreadable: tuple[str, ...]


def _environments(driver_id: int) -> Iterator[tuple[str, dict[str, str]]]:
    """The variables to try on a driver (VkDriverId): the name of each variation, and its environment."""
    prefixes = _PREFIXES.get(driver_id, ())
    for name, words in _FLAGS.items():
        already = os.environ.get(name, "")
        for word in words.split() if name.startswith(prefixes) else ():
            if word not in already.split(","):
                yield f"{name}={word}", {name: f"{already},{word}" if already else word}
    for each in _VALUES.split():
        name, _, value = each.partition("=")
        if name.startswith(prefixes) and os.environ.get(name) != value:
            yield each, {name: value}


def set_here(driver_id: int) -> dict[str, str]:
    """Those of the variables to try that the user has set, so that the baseline has them."""
    known = (*_FLAGS, *(each.partition("=")[0] for each in _VALUES.split()))
    prefixes = _PREFIXES.get(driver_id, ())
    return {name: os.environ[name] for name in known if name.startswith(prefixes) and os.environ.get(name)}


def _layer_environment(layer: str) -> dict[str, str]:
    """The variables that enable a layer in addition to the user's (Vulkan loader documentation, "Layers")."""
    old, new = os.environ.get("VK_INSTANCE_LAYERS", ""), os.environ.get("VK_LOADER_LAYERS_ENABLE", "")
    return {
        "VK_INSTANCE_LAYERS": os.pathsep.join(filter(None, (old, layer))),
        "VK_LOADER_LAYERS_ENABLE": ",".join(filter(None, (new, layer))),
    }


def known_names(driver_id: int) -> KnownNames:
    """Names to try: those in a driver's installed application profiles, and a few for every driver.

    The profiles are those that Mesa reads (in DRIRC_CONFIGDIR, or its own folders). Never raises.
    """
    found = {name: dict.fromkeys(names) for name, names in _NAMES.items()}
    unreadable: dict[str, None] = {}
    device = _DRIRC_DEVICE.get(driver_id)
    configured = os.environ.get("DRIRC_CONFIGDIR", "")
    for folder in map(Path, ((configured,) if configured else _DRIRC_FOLDERS) if device else ()):
        for path in (*sorted(folder.glob("*.conf")), folder / "drirc"):
            for profile in _profiles(path, device):
                # Mesa asks for all attributes of a profile.
                pattern = profile.get("executable_regexp", "")
                if pattern or profile.get("sha1"):
                    unreadable[pattern or profile.get("executable", "")] = None
                    continue
                for attribute in _NAMES:
                    value = profile.get(attribute)
                    name = value if attribute == "executable" else _name_for(value) if value else None
                    if name:
                        found[attribute][name] = None
                    elif value:
                        unreadable[value] = None
    applications, engines, executables = (tuple(names) for names in found.values())
    executables = tuple(name for name in executables if "/" not in name and name not in (".", ".."))
    return KnownNames(applications, engines, executables, tuple(unreadable))


def _profiles(path: Path, device: str | None) -> Iterator[ElementTree.Element]:
    """A driver's profiles in one file of the system, which the driver reads as well."""
    try:
        root = ElementTree.fromstring(path.read_bytes())  # noqa: S314
    except (OSError, ElementTree.ParseError, LookupError, ValueError):  # the last two: its encoding
        return  # missing, or unreadable for the driver too
    for section in root.iter("device"):
        if section.get("driver") == device:
            yield from section


def _name_for(pattern: str) -> str | None:
    """A name that matches a profile's pattern, or None if none can be derived."""
    for part in pattern.split("|"):
        name = part.strip("^$()").replace("\\.", ".").replace(".*", "")
        try:
            if name and re.search(pattern, name):
                return name
        except re.error:
            return None
    return None
