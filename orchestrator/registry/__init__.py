"""What the Khronos registry says, as data; see `orchestrator.registry.tables`."""

from orchestrator.registry.tables import Registry as Registry
from orchestrator.registry.tables import registry as registry
from orchestrator.registry.tables import structs_by_type as structs_by_type
