"""Tests of the statistics and reports."""
