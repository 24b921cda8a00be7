"""Serves the process that started this one: `python -m orchestrator.children SERVICE LIMITS` (an internal entry point)."""

import sys

from orchestrator.children.child import main

sys.exit(main())
