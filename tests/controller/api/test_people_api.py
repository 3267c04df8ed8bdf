"""What operators ask of the controller, who may, and what boxes get of it."""

from __future__ import annotations

import re
import socket
import sqlite3
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openapi_spec_validator import validate

from appliance.cli.failure import Exit
from appliance.cli.fleet.session import PROFILE, Profile, write_profile
from appliance.cli.main import main
from appliance.controller import tables
from appliance.controller.fleet_store import FleetStore
from appliance.controller.people_api import API, PeopleApi
from appliance.domain.digest import digest_of
from appliance.fleet import messages
from appliance.fleet.documents import WishedModel, decode
from appliance.fleet.messages import ModelReport, Polled
from appliance.package.reader import open_package
from tests.controller.api.desk import Box, Desk
from tests.package.onnx_models import layers
from tests.transfer.indexes import index_of

NewBox = Callable[..., Box]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Three real packages of a model, of which two differ a little."""
    folder = tmp_path_factory.mktemp("packages")
    found = {}
    for version in (1, 2, 3):
        model = layers(2, 128)
        for tensor in model.graph.initializer:
            data = np.frombuffer(tensor.raw_data, np.float32) * np.float32(1 + version / 1000)
            tensor.raw_data = data.astype(np.float32).tobytes()
        source = folder / f"m-{version}.onnx"
        source.write_bytes(model.SerializeToString())
        found[version] = folder / f"m-{version}.model"
        words = [
            "model",
            "pack",
            str(source),
            "--name",
            "m",
            "--version",
            str(version),
            "-o",
            str(found[version]),
        ]
        assert main([*words, "--no-proof"]) == Exit.OK
    return found


def released(desk: Desk, package: Path) -> Any:
    return desk.person().ask("POST", "/releases", package.read_bytes())


def wanted(found: Polled) -> dict[str, WishedModel]:
    return {each.name: each for each in decode(found.document).models}


def test_a_release_is_wished_for_and_comes_with_every_way_to_get_it(
    desk: Desk, new_box: NewBox, packages: dict[int, Path]
) -> None:
    one, other, far = new_box("box-1", group="site"), new_box("box-2", group="site"), new_box("box-3")
    first = released(desk, packages[1])
    assert (first["model"], first["version"], first["deltas"]) == ("m", 1, {})
    assert desk.person().post("/want", {"model": "m", "group": "site", "wish": {"version": 1}}) == {
        "devices": 2,
        "before": False,
        "halts": [],
    }
    assert set(wanted(one.polled())) == set(wanted(other.polled())) == {"m"}
    assert wanted(far.polled()) == {}
    one.tell(models=(ModelReport(name="m", installed=(1,)),))
    released(desk, packages[2])
    desk.person().post("/want", {"model": "m", "group": "site", "wish": {"version": 2}})
    wish = wanted(one.polled())["m"].wanted
    assert wish is not None
    based, whole = wish.transfers
    with open_package(packages[1]) as reader:
        assert based.base == reader.digest
    assert whole.base == ""
    assert based.size < whole.size
    for way in wish.transfers:
        headers = {"Range": f"bytes=0-{way.size - 1}"}
        stream = one.raw("GET", f"{messages.STREAMS}{way.stream}", b"", bytes, **headers)
        assert one.status == 206
        assert (digest_of(stream), digest_of(index_of(stream))) == (way.stream, way.index)
        index = one.raw("GET", f"{messages.INDEXES}{way.index}", b"", bytes, Range="bytes=0-")
        assert digest_of(index) == way.index


def test_a_box_is_told_its_group_to_show_it(desk: Desk, new_box: NewBox) -> None:
    box = new_box("box-1", group="site")
    assert box.polled().group == "site"
    desk.person().post("/devices/box-1/group", {"group": "pilot"})
    assert box.polled().group == "pilot"
    assert new_box("box-2").polled().group == ""


def test_a_device_goes_before_its_group(desk: Desk, new_box: NewBox, packages: dict[int, Path]) -> None:
    box = new_box("box-1", group="site")
    for version in (1, 2):
        released(desk, packages[version])
    person = desk.person()
    person.post("/want", {"model": "m", "group": "site", "wish": {"version": 1}})
    person.post("/want", {"model": "m", "device": "box-1", "wish": {"version": 2, "order": True}})
    found = wanted(box.polled())["m"]
    assert found.wanted is not None
    assert (found.wanted.version, found.order) == (2, True)
    person.post("/want", {"model": "m", "device": "box-1"})
    back = box.polled(root=1, timestamp=1, snapshot=1, targets=1)
    again = wanted(back)["m"].wanted
    assert again is not None
    assert again.version == 1
    assert decode(back.document).generation == 2
    person.post("/devices/box-1/group", {"group": ""})
    assert wanted(box.polled(root=1, timestamp=2, snapshot=2, targets=2)) == {}


def test_the_same_wish_again_is_no_new_document(
    desk: Desk, new_box: NewBox, packages: dict[int, Path]
) -> None:
    box = new_box("box-1", group="site")
    released(desk, packages[1])
    for _ in range(3):
        desk.person().post("/want", {"model": "m", "group": "site", "wish": {"version": 1}})
        found = box.polled()
    assert decode(found.document).generation == 1


def test_what_is_no_package_is_no_release(desk: Desk, packages: dict[int, Path], tmp_path: Path) -> None:
    person = desk.person()
    data = bytearray(packages[1].read_bytes())
    data[len(data) // 2] ^= 1
    for body in (b"", b"nonsense" * 100, bytes(data)):
        found = person.ask("POST", "/releases", body)
        assert (person.status, found["code"]) == (422, "refused")
    assert person.get("/releases") == []
    assert not list((desk.folder / "blobs" / "drafts").iterdir())


def test_a_version_is_released_once(desk: Desk, packages: dict[int, Path], tmp_path: Path) -> None:
    released(desk, packages[1])
    assert released(desk, packages[1])["version"] == 1
    words = ["model", "pack", str(packages[2]).replace(".model", ".onnx"), "--name", "m", "--version", "1"]
    assert main([*words, "--no-proof", "-o", str(tmp_path / "other.model")]) == Exit.OK
    person = desk.person()
    found = person.ask("POST", "/releases", (tmp_path / "other.model").read_bytes())
    assert person.status == 422
    assert "never changes" in found["error"]


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/want", {"model": "m", "group": "site", "wish": {"version": 7}}, "nothing was released of 'm'"),
        ("/want", {"model": "m", "wish": {"version": 7}}, "for which group or for which device"),
        ("/want", {"model": "m", "group": "a", "device": "b"}, "one of them"),
        ("/want", {"model": "../m", "group": "a"}, "$.model"),
        ("/want", {"model": "m", "group": "a", "wish": {"version": -1}}, "$.wish.version"),
        ("/want", {"model": "m", "group": "a", "wish": {"version": 1, "extra": 1}}, "extra"),
        ("/want", {"model": "m", "device": "none", "wish": {"version": 0}}, "there is no device 'none'"),
        ("/settings", {"name": "fleet.poll_s", "group": "a", "value": 1}, "poll_s"),
        ("/settings", {"name": "grpc.addresses", "group": "a", "value": 1}, "no setting from afar"),
        ("/tokens/enrolment", {"device": "none"}, "there is no device 'none'"),
        ("/tokens/person", {"name": "x", "role": "king"}, "$.role"),
        ("/tokens/person", {"name": "admin", "role": "viewer"}, "there is a token 'admin' already"),
        ("/devices/none/revoke", None, "there is no device 'none'"),
        ("/tokens/none/revoke", None, "there is no token 'none'"),
        ("/want", [], "Expected `object`"),
        (
            "/want",
            {"model": "m\n", "group": "a", "wish": {"version": 0}},
            "not a name: a-z 0-9 . _ -, at most 64",
        ),
        ("/settings", {"name": "fleet.poll_s", "group": "a\n", "value": 60}, "not a name: "),
        ("/tokens/person", {"name": "ann\n", "role": "viewer"}, "not a name: "),
    ],
)
def test_what_cannot_be_is_refused_and_said(desk: Desk, path: str, body: object, says: str) -> None:
    person = desk.person()
    before = person.get("/audit/check")["lines"]
    found = person.post(path, body)
    assert person.status in (400, 404, 422)
    assert says in found["error"]
    assert person.get("/audit/check")["lines"] == before


def test_settings_come_with_the_document(desk: Desk, new_box: NewBox) -> None:
    box = new_box("box-1", group="site")
    windows = ["Mon-Fri 22:00-06:00"]
    assert (
        desk.person().post("/settings", {"name": "fleet.windows", "group": "site", "value": windows})[
            "devices"
        ]
        == 1
    )
    desk.person().post("/settings", {"name": "fleet.poll_s", "device": "box-1", "value": 30})
    assert dict(decode(box.polled().document).settings) == {
        "fleet.poll_s": 30,
        "fleet.windows": tuple(windows),
    }


def test_each_role_may_what_the_table_says_and_nobody_else_anything(desk: Desk) -> None:
    made = {
        role: desk.person().post("/tokens/person", {"name": f"a-{role}", "role": role})["token"]
        for role in ("viewer", "operator", "admin")
    }
    order = list(made)
    api = PeopleApi(None, None, None, None, None, desk.home.store, desk.home.blobs, lambda: desk.now_ms)  # type: ignore[arg-type]
    for each in (*api.operations(), None):
        method, path, needed = (
            (each.method, each.path, each.role) if each else ("POST", "/releases", "operator")
        )
        place = re.sub("{[a-z]+}", "none", path)
        for role, token in {**made, "": "", "wrong": "a-viewer:x", "other": "nobody:x"}.items():
            person = desk.person(token or "none")
            person.ask(method, place, b"{}" if method == "POST" else b"")
            if role not in made:
                assert person.status == 401, (path, role)
            elif order.index(role) < order.index(needed):
                assert person.status == 403, (path, role)
            else:
                assert person.status not in (401, 403, 500), (path, role)
    stolen = made["viewer"]
    desk.person().post("/tokens/a-viewer/revoke")
    person = desk.person(stolen)
    person.get("/devices")
    assert person.status == 401


def test_the_document_of_the_api_is_whole(desk: Desk) -> None:
    document = desk.person("none").get("/openapi.json")
    validate(document)
    assert desk._runner is not None
    found = desk._runner.app.router.routes()
    routes = {(route.method, route.resource.canonical) for route in found if route.resource}
    served = {(method, path) for method, path in routes if path.startswith(API) and method != "HEAD"}
    told = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert served - told == {("GET", f"{API}/openapi.json")}
    assert told <= served


def test_what_was_changed_last_is_told_of_a_long_audit_log(desk: Desk) -> None:
    """It told of the first thousand lines alone."""
    with desk.home.store.transaction() as rows:
        for number in range(1200):
            rows.note(desk.now_ms, "ann", "did", number=number)
    person = desk.person()
    newest = person.get("/audit")[0]["number"] + 1200
    assert [each["number"] for each in person.get("/audit?newest=3")] == [newest - 2, newest - 1, newest]
    assert len(person.get("/audit?newest=5000")) == 1000
    assert person.get("/audit?newest=x")["error"] == "'newest' is no number"


def test_what_takes_nothing_back_changes_nothing(desk: Desk, new_box: NewBox) -> None:
    new_box("box-1", group="site")
    person = desk.person()

    def at() -> tuple[Any, int]:
        with desk.home.store.look() as view:
            return person.get("/audit/check"), view.number("revision")

    before = at()
    assert person.post("/want", {"model": "m", "group": "site"}) == {
        "devices": 1,
        "before": False,
        "halts": [],
    }
    assert person.post("/settings", {"name": "fleet.poll_s", "group": "site"}) == {
        "devices": 1,
        "before": False,
    }
    assert at() == before


def test_the_audit_log_tells_who_did_what_and_that_it_was_changed(desk: Desk, new_box: NewBox) -> None:
    new_box("box-1")
    desk.person().post("/devices/box-1/group", {"group": "site"})
    lines = desk.person().get("/audit")
    assert [(each["who"], each["what"]) for each in lines[-2:]][1] == ("admin", "group")
    assert desk.person().get("/audit/check")["first_wrong"] == 0
    with sqlite3.connect(desk.folder / "fleet.db") as database:
        database.execute("UPDATE audit SET who = 'nobody' WHERE number = 2")
    assert desk.person().get("/audit/check")["first_wrong"] == 2
    with sqlite3.connect(desk.folder / "fleet.db") as database:
        database.execute("DELETE FROM audit WHERE number = 2")
    assert desk.person().get("/audit/check")["first_wrong"] == 2


def test_the_database_is_what_the_tables_say(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from sqlalchemy import create_engine

    FleetStore(f"sqlite:///{tmp_path / 'fleet.db'}").close()
    engine = create_engine(f"sqlite:///{tmp_path / 'fleet.db'}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.METADATA) == []
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    engine.dispose()


def test_the_commands_show_and_change(
    desk: Desk, new_box: NewBox, packages: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv(PROFILE, str(tmp_path / "profile.json"))
    url = f"https://127.0.0.1:{desk.port}"
    assert main(["fleet", "devices"]) == Exit.USAGE
    assert "nobody is logged in" in capsys.readouterr().err
    path = write_profile(Profile(url=url, token=desk.admin, authority=desk.home.authority.pem))
    assert path.stat().st_mode & 0o777 == 0o600
    new_box("box-1", group="site")

    def run(*words: str) -> str:
        assert main(["fleet", *words]) == Exit.OK
        return capsys.readouterr().out

    assert "m/1 is released" in run("release", str(packages[1]))
    assert "done; 1 device" in run("want", "m=1", "--group", "site")
    assert "m=1" in run("groups")
    assert "box-1" in run("devices")
    assert "m/1" in run("releases")
    assert run("token", "--group", "site").startswith("ea1.")
    assert '"token"' in run("token", "--person", "eve", "--role", "viewer", "--json")
    assert "done" in run("setting", "fleet.poll_s=30", "--group", "site")
    for listing in ("drift", "logs", "audit"):
        run(listing)
    assert "each follows from the one before" in run("audit-check")
    assert main(["fleet", "want", "m=9", "--group", "site"]) == Exit.REFUSED
    assert "m/9 was not released; there is version 1\n" in capsys.readouterr().err
    run("release", str(packages[2]))
    assert main(["fleet", "want", "m=9", "--group", "site"]) == Exit.REFUSED
    assert "m/9 was not released; there are versions 1, 2\n" in capsys.readouterr().err
    write_profile(Profile(url="https://127.0.0.1:9", token="x", authority=desk.home.authority.pem))
    assert main(["fleet", "devices"]) == Exit.UNREACHABLE
    write_profile(Profile(url=url, token=desk.admin, authority=""))
    assert main(["fleet", "devices"]) == Exit.UNREACHABLE
    assert "is not the controller" in capsys.readouterr().err


def test_a_token_that_is_no_text_is_refused(desk: Desk) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=desk.home.authority.pem)
    plain = socket.create_connection(("127.0.0.1", desk.port), 30)
    with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as link:
        link.sendall(b"GET /api/v1/devices HTTP/1.1\r\nHost: c\r\nAuthorization: Bearer \xff:\xff\r\n\r\n")
        assert link.recv(100).startswith(b"HTTP/1.1 400 ")
