"""The health service keeps no more of a client's words than a model's name can be long."""

from __future__ import annotations

import asyncio

import pytest
from grpc_health.v1 import health_pb2

from appliance.domain.errors import UnknownModel
from appliance.engine.port import EnginePort, IndexEntry
from appliance.frontend.grpc import health as health_module
from appliance.frontend.grpc.health import WOKEN, Health, HealthService, health_of
from tests.domain.sample import make_version
from tests.frontend.grpc.engine_double import EngineDouble
from tests.frontend.grpc.test_stream import settle

LONGEST = 1024


def asked(service: str) -> bytes:
    return bytes(health_pb2.HealthCheckRequest(service=service).SerializeToString())


async def first_told(engine: EngineDouble, service: str) -> Health:
    """What a watch says first."""
    told: asyncio.Queue[bytes] = asyncio.Queue()

    async def read() -> bytes:
        return asked(service)

    task = asyncio.ensure_future(HealthService(engine).watch(read, told.put))
    await settle()
    task.cancel()
    return Health(health_pb2.HealthCheckResponse.FromString(told.get_nowait()).status)


@pytest.mark.parametrize("letter", ["m", "\u65e5"])
async def test_names_that_are_too_long_are_nobodys_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, letter: str
) -> None:
    looked_up: list[str] = []

    def health(engine: EnginePort, service: str) -> Health:
        looked_up.append(service)
        return health_of(engine, service)

    monkeypatch.setattr(health_module, "health_of", health)
    engine = EngineDouble(make_version(letter * LONGEST))
    name = letter * (1 << 20)
    assert await first_told(engine, name) is Health.SERVICE_UNKNOWN
    with pytest.raises(UnknownModel):
        HealthService(engine).check(asked(name))
    assert {len(service) for service in looked_up} == {LONGEST + 1}


async def test_names_as_long_as_they_may_be_are_known() -> None:
    engine = EngineDouble(make_version("m" * LONGEST))
    assert await first_told(engine, "m" * LONGEST) is Health.SERVING


async def test_watches_look_up_what_there_is_once_for_all_and_are_told_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = EngineDouble(make_version("m"))
    service, count = HealthService(engine), 10 * WOKEN
    looked, index = [False], engine.index

    def look(ready_only: bool) -> tuple[IndexEntry, ...]:
        looked.append(ready_only)
        return index(ready_only)

    monkeypatch.setattr(engine, "index", look)
    told: list[bytes] = []

    async def read() -> bytes:
        return asked("m")

    async def write(message: bytes) -> None:
        told.append(message)

    watches = [asyncio.ensure_future(service.watch(read, write)) for _ in range(count)]
    await settle()
    assert len(told) == count
    engine.accepting = False
    for _ in range(2):
        engine.change()
    most, before = 0, count
    while len(told) < 2 * count:
        await asyncio.sleep(0)
        most, before = max(most, len(told) - before), len(told)
    assert 0 < most <= WOKEN
    assert looked == [False] * 3, "once, and once more after the change"
    for watch in watches:
        watch.cancel()
    await asyncio.gather(*watches, return_exceptions=True)
    engine.change()  # tells nobody any more
    assert len(told) == 2 * count
