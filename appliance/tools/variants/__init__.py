"""Smaller or faster variants of a model: INT8 and half precision, and their place beside the original. A
variant becomes a version only where it holds its tolerances."""
