"""Counting, logging, tracing, and the one snapshot that everybody renders who shows figures. Decides
nothing, and never delays a request to be read."""
