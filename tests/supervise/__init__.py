"""Tests of the processes that survive a driver."""
