"""Which version of the package this is."""

from __future__ import annotations

VERSION = "0.1.0"
"""What pyproject.toml takes it from: looking it up in what is installed costs as much as the command line."""
