"""Message classes of the wire, made from ``wire.binpb`` in a descriptor pool of our own.

Other packages register the same names in protobuf's process-wide pool, and two of them cannot live in one process;
these classes can live beside any of them. ``proto/build.py`` makes the descriptors and the type stubs.
"""
