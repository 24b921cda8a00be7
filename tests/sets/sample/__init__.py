"""Tests of the sample set."""
