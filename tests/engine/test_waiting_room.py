"""Requests that wait for their model: what is kept of those that wait no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from appliance.engine.requests.request import Request
from appliance.engine.requests.waiting_room import GONE_MAX, WaitingRoom

HOUR_NS = 3_600_000_000_000


def test_deadlines_of_requests_that_were_cancelled_are_not_kept_for_long() -> None:
    ended: list[int] = []
    completion = SimpleNamespace(end=lambda request, *_: ended.append(request.handle))
    room = WaitingRoom(cast(Any, None), cast(Any, completion), cast(Any, None))
    stays = cast(Request, SimpleNamespace(handle=0, deadline_ns=1, served=SimpleNamespace(id=1)))
    assert room.enter(stays) == 1
    for handle in range(1, 10 * GONE_MAX):
        leaves = SimpleNamespace(handle=handle, deadline_ns=HOUR_NS + handle, served=SimpleNamespace(id=1))
        room.enter(cast(Request, leaves))
        assert room.cancel(cast(Request, leaves))
        assert len(room._deadlines) <= GONE_MAX + 5
    assert (room.next_deadline_ns, len(room)) == (1, 1)
    room.expire(1)
    assert ended[-1] == 0
