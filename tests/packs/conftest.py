"""The fixtures of the tests of runs."""

from tests.run.conftest import archive, folder, marker

__all__ = ["archive", "folder", "marker"]
