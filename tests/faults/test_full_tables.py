"""Tables that clients fill, filled twice: whoever else is there goes on being served by the front end itself, and so is
who comes later."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from appliance.frontend.native.heads import HEADS_MAX
from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.stub import Stub
from tests.conftest import Serve
from tests.faults.fake_models import write_fake
from tests.faults.leased import NATIVE_FAKES, leased_of, message, teach
from tests.fronts import needs_native

pytestmark = needs_native
FRONT_END = NATIVE_FAKES
AT_ONCE = 256


def _head(number: int) -> pb.ModelInferRequest:
    """A request like others but for a parameter that means nothing here."""
    request = message("flooded")
    request.parameters["session"].string_param = f"session {number}"
    return request


def _ask(stub: Stub, requests: Iterable[pb.ModelInferRequest]) -> None:
    for call in [stub.begin("ModelInfer", request) for request in requests]:
        assert call.result()


def _figure(daemon: ApplianceProcess, name: str) -> int:
    found = re.search(rf"^appliance_front_end_{name} (\d+)$", daemon.get("/metrics").decode(), re.MULTILINE)
    assert found is not None, name
    return int(found[1])


@pytest.mark.timeout(300)
def test_a_client_that_fills_the_templates_puts_out_its_own(serve: Serve, tmp_path: Path) -> None:
    unix = f"unix:{tmp_path}/grpc"
    write_fake(tmp_path / "models", "flooded")
    write_fake(tmp_path / "models", "quiet")
    daemon = serve(tmp_path / "models", {"grpc": {"addresses": ["127.0.0.1:0", unix]}})
    teach(daemon, "quiet")
    known = leased_of(daemon, "quiet")
    asked = 0
    with Stub(daemon.grpc) as quiet, Stub(unix) as flood:
        for first in range(0, 2 * HEADS_MAX, AT_ONCE):
            for _ in range(2):  # where there is no room, only what comes again is worth some
                _ask(flood, (_head(number) for number in range(first, first + AT_ONCE)))
            quiet.infer(message("quiet"))
            asked += 1
        assert leased_of(daemon, "quiet") == known + asked, "all by the front end"
        before = leased_of(daemon, "flooded")
        newest = _head(2 * HEADS_MAX - 1)
        for _ in range(3):
            flood.infer(newest)
        assert leased_of(daemon, "flooded") == before + 3
        late = message("quiet", width=4)
        late.parameters["who"].string_param = "late"
        quiet.infer(late)
        quiet.infer(late)
    assert leased_of(daemon, "quiet") == known + asked + 1, "the first request made room"
    assert _figure(daemon, "templates") == HEADS_MAX
    assert _figure(daemon, "retired_templates_total") >= HEADS_MAX
