"""Every lane through the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from appliance.workers.lane import DaemonLane, SocketWorkerLane, socket_pair
from tests.workers.lane_conformance import LaneConformance, Lanes


class TestSocketLane(LaneConformance):
    @pytest.fixture
    def lanes(self) -> Iterator[Lanes]:
        ours, theirs = socket_pair()
        yield Lanes(DaemonLane(ours), SocketWorkerLane(theirs), theirs.close, theirs.sendall)
        ours.close()
        theirs.close()
