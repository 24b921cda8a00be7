"""Serves the process that started this one (internal): `python -m orchestrator.children SERVICE LIMITS`."""

import sys

from orchestrator.children.protocol import main

sys.exit(main())
