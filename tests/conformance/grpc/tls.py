"""gRPC over TLS, for tests: a server that shows a certificate, and clients that trust it and show theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from tests.conformance.grpc.streaming import ask
from tests.frontend.grpc.certificate_files import Pair, make_signed


def mutual_tls(tmp_path: Path, authority: Pair) -> dict[str, Any]:
    """Settings of a server that shows a certificate and asks for one."""
    server = make_signed(tmp_path, "server", authority)
    return {
        "tls_certificate": str(server.certificate),
        "tls_key": str(server.key),
        "tls_client_ca": str(authority.certificate),
    }


def over_tls(address: str, authority: Pair, own: Pair | None = None) -> grpc.Channel:
    """A channel that trusts ``authority`` and shows ``own``."""
    credentials = grpc.ssl_channel_credentials(
        authority.certificate.read_bytes(),
        own.key.read_bytes() if own else None,
        own.certificate.read_bytes() if own else None,
    )
    return grpc.secure_channel(address, credentials, options=[("grpc.use_local_subchannel_pool", 1)])


def infer(channel: grpc.Channel, model: str = "m") -> bytes:
    method = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None)
    answer: bytes = method(ask(model, "a").SerializeToString(), timeout=20)
    return answer
