"""Message classes of the wire, made from ``wire.binpb`` in a descriptor pool of our own.

Other packages register the same names in protobuf's process-wide pool, and two of them cannot live in one process;
these classes can live beside any of them. ``proto/build.py`` makes the descriptors and the type stubs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

DESCRIPTORS = "wire.binpb"


@cache
def private_pool() -> descriptor_pool.DescriptorPool:
    """The pool that holds our files and nothing else."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_files():
        pool.Add(file)
    return pool


def descriptor_files() -> Sequence[descriptor_pb2.FileDescriptorProto]:
    """The descriptors of our files, each after those it imports."""
    contents = resources.files(__package__).joinpath(DESCRIPTORS).read_bytes()
    return descriptor_pb2.FileDescriptorSet.FromString(contents).file


def module_contents(file_name: str) -> dict[str, object]:
    """What a generated module of ``file_name`` would hold: message classes, enums and the enums' values."""
    file = private_pool().FindFileByName(file_name)
    contents: dict[str, object] = {"DESCRIPTOR": file}
    for name, message in file.message_types_by_name.items():
        contents[name] = message_factory.GetMessageClass(message)
    for name, enum in file.enum_types_by_name.items():
        contents[name] = EnumTypeWrapper(enum)
        contents.update({value.name: value.number for value in enum.values})
    return contents
