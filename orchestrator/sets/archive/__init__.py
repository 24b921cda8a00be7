"""Archives: `.foz` files read, written and proven."""
