"""All boundaries, by name."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fronts import FRONT_ENDS
from tests.fuzz import (
    configurations,
    grpc_calls,
    http_requests,
    model_configurations,
    onnx_files,
    packages,
    status_documents,
    store_files,
    worker_messages,
)
from tests.fuzz.boundary import Boundary

OF_FILES: Mapping[str, Boundary] = {
    "configurations": configurations.BOUNDARY,
    "model_configurations": model_configurations.BOUNDARY,
    "onnx_files": onnx_files.BOUNDARY,
    "packages": packages.BOUNDARY,
    "status_documents": status_documents.BOUNDARY,
    "store_files": store_files.BOUNDARY,
    "worker_messages": worker_messages.BOUNDARY,
}
OF_SOCKETS: Mapping[str, Boundary] = {
    f"{name}_{front_end}": boundary
    for front_end in FRONT_ENDS
    for name, boundary in (
        ("http_requests", http_requests.boundary(front_end)),
        ("grpc_calls", grpc_calls.boundary("grpc", front_end)),
        ("control_calls", grpc_calls.boundary("control", front_end)),
        ("local_calls", grpc_calls.boundary("local", front_end)),
    )
}
BOUNDARIES: Mapping[str, Boundary] = {**OF_FILES, **OF_SOCKETS}
