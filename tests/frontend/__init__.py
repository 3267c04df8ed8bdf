"""Tests of what clients talk to."""
