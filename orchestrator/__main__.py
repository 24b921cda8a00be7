"""`python -m orchestrator`: the command line."""

import sys

from orchestrator.cli import main

if __name__ == "__main__":
    sys.exit(main())
