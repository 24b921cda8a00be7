# Purpose: writes ../registry.json from the Khronos registry; run at development time only, when the pinned
# version of vulkan-object changes. Nothing at run time imports this package.
#   python -m orchestrator.registry.codegen           write registry.json
#   python -m orchestrator.registry.codegen --check   exit 1 with a diff where it is not what would be written
# Guarantees: the same registry gives the same bytes.
# Assumptions: vulkan-object (a development dependency) is installed. The numbers of the SPIR-V capabilities,
# which vk.xml does not have, are facts of the SPIR-V grammar kept in spirv_capabilities.json here.
"""Generator of the registry tables (development time only)."""
