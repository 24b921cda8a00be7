"""Processes that survive a driver: a server starts, watches and replaces the process that compiles."""
