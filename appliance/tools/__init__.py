"""Tools that make, measure and pack models, for people; what serves knows nothing of them.

The command line loads one when its command is called. Some need the package ``onnx`` (the extra ``models``).
"""
