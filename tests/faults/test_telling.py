"""A real daemon tells its fleet what it did, once it belongs to one, and loses no count when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from onnx import TensorProto

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.durable import RealFolder
from appliance.fleet.membership import Membership
from appliance.fleet.membership import encode as encode_membership
from appliance.fleet.records import Event, Minute, ModelHistory, decode
from appliance.outbox.reader import OutboxReader
from appliance.store.layout import ENROLLED, OUTBOX
from appliance.telemetry.outboxes import FIGURES, HISTORY
from tests.conftest import Serve
from tests.faults.clients import ask
from tests.repository.onnx_files import plain_model, write_version

STORE = {"store": {"free_floor_bytes": 0}, "packages": {"unsigned": "allow"}}


def with_a_model(place: Path) -> Path:
    """A state directory in which model ``m``, y = x, is installed."""
    state, config, package = place / "state", place / "store.toml", place / "m.model"
    state.mkdir()
    config.write_text('[store]\nfree_floor_bytes = 0\n[packages]\nunsigned = "allow"\n')
    source = write_version(place / "sources", "m", plain_model(element=TensorProto.UINT8), 1)
    for words in (
        ("pack", source, "--version", 1, "-o", package),
        ("install", package, "--state-dir", state, "--config", config),
    ):
        assert main(["model", *map(str, words)]) == Exit.OK
    return state


@pytest.mark.every_front_end
@pytest.mark.parametrize("enrolled", [True, False], ids=["of a fleet", "of none"])
def test_what_it_did_is_told_to_its_fleet_when_it_ends(serve: Serve, tmp_path: Path, enrolled: bool) -> None:
    """Requests of all ways, and how the version came to serve; where there is no fleet nothing is written."""
    state = with_a_model(tmp_path)
    if enrolled:
        (state / ENROLLED).parent.mkdir()
        (state / ENROLLED).write_bytes(b"")
    daemon = serve(None, {**STORE, "swap": {"watch_s": 0.0}}, arguments=("--state-dir", str(state)))
    for _ in range(30):
        ask(daemon.grpc, "m")
    assert daemon.stop() == 0
    assert (state / OUTBOX).exists() == enrolled
    if not enrolled:
        return
    figures = [decode(data) for data in _everything(state, FIGURES)]
    minutes = [each for each in figures if isinstance(each, Minute)]
    mine = [version for each in minutes for version in each.versions if version.name == "m"]
    assert sum(version.outcomes[0] for version in mine) == 30
    assert sum(sum(version.total.counts) for version in mine) == 30
    assert {"serving", "draining"} <= {each.what for each in figures if isinstance(each, Event)}
    (change,) = [decode(data) for data in _everything(state, HISTORY)]
    assert isinstance(change, ModelHistory)
    assert (change.name, change.version, change.ending, change.sequence) == ("m", 1, "live", 1)


def _everything(state: Path, stream: str) -> Iterator[bytes]:
    reader = OutboxReader(RealFolder(state / OUTBOX / stream))
    while reading := reader.read(1 << 20, 1000):
        yield from reading.payloads
        reader.acknowledge(reading.epoch, reading.end)


@pytest.mark.parametrize("enrolled", [True, False], ids=["of a fleet", "of none"])
def test_it_says_which_site_it_is(serve: Serve, tmp_path: Path, enrolled: bool) -> None:
    """On its page, in its document and to who asks for its status, as the agent's file says."""
    state = tmp_path / "state"
    state.mkdir()
    if enrolled:
        (state / ENROLLED).parent.mkdir()
        said = Membership(device="north", url="https://controller:8443", group="sites")
        (state / ENROLLED).write_bytes(encode_membership(said))
    daemon = serve(None, STORE, arguments=("--state-dir", str(state)))
    expected = {"device": "north", "group": "sites"} if enrolled else None
    assert daemon.until("who it is", lambda status: status["fleet"] == expected)
    assert ("north, group sites" in daemon.get("/").decode()) == enrolled
