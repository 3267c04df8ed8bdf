"""Fuzzers; each runs for as long as it is told, and its seeds run with every test."""
