"""How much the campaigns try: kills, chaos, damage, storms, mutants and fuzzing.

A run of all tests tries a fixed share. `make campaigns` sets ORCHESTRATOR_CAMPAIGNS and runs them whole.
"""

from __future__ import annotations

import os

IS_WHOLE = bool(os.environ.get("ORCHESTRATOR_CAMPAIGNS"))

STRIDE = 1 if IS_WHOLE else 3
"""Of the cases that a campaign counts off, each so many-th is tried."""


def tries(share: int, whole: int) -> int:
    """How often a campaign tries: a share of it, or all."""
    return whole if IS_WHOLE else share
