"""Smaller or faster variants of a model: INT8 and half precision, and their place beside the original."""
