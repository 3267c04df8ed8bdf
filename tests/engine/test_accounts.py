"""Requests that an edge refused are counted and logged as what they were, on the version that they were for."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.core.rollout.phase import Phase
from appliance.core.rollout.reasons import Crashed, Failed
from appliance.domain.errors import ApplianceError, InvalidRequest, NotReady, QueueFull
from appliance.engine.requests.outcome import Accounts
from appliance.engine.versions.routes import Routes
from appliance.engine.versions.served import Served
from appliance.telemetry.meter import Result, VersionMeter
from tests.domain.sample import make_version
from tests.engine.versions import make_served
from tests.simulation.engine_world import SilentLog


class Lines(SilentLog):
    """Remembers the lines about refused requests."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def rejected(self, **fields: Any) -> None:
        self.said.append(fields)


@pytest.fixture
def served() -> Served:
    return make_served(
        id=1,
        model=make_version("m", 3),
        fingerprint="",
        meter=VersionMeter("m", 3),
        phase=Phase.FAILED,
        setback=Failed(why=Crashed(detail="died", repeated=True)),
    )


@pytest.mark.parametrize("version", ["", "3"])
def test_a_request_for_what_is_quarantined_is_unavailable_and_not_invalid(
    served: Served, version: str
) -> None:
    routes, lines = Routes(), Lines()
    routes.put(served)
    accounts = Accounts(routes, lines, lambda: 0, 0)
    with pytest.raises(NotReady) as refused:
        routes.resolve("m", version)
    accounts.rejected(refused.value, "7", "")
    assert [(line["result"], line["model"], line["version"]) for line in lines.said] == [
        (Result.UNAVAILABLE, "m", 3)
    ]
    assert dict(served.meter.frozen().results)[Result.UNAVAILABLE] == 1
    assert not dict(served.meter.frozen().results).get(Result.INVALID)


@pytest.mark.parametrize(
    ("error", "result"), [(InvalidRequest("x"), Result.INVALID), (QueueFull("x"), Result.REFUSED)]
)
def test_others_are_what_they_are(served: Served, error: ApplianceError, result: Result) -> None:
    lines = Lines()
    Accounts(Routes(), lines, lambda: 0, 0).rejected(error, "7", "")
    assert [line["result"] for line in lines.said] == [result]
