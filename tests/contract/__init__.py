"""The cases that every Device passes, whatever compiles behind it."""
