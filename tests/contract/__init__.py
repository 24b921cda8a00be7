# Purpose: the cases that every Device passes, whatever compiles behind it.
"""Contract tests of the Device seam."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.contract.cases")
