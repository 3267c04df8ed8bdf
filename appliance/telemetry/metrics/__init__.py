"""Figures as Prometheus families: pure renderings of a snapshot, one module for each part of it: engine, versions,
front end (docs/METRICS.md). Reads no figure by itself."""
