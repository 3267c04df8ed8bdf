"""A box that no link reaches, and its controller: what is wanted goes out by bundle, telemetry comes back, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.main import main
from appliance.controller import tables, tokens
from appliance.controller.by_hand import desk_of
from appliance.controller.contact import Contact
from appliance.controller.home import LOCK, Settings, make_home
from appliance.controller.publishing import Publisher
from appliance.durable import RealFolder, WriterLock
from appliance.fleet.messages import Enrolment, Report, decode
from appliance.fleet.places import CONFLICT
from appliance.outbox.outbox import Outbox, Policy
from appliance.sync import identity, trust_file
from appliance.sync.outboxes import waiting

URL = "https://controller.test:8443"
NOW_MS = 1_800_000_000_000
DEVICE = "box-1"


class Site:
    """A controller and a box that is enrolled with it, and a stick between them."""

    def __init__(self, place: Path) -> None:
        self.desk, self.box, self.stick = place / "controller", place / "box", place / "stick.bundle"
        make_home(self.desk, Settings(url=URL, address="127.0.0.1:0"), [], [], NOW_MS)
        self.box.mkdir()
        folder = identity.fleet_folder(self.box)
        with desk_of(self.desk) as desk:
            with desk.store.transaction() as rows:
                _, token = tokens.make_enrolment(
                    rows, URL, desk.authority.digest, "test", NOW_MS * 2, device="", group=""
                )
            contact = Contact(desk.store, desk.authority, Publisher(desk.keys))
            request = identity.request_for_enrolment(folder)
            enrolled = contact.enrol(Enrolment(token=token, request=request, name=DEVICE), NOW_MS)
        identity.enrol(folder, URL, enrolled)
        folder.close()

    def controller(self, command: str, *more: str) -> int:
        return main(["bundle", command, str(self.stick), "--controller", str(self.desk), *more])

    def at_box(self, command: str, *more: str) -> int:
        return main(["bundle", command, str(self.stick), "--state-dir", str(self.box), *more])

    def record(self, *records: bytes) -> None:
        place = self.box / "outbox" / "serve"
        place.mkdir(parents=True, exist_ok=True)
        folder = RealFolder(place)
        with Outbox(folder, 8 << 20, Policy.REFUSE) as outbox:
            outbox.append(records)
        folder.close()

    def held(self) -> list[bytes]:
        """Telemetry that the controller has."""
        with desk_of(self.desk) as desk, desk.store.transaction() as rows:
            return [row.record for row in rows.all(tables.telemetry, device=DEVICE)]

    def device(self) -> Any:
        with desk_of(self.desk) as desk, desk.store.transaction() as rows:
            return rows.one(tables.devices, name=DEVICE)

    def waits(self) -> list[bytes]:
        return [record for batch in waiting(self.box) for record in batch.records]

    def generation(self) -> int:
        folder = identity.fleet_folder(self.box)
        try:
            return trust_file.load(folder).trusted.counters.targets
        finally:
            folder.close()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_stick_goes_round(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.controller("export", "--json") == 0
    assert json.loads(capsys.readouterr().out)["devices"] == [DEVICE]
    assert site.at_box("import") == 0
    assert site.generation() == 1
    site.record(b"\x01", b"\x02")
    assert site.at_box("export", "--force") == 0
    capsys.readouterr()
    assert site.controller("import") == 0
    assert "2 records of box-1 are here" in capsys.readouterr().out
    assert site.held() == [b"\x01", b"\x02"]
    assert site.controller("import") == 0, "a second time changes nothing"
    assert site.held() == [b"\x01", b"\x02"]
    assert site.device().report
    site.record(b"\x03")
    assert site.waits() == [b"\x01", b"\x02", b"\x03"]
    assert site.controller("export", "--force", "--device", DEVICE) == 0
    assert site.at_box("import") == 0
    assert site.waits() == [b"\x03"]
    assert site.at_box("export", "--force") == 0
    assert site.controller("import") == 0
    assert site.held() == [b"\x01", b"\x02", b"\x03"]


def test_an_older_stick_that_comes_later_undoes_nothing(site: Site) -> None:
    site.record(b"\x01")
    assert site.at_box("export") == 0
    old = site.stick.rename(site.stick.with_name("old.bundle"))
    assert site.controller("export") == 0
    assert site.at_box("import") == 0
    site.record(b"\x02")
    assert site.at_box("export", "--force") == 0
    assert site.controller("import") == 0
    report = decode(site.device().report, Report)
    assert report.generation == 1
    old.rename(site.stick)
    assert site.controller("import") == 0
    assert decode(site.device().report, Report) == report
    assert site.held() == [b"\x01", b"\x02"]


def test_who_was_revoked_is_brought_nothing_and_believed_nothing(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.record(b"\x01")
    assert site.at_box("export") == 0
    with desk_of(site.desk) as desk, desk.store.transaction() as rows:
        rows.change(tables.certificates, {"device": DEVICE}, revoked=True)
    capsys.readouterr()
    assert site.controller("import") == 1
    assert "was revoked" in capsys.readouterr().err
    assert site.held() == []
    with desk_of(site.desk) as desk, desk.store.transaction() as rows:
        rows.change(tables.devices, {"name": DEVICE}, state="revoked")
    assert site.controller("export", "--force", "--device", DEVICE) == 2
    assert "gets no documents" in capsys.readouterr().err
    assert site.controller("export", "--force") == 1


def test_a_controller_with_an_old_memory_is_told_by_a_bundle_too(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was restored from a backup that had not sent anything yet."""
    assert site.controller("export") == 0
    assert site.at_box("import") == 0
    with desk_of(site.desk) as desk, desk.store.transaction() as rows:
        none = {
            "timestamp_version": 0,
            "snapshot_version": 0,
            "generation": 0,
            "document": b"",
            "revision": -1,
        }
        rows.change(tables.devices, {"name": DEVICE}, **none)
    assert site.at_box("export", "--force") == 0
    assert site.controller("import") == 0
    assert site.device().state == CONFLICT
    capsys.readouterr()
    assert site.controller("export", "--force") == 1
    assert "no device that could be brought anything" in capsys.readouterr().err


def test_bundles_of_a_controller_say_whose_they_are(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    other = Site(tmp_path / "other")
    assert other.controller("export") == 0
    other.stick.rename(site.stick)
    assert site.at_box("import") == 1
    assert "(unknown-key)" in capsys.readouterr().err
    other.record(b"\x01")
    assert other.at_box("export", "--force") == 0
    other.stick.rename(site.stick)
    assert site.controller("import") == 1
    assert "another controller" in capsys.readouterr().err


def test_a_place_has_to_be_said(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--controller", str(site.desk), "--state-dir", str(site.box)]):
        with pytest.raises(SystemExit) as ended:
            main(["bundle", "export", str(site.stick), *words])
        assert ended.value.code == 2
    assert main(["bundle", "export", str(site.stick), "--controller", str(site.box)]) == 2
    assert "holds no controller" in capsys.readouterr().err
    assert (
        main(["bundle", "export", str(site.stick), "--controller", str(site.desk), "--device", "none"]) == 2
    )
    assert "no device is called 'none'" in capsys.readouterr().err


def root(*words: str) -> int:
    return main(["fleet", "root", *words])


def test_a_ceremony_changes_holders_and_keys_and_boxes_follow(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.controller("export") == 0
    assert site.at_box("import") == 0
    one, two, three = (str(tmp_path / f"root-{number}.json") for number in (1, 2, 3))
    desk = ["--controller", str(site.desk)]
    assert root("get", *desk, "-o", one) == 0
    for name in ("ann", "bob"):
        assert main(["model", "keygen", str(tmp_path / name)]) == 0
    holders = [word for name in ("ann", "bob") for word in ("--key", str(tmp_path / f"{name}.pub"))]
    assert root("make", "--previous", one, *holders, "--threshold", "2", "-o", two) == 0
    assert root("publish", two, *desk) == 1
    assert "lacks signatures: 2 of its own keys, 1 of those before" in capsys.readouterr().err
    old = str(site.desk / "offline" / "root.pem")
    assert root("sign", two, "--previous", one, "--key", old) == 0
    for name in ("ann", "bob"):
        assert root("sign", two, "--previous", one, "--key", str(tmp_path / name)) == 0
    lock = WriterLock(site.desk / LOCK)
    assert root("publish", two, *desk) == 1
    assert "stop it while its root changes" in capsys.readouterr().err
    lock.release()
    assert root("publish", two, *desk) == 0
    assert "0 documents are signed anew" in capsys.readouterr().out

    assert root("keys", str(tmp_path / "fresh")) == 0
    assert root("make", "--previous", two, "--online", str(tmp_path / "fresh"), "-o", three) == 0
    for name in ("ann", "bob"):
        assert root("sign", three, "--previous", two, "--key", str(tmp_path / name)) == 0
    assert root("publish", three, *desk) == 1
    assert "names other keys" in capsys.readouterr().err
    (site.desk / "keys").rename(tmp_path / "stale")
    (tmp_path / "fresh").rename(site.desk / "keys")
    assert root("publish", three, *desk) == 0
    assert "1 documents are signed anew" in capsys.readouterr().out
    assert site.controller("export", "--force") == 0
    assert site.at_box("import") == 0
    assert site.generation() == 2
    folder = identity.fleet_folder(site.box)
    assert trust_file.load(folder).trusted.root_version == 3
    folder.close()
