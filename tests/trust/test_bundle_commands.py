"""'appliance bundle' as a person uses it on a box."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.main import main
from appliance.controller.bundles import Export, parts_for, receive
from appliance.durable import RealFolder, WriterLock
from appliance.fleet.messages import Acknowledged
from appliance.outbox.outbox import Outbox, Policy
from appliance.outbox.reader import OutboxReader
from appliance.store.layout import FLEET
from appliance.sync import inbox, trust_file
from appliance.sync.carried import CARRIED
from appliance.sync.identity import CONTROLLER, IDENTITY, LOCK
from appliance.sync.outboxes import acknowledge, waiting
from appliance.sync.trust import Trusted
from appliance.transfer.bundle_reader import BundleReader
from appliance.transfer.bundle_writer import part_of
from tests.trust.boxes import Authority
from tests.trust.repository import DEVICE, polled
from tests.trust.test_sneakernet import BLOBS, EXPORT, METADATA, WAY, to_boxes
from tests.trust.test_sneakernet import FLEET as KEYS

LIMIT = 8 << 20


class Box:
    """An enrolled box without an agent that runs."""

    def __init__(self, place: Path) -> None:
        self.authority = Authority()
        self.state = place / "state"
        (self.state / FLEET).mkdir(parents=True)
        self.folder = RealFolder(self.state / FLEET)
        self.authority.identity(DEVICE, self.state / FLEET / IDENTITY)
        (self.state / FLEET / CONTROLLER).write_text(json.dumps({"device": DEVICE, "url": "https://c:1"}))
        trust_file.enrol(self.folder, KEYS.root)

    @property
    def trusted(self) -> Trusted:
        return trust_file.load(self.folder).trusted

    def record(self, records: Sequence[bytes]) -> str:
        """Have the daemon write telemetry; gives the epoch."""
        place = self.state / "outbox" / "serve"
        place.mkdir(parents=True, exist_ok=True)
        folder = RealFolder(place)
        with Outbox(folder, LIMIT, Policy.REFUSE) as outbox:
            outbox.append(records)
            return outbox.epoch

    def waiting(self) -> list[bytes]:
        """Telemetry that was not acknowledged."""
        reading = OutboxReader(RealFolder(self.state / "outbox" / "serve")).read(1 << 20, 1000)
        return list(reading.payloads) if reading else []


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    to_boxes(tmp_path / "out.tar").close()
    return tmp_path / "out.tar"


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_bundle_is_imported(box: Box, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = str(box.state)
    assert main(["bundle", "import", str(bundle), "--state-dir", state]) == 0
    told = capsys.readouterr().out
    assert "Generation 4 is trusted." in told
    assert "1 streams are here" in told
    assert "when it is started" in told
    assert box.trusted.desired is not None
    assert (box.state / FLEET / CARRIED / "streams" / WAY.stream).stat().st_size == WAY.size
    assert main(["bundle", "import", str(bundle), "--state-dir", state]) == 0
    assert "Nothing is new: generation 4" in capsys.readouterr().out
    assert main(["bundle", "import", str(bundle), "--state-dir", state, "--json"]) == 0
    found = said(capsys)
    assert (found["device"], found["generation"], found["changed"], found["signed"]) == (
        DEVICE,
        4,
        False,
        True,
    )


def test_a_running_agent_is_left_what_was_checked(
    box: Box, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = WriterLock(box.state / FLEET / LOCK)
    before = box.trusted
    assert main(["bundle", "import", str(bundle), "--state-dir", str(box.state), "--json"]) == 0
    assert said(capsys)["agent_runs"] is True
    lock.release()
    assert box.trusted == before, "the agent's files are the agent's"
    ((name, delivery),) = inbox.deliveries(box.folder)
    assert delivery.polled.document == METADATA.document
    assert delivery.acknowledged == EXPORT.acknowledged
    assert (box.state / FLEET / CARRIED / "streams" / WAY.stream).exists()
    inbox.remove(box.folder, name)
    assert not list(inbox.deliveries(box.folder))


def test_what_was_left_and_is_damaged_is_cleared_away(box: Box) -> None:
    inbox.deliver(box.folder, inbox.Delivery(polled(METADATA)))
    (path,) = (box.state / FLEET / inbox.INBOX).iterdir()
    path.chmod(0o600)
    for junk in (b"", b"\xff", b"\x92\xc0\xc0", path.read_bytes()[:-1]):
        path.write_bytes(junk)
        assert not list(inbox.deliveries(box.folder))
        assert not path.exists()


def test_a_bundle_that_lies_changes_nothing(
    box: Box, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(bundle.read_bytes())
    at = bytes(data).index(METADATA.targets) + 40
    data[at] ^= 1
    data[-2000] ^= 1
    bundle.write_bytes(data)
    before = box.trusted
    assert main(["bundle", "import", str(bundle), "--state-dir", str(box.state)]) == 1
    told = capsys.readouterr().err
    assert "devices/box-1/targets.json: has other contents than the index says" in told
    assert f"streams/{WAY.stream}: has other contents" in told
    assert box.trusted == before
    assert not (box.state / FLEET / CARRIED).exists()


def test_an_old_bundle_is_refused_with_a_reason(
    box: Box, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = replace(EXPORT, metadata=KEYS.publish(5, METADATA))
    to_boxes(tmp_path / "new.tar", parts_for(KEYS.roots, {DEVICE: newer}, BLOBS)[0]).close()
    assert main(["bundle", "import", str(tmp_path / "new.tar"), "--state-dir", str(box.state)]) == 0
    capsys.readouterr()
    assert main(["bundle", "import", str(bundle), "--state-dir", str(box.state)]) == 1
    assert "refused (generation-went-back): generation 4 was sent" in capsys.readouterr().err
    assert box.trusted.counters.targets == 5


def test_a_state_that_cannot_be_done_is_told(
    box: Box, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = KEYS.publish(6, METADATA, settings={"fleet.poll_s": -5})
    to_boxes(tmp_path / "bad.tar", parts_for(KEYS.roots, {DEVICE: Export(metadata=bad)}, BLOBS)[0]).close()
    assert main(["bundle", "import", str(tmp_path / "bad.tar"), "--state-dir", str(box.state)]) == 0
    assert "Its settings are not taken: fleet.poll_s" in capsys.readouterr().out
    newer = KEYS.publish(7, bad, format=2)
    parts = parts_for(KEYS.roots, {DEVICE: EXPORT}, BLOBS)[0]
    names = ("timestamp.json", "snapshot.json", "targets.json", "desired.msgpack")
    sent = (newer.timestamp, newer.snapshot, newer.targets, newer.document)
    later = {f"devices/{DEVICE}/{name}": data for name, data in zip(names, sent, strict=True)}
    parts = [
        part_of(each.member.path, later[each.member.path]) if each.member.path in later else each
        for each in parts
    ]
    to_boxes(tmp_path / "newer.tar", parts).close()
    assert main(["bundle", "import", str(tmp_path / "newer.tar"), "--state-dir", str(box.state)]) == 1
    assert "cannot be done here" in capsys.readouterr().out
    assert main(["sync", "status", "--state-dir", str(box.state), "--json"]) == 0
    assert any(each.startswith("document-invalid: ") for each in said(capsys)["problems"])
    assert box.trusted.desired is not None
    assert (box.trusted.counters.targets, box.trusted.desired.generation) == (7, 6)


def test_telemetry_goes_out_and_is_acknowledged_by_the_bundle_that_comes_back(
    box: Box, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    epoch = box.record([b"\x01", b"\x02", b"\x03"])
    out = tmp_path / "out.bundle"
    assert main(["bundle", "export", str(out), "--state-dir", str(box.state)]) == 0
    assert "1 batches of telemetry of box-1" in capsys.readouterr().out
    with BundleReader(out) as found:
        received = receive(found, [box.authority.certificate], lambda each: False)
        (batch,) = received.batches
    assert received.report is not None
    assert (received.report.device, received.report.freshness) == (DEVICE, "stale")
    assert (batch.stream, batch.epoch, batch.first, batch.records) == (
        "serve",
        epoch,
        0,
        (b"\x01", b"\x02", b"\x03"),
    )
    assert box.waiting() == [b"\x01", b"\x02", b"\x03"], "nothing goes before it arrived"
    arrived = (
        Acknowledged(stream="serve", epoch=epoch, next=2),
        Acknowledged(stream="serve", epoch="f" * 32, next=9),
    )
    back = tmp_path / "back"
    back.mkdir()
    to_boxes(back, parts_for(KEYS.roots, {DEVICE: replace(EXPORT, acknowledged=arrived)}, BLOBS)[0]).close()
    assert main(["bundle", "import", str(back), "--state-dir", str(box.state)]) == 0
    assert "not sent again" in capsys.readouterr().out
    assert box.waiting() == [b"\x03"]
    acknowledge(box.state, Acknowledged(stream="serve", epoch=epoch, next=1))
    acknowledge(box.state, Acknowledged(stream="nobody", epoch=epoch, next=9))
    assert box.waiting() == [b"\x03"], "an older bundle brings nothing back"
    assert main(["bundle", "export", str(out), "--state-dir", str(box.state)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["bundle", "export", str(out), "--force", "--state-dir", str(box.state), "--json"]) == 0
    assert said(capsys)["batches"] == 1


def test_what_was_lost_is_carried_with_what_comes_after_it(box: Box, tmp_path: Path) -> None:
    place = box.state / "outbox" / "serve"
    for number in range(3):
        box.record([bytes([number])] * 2)
    first, *_ = sorted(place.glob("*.segment"))
    first.unlink()
    box.record([b"\x09"])
    batches = list(waiting(box.state))
    lost = [each for batch in batches for each in batch.lost]
    held = [batch.first + place for batch in batches for place in range(len(batch.records))]
    gone = [number for each in lost for number in range(each.first, each.last + 1)]
    assert sorted(held + gone) == list(range(7)), "each number is held or accounted for"
    assert gone


def test_a_stick_that_is_a_directory_gets_the_files(
    box: Box, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    box.record([b"\x01"])
    stick = tmp_path / "stick"
    stick.mkdir()
    assert main(["bundle", "export", str(stick), "--state-dir", str(box.state)]) == 0
    assert (stick / "bundle.msgpack").is_file()
    assert main(["bundle", "export", str(stick), "--state-dir", str(box.state)]) == 2
    assert "already holds a bundle" in capsys.readouterr().err


def test_a_box_of_no_fleet_is_told_what_to_do(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("import", "export"):
        assert main(["bundle", command, str(bundle), "--state-dir", str(tmp_path)]) == 2
        assert "appliance sync enrol" in capsys.readouterr().err


def test_what_a_bundle_holds_is_shown(
    box: Box, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bundle", "inspect", str(bundle)]) == 0
    told = capsys.readouterr().out
    assert "box-1  4          digits/2" in told
    assert "to boxes" in told
    box.record([b"\x01"])
    main(["bundle", "export", str(tmp_path / "b.tar"), "--state-dir", str(box.state)])
    capsys.readouterr()
    assert main(["bundle", "inspect", str(tmp_path / "b.tar"), "--json"]) == 0
    found = said(capsys)
    assert (found["kind"], found["signed"], found["devices"][0]["batches"]) == ("from-box", True, 1)
    bundle.write_bytes(bundle.read_bytes()[:5000])
    assert main(["bundle", "inspect", str(bundle)]) == 1
    assert "is not whole" in capsys.readouterr().err
    assert main(["bundle", "inspect", str(tmp_path / "none")]) == 2
