"""The command line: one module a verb. Nothing else of the package imports it, cyclopts or rich."""

from orchestrator.cli.application import app as app
from orchestrator.cli.application import main as main
