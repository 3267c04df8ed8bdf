"""Packages: container, signatures, packing, checks."""
