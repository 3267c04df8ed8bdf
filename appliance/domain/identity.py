"""What the server calls itself and which extensions of the protocol it has; the same over gRPC and HTTP."""

from __future__ import annotations

from typing import Final

SERVER_NAME: Final = "appliance"
EXTENSIONS: Final = (
    "classification",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
    "binary_tensor_data",
    "parameters",
    "logging",
    "trace",
)
