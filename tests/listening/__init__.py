"""Listening: sockets, settings, certificates."""
