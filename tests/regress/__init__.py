"""Tests of the regression lab."""
