"""What was given up is tried again as it is wanted then."""

from __future__ import annotations

from dataclasses import replace

from appliance.core.rollout.catalog import CatalogVersion
from appliance.core.rollout.phase import Phase
from appliance.core.rollout.wish import TrialWish
from appliance.engine.control.retries import Retries
from appliance.engine.versions.routes import Routes, Served
from appliance.telemetry.meter import VersionMeter
from tests.domain.sample import make_version
from tests.engine.test_swaps import Stage, proven

LATER_NS = 601 * 1_000_000_000


def test_a_try_takes_what_is_wanted_by_then() -> None:
    admitted: list[CatalogVersion] = []
    routes = Routes(lambda moved: None)
    retries = Retries(
        routes=routes,
        swaps=Stage(proven()).swaps,
        admit=lambda entry, now_ns: admitted.append(entry),
        at=lambda at_ns: None,
        report=lambda *words, **more: None,
    )
    first = CatalogVersion(model=replace(make_version("m", 1), digest="d"), fingerprint="damaged")
    served = Served(
        id=1, model=first.model, fingerprint="damaged", identity=first.identity, meter=VersionMeter("m", 1)
    )
    served.phase = Phase.FAILED
    routes.put(served)
    retries.want([first])
    retries.plan(0)
    last = replace(first, fingerprint="repaired", trial=TrialWish(canary_percent=10.0))
    retries.want([last])
    retries.plan(1)
    retries.tick(LATER_NS)
    assert admitted == [last]
