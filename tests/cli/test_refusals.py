"""What ``appliance infer`` says of a server that refuses."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.cli.oip_client import SERVICE
from appliance.frontend.grpc.status import PUSHBACK

Said = list[str]


@pytest.fixture
def refusing() -> Iterator[tuple[Said, str]]:
    """A server that refuses whatever is asked, with the push-back that is in the list."""
    said: Said = []

    def refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata(tuple((PUSHBACK, each) for each in said))
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "not in memory")

    methods = {
        name: grpc.unary_unary_rpc_method_handler(refuse)
        for name in ("ModelMetadata", "ModelConfig", "ModelInfer")
    }
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield said, f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", "(RESOURCE_EXHAUSTED)"),
        ("420", "(RESOURCE_EXHAUSTED); try again in 0.42 s"),
        ("-1", "(RESOURCE_EXHAUSTED); another try is of no use"),
    ],
)
def test_when_another_try_is_worth_it(
    refusing: tuple[Said, str], said: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answers, address = refusing
    answers += [said] * bool(said)
    assert main(["infer", "m", "--zeros", "--url", address]) == Exit.REFUSED
    assert capsys.readouterr().err.rstrip().endswith(told)
