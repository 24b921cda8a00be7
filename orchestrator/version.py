"""Which version of the package this is."""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` takes as long as starting Python
if TYPE_CHECKING:
    from typing import Final

VERSION: Final = "0.1.0"
"""What pyproject.toml takes it from: looking it up in what is installed costs as much as the command line."""
DISTRIBUTION: Final = "vulkan-pipeline-orchestrator"
"""What `pip install` calls it: `orchestrator` is another project there."""
