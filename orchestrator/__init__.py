"""Compile Vulkan pipeline sets in parallel, and know what it costs."""
