"""Fixtures of the tests of taking samples."""

from tests.cli.conftest import small_set as small_set
