"""Writes ../registry.json from the Khronos registry: run at development time, when vulkan-object changes.

    python -m orchestrator.registry.codegen           write registry.json
    python -m orchestrator.registry.codegen --check   exit 1 with a diff where it is not what would be written

The same registry gives the same bytes. Assumptions: vulkan-object (a development dependency) is installed.
The numbers of the SPIR-V capabilities, which vk.xml does not have, are facts of the SPIR-V grammar kept in
spirv_capabilities.json here.
"""
