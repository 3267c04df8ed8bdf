"""The peers' protocol messages, compiled from oip.proto when a process starts.

Each peer is a process of its own, so the default descriptor pool belongs to it alone.
"""

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

PROTO = Path(__file__).with_name("oip.proto")


def compile_oip() -> tuple[Any, Any]:
    """The generated message module and the generated service module."""
    protoc: Any = importlib.import_module("grpc_tools.protoc")
    with tempfile.TemporaryDirectory(prefix="oip-") as out:
        arguments = [
            "protoc",
            f"-I{PROTO.parent}",
            f"--python_out={out}",
            f"--grpc_python_out={out}",
            str(PROTO),
        ]
        if protoc.main(arguments):
            raise RuntimeError(f"protoc could not compile {PROTO}; its message is above")
        sys.path.insert(0, out)
        try:
            return importlib.import_module("oip_pb2"), importlib.import_module("oip_pb2_grpc")
        finally:
            sys.path.remove(out)
