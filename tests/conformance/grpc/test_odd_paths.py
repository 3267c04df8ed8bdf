"""Calls whose path is no text: they end, and whoever calls next is served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from appliance.frontend.grpc.health import SERVICE
from native.tests.raw_client import END_HEADERS, END_STREAM, HEADERS, RawClient
from tests.appliance_process import ApplianceProcess

BACK_S = 30.0
ODD = b"\x83\x86\x44\x05/\xe5/\xff\xfe\x41\x01a\x40\x02te\x08trailers\x5f\x10application/grpc"
"""Headers by hand: POST, http, the path, an authority, what a call has."""


@pytest.mark.every_front_end
def test_a_path_that_is_no_text_ends_no_server(
    serve: Callable[..., ApplianceProcess], model_directory: Callable[..., Path]
) -> None:
    daemon = serve(model_directory("add_sub"))
    host, port = daemon.grpc.rsplit(":", 1)
    for _ in range(2):
        with RawClient((host, int(port))) as client:
            client.send(HEADERS, END_HEADERS | END_STREAM, 1, ODD)
            client.end()
        _assert_served(daemon.grpc)


def _assert_served(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        live = channel.unary_unary(f"/{SERVICE}/ServerLive", None, None)
        assert live(b"", wait_for_ready=True, timeout=BACK_S) == b"\x08\x01"
