"""Serves the process that started this one (internal): `python -m orchestrator.children SERVICE [LIMITS]`."""

from orchestrator.children.serving import main

main()
