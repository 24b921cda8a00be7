"""Tests of taking samples."""
