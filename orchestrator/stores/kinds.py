"""Names of files of stores, for those who tell files apart without importing what reads them."""

from __future__ import annotations

from typing import Final

BINARY_EXPORT_MAGIC: Final = b"\x89OPCB\r\n\x1a"
"""How an export of binaries begins; here, so that whoever tells files apart need not import the store."""
