"""Tests of the schedule."""
