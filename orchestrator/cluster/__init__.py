"""Compiles sets on many machines, as tasks of a Dask cluster; the extra `cluster` installs what it needs."""
