"""Accelerators as the driver tells of them: which there are, how they are, what they used."""
