"""Packs: the caches of many devices in one folder, joined, signed and installed."""
