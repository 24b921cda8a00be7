"""Generator of the Vulkan bindings, _generated.py (development time only, after the registry tables).

    python -m orchestrator.devices.vulkan.codegen            write _generated.py
    python -m orchestrator.devices.vulkan.codegen --check    exit 1 with a diff where it differs

cffi compiles the C declarations of the structures in registry.json and of the commands below into a Python
module that needs no C compiler (out-of-line ABI mode). The same registry and cffi version give the same
bytes. Needs vulkan-object and pycparser. Enums are declared as 32-bit integers, flags as 32- or 64-bit
integers, and non-dispatchable handles as uint64_t, as on every 64-bit ABI.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cffi import FFI
from vulkan_object import get_vulkan_object

from orchestrator.registry.codegen.build import array_size, canonical_names
from orchestrator.registry.codegen.output import generator_main
from orchestrator.registry.expressions import all_of, any_of
from orchestrator.registry.tables import Registry, registry

TARGET = Path(__file__).parent / "_generated.py"

COMMANDS = (
    # found without an instance
    "vkCreateInstance",
    "vkEnumerateInstanceVersion",
    "vkEnumerateInstanceExtensionProperties",
    "vkEnumerateInstanceLayerProperties",
    # of an instance and its physical devices
    "vkDestroyInstance",
    "vkGetDeviceProcAddr",
    "vkEnumeratePhysicalDevices",
    "vkGetPhysicalDeviceProperties",
    "vkGetPhysicalDeviceProperties2",
    "vkGetPhysicalDeviceFeatures2",
    "vkGetPhysicalDeviceFormatProperties",
    "vkGetPhysicalDeviceQueueFamilyProperties",
    "vkEnumerateDeviceExtensionProperties",
    "vkEnumerateDeviceLayerProperties",
    "vkCreateDevice",
    # of a device: the objects that pipelines refer to
    "vkDestroyDevice",
    "vkCreateSampler",
    "vkDestroySampler",
    "vkCreateSamplerYcbcrConversion",
    "vkDestroySamplerYcbcrConversion",
    "vkCreateDescriptorSetLayout",
    "vkDestroyDescriptorSetLayout",
    "vkCreatePipelineLayout",
    "vkDestroyPipelineLayout",
    "vkCreateRenderPass",
    "vkCreateRenderPass2",
    "vkDestroyRenderPass",
    "vkCreateShaderModule",
    "vkDestroyShaderModule",
    # caches
    "vkCreatePipelineCache",
    "vkDestroyPipelineCache",
    "vkGetPipelineCacheData",
    "vkMergePipelineCaches",
    # pipelines
    "vkCreateGraphicsPipelines",
    "vkCreateComputePipelines",
    "vkCreateRayTracingPipelinesKHR",
    "vkDestroyPipeline",
    # binaries
    "vkGetPipelineKeyKHR",
    "vkCreatePipelineBinariesKHR",
    "vkDestroyPipelineBinaryKHR",
    "vkGetPipelineBinaryDataKHR",
    "vkReleaseCapturedPipelineDataKHR",
    # identifiers of modules
    "vkGetShaderModuleIdentifierEXT",
    "vkGetShaderModuleCreateInfoIdentifierEXT",
    # what a driver tells about a pipeline
    "vkGetPipelineExecutablePropertiesKHR",
    "vkGetPipelineExecutableStatisticsKHR",
    "vkGetPipelineExecutableInternalRepresentationsKHR",
)
"""The commands that the package uses, by their core names where there is one."""

GLOBAL_COMMANDS = frozenset(COMMANDS[:4])

_HEADER = """\
# Written by `python -m orchestrator.devices.vulkan.codegen` from Vulkan {version}; do not edit.
# COMMANDS: name -> (level, type of the function pointer, names to ask the loader for, what provides it).
"""

# C types that declarations may use.
_BUILT_IN = frozenset(
    {"void", "char", "int", "float", "double", "size_t"}
    | {f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
_PLATFORM_TYPES = {
    "VkBool32": "uint32_t",
    "VkDeviceAddress": "uint64_t",
    "VkDeviceSize": "uint64_t",
    "VkSampleMask": "uint32_t",
}


class _Declarations:
    def __init__(self, vk: Any, tables: Registry) -> None:
        self._vk = vk
        self._tables = tables
        self._canonical = canonical_names(vk)
        self._simple: dict[str, str] = {}
        self._functions: dict[str, str] = {}
        self._structs: dict[str, str] = {}

    def text(self) -> str:
        for name in self._tables.structs:
            self._add_struct(name)
        for name in COMMANDS:
            command = self._vk.commands[name]
            self._add_function(f"PFN_{name}", command.cFunctionPointer, command.params, command.returnType)
        self._add_type("PFN_vkVoidFunction")
        self._add_type("VkInstance")
        return "\n".join(
            (
                *sorted(self._simple.values()),
                *(f"typedef {self._keyword(name)} {name} {name};" for name in sorted(self._structs)),
                *self._functions.values(),
                *self._structs.values(),
                "",
            )
        )

    def _name(self, name: str) -> str:
        return self._canonical.get(name, name)

    def _keyword(self, name: str) -> str:
        return "union" if self._vk.structs[name].union else "struct"

    def _add_struct(self, name: str) -> None:
        if name in self._structs:
            return
        lines = []
        for member in self._vk.structs[name].members:
            type_name = self._name(member.type)
            self._add_type(type_name)
            if type_name in self._tables.structs and member.fullType == member.type:
                self._add_struct(type_name)
            lines.append(f"    {self._declaration(member.cDeclaration)};")
        self._structs[name] = "\n".join((f"{self._keyword(name)} {name} {{", *lines, "};"))

    def _add_function(self, name: str, typedef: str, params: Iterable[Any], result: str) -> None:
        for type_name in (*(param.type for param in params), result.rstrip("*").strip()):
            self._add_type(self._name(type_name))
        self._functions[name] = self._declaration(typedef.replace("VKAPI_PTR ", ""))

    def _add_type(self, name: str) -> None:
        if name in _BUILT_IN or name in self._simple or name in self._functions:
            return
        vk = self._vk
        if name in _PLATFORM_TYPES:
            self._simple[name] = f"typedef {_PLATFORM_TYPES[name]} {name};"
        elif name in vk.enums:
            self._simple[name] = f"typedef int32_t {name};"
        elif name in vk.flags or name in vk.bitmasks:
            width = (vk.flags.get(name) or vk.bitmasks[name]).bitWidth
            self._simple[name] = f"typedef uint{width}_t {name};"
        elif name in vk.handles:
            kind = f"struct {name}_T *" if vk.handles[name].dispatchable else "uint64_t "
            self._simple[name] = f"typedef {kind}{name};"
        elif name in vk.funcPointers:
            pointer = vk.funcPointers[name]
            self._add_function(name, pointer.cFunctionPointer, pointer.params, pointer.returnType)
        elif name in vk.structs and name not in self._tables.structs:
            # Only pointers to it are used, such as by callbacks that the package does not install.
            self._simple[name] = f"typedef {self._keyword(name)} {name} {name};"
        elif name not in vk.structs:
            raise ValueError(f"type {name}: the registry does not say what it is")

    def _declaration(self, text: str) -> str:
        text = re.sub(r"\bVk\w+", lambda match: self._name(match[0]), " ".join(text.split()))
        constants = self._tables.constants
        return re.sub(r"\[([^\]]+)\]", lambda match: f"[{array_size(match[1], constants)}]", text)


def declarations() -> str:
    """C declarations of every structure of the registry tables and every command, without the includes."""
    return _Declarations(get_vulkan_object(), registry()).text()


def command_table(vk: Any) -> dict[str, tuple[str, str, tuple[str, ...], str]]:
    """For each command: level, function pointer type, names to look it up by, and what provides it."""
    table = {}
    for name in COMMANDS:
        command = vk.commands[name]
        same = sorted(each for each, other in vk.commands.items() if other.alias == name)
        if name in GLOBAL_COMMANDS:
            level = "global"
        elif command.device and name != "vkGetDeviceProcAddr":  # looked up through the instance
            level = "device"
        else:
            level = "instance"
        requires = any_of(
            "" if provider == "VK_VERSION_1_0" else all_of((provider, depends or ""))
            for each in (name, *same)
            for provider, depends in sorted(vk.commands[each].definingRequirements.items())
        )
        table[name] = (level, f"PFN_{name}", (name, *same), requires)
    return table


def generate() -> str:
    """Text of _generated.py."""
    ffi = FFI()
    ffi.cdef(
        declarations() + "PFN_vkVoidFunction vkGetInstanceProcAddr(VkInstance instance, const char* pName);"
    )
    ffi.set_source("orchestrator.devices.vulkan._generated", None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "generated.py"
        with contextlib.redirect_stdout(None):  # it prints the name of the temporary file
            ffi.emit_python_code(str(path))
        code = path.read_text(encoding="utf-8")
    rows = "".join(f"    {name!r}: {row!r},\n" for name, row in command_table(get_vulkan_object()).items())
    return _HEADER.format(version=registry().version) + code + f"\nCOMMANDS = {{\n{rows}}}\n"


def main(arguments: list[str] | None = None) -> int:
    """Write _generated.py; see `generator_main`."""
    return generator_main("orchestrator.devices.vulkan.codegen", TARGET, generate, arguments)


if __name__ == "__main__":
    sys.exit(main())
