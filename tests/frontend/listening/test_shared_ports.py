"""One port for two appliances: only when both are asked to share it, on every front end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.appliance_process import ApplianceProcess
from tests.fronts import EVERY_FRONT_END, FRONT_ENDS, with_front_end


@pytest.mark.parametrize("front_end", EVERY_FRONT_END)
def test_an_http_port_is_shared_only_when_asked(tmp_path: Path, front_end: str) -> None:
    def sections(**http: object) -> dict[str, dict[str, object]]:
        return {
            name: dict(section)
            for name, section in with_front_end(FRONT_ENDS[front_end], {"http": http}).items()
        }

    with ApplianceProcess(tmp_path, sections(reuse_port=True)) as first:
        address = first.wait_ready().http
        with ApplianceProcess(tmp_path, sections(reuse_port=True, addresses=[address])) as second:
            assert second.wait_ready().http == address
            assert first.stop() == 0
            assert b"appliance_http_connections" in second.get("/metrics")
            with ApplianceProcess(tmp_path, sections(addresses=[address])) as third:
                assert third.process.wait(30) == 2
                assert f"http cannot listen on {address}: Address already in use" in third.log()
