"""How files are written so that they survive: nothing here knows Vulkan."""
