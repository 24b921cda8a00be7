"""The Vulkan device: generated bindings, loader, device."""
