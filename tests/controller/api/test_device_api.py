"""What boxes may do at the controller, and what strangers, thieves and the confused may not."""

from __future__ import annotations

import random
import socket
import sqlite3
import ssl
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import zstandard
from cryptography import x509
from cryptography.x509.oid import NameOID

from appliance.controller import device_api, people_api
from appliance.controller.authority import DEVICE_GOOD, RENEW_BEFORE
from appliance.controller.device_api import BURST, Rates
from appliance.fleet import messages
from appliance.fleet.documents import decode as decode_document
from appliance.fleet.messages import Acknowledged, Enrolled, ModelReport, Polled, Refusal, Renewal, Renewed
from appliance.fleet.metadata import TIMESTAMP_PERIOD_S
from tests.controller.api.desk import DAY_MS, Box, Desk

NewBox = Callable[..., Box]


def code_of(found: object) -> str:
    assert isinstance(found, Refusal), found
    return found.code


def copy_database(from_: Path, to: Path) -> None:
    with closing(sqlite3.connect(from_)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


def test_a_box_enrols_once_and_is_called_by_its_certificate(desk: Desk, new_box: NewBox) -> None:
    token, box = desk.enrolment_token(group="site"), new_box()
    enrolled = box.enrol(token, "box-1")
    assert isinstance(enrolled, Enrolled)
    (name,) = x509.load_pem_x509_certificate(box.pem.encode()).subject.get_attributes_for_oid(
        NameOID.COMMON_NAME
    )
    assert (enrolled.device, name.value) == ("box-1", "box-1")
    (device,) = desk.person().get("/devices")
    assert (device["name"], device["group"], device["state"]) == ("box-1", "site", "active")
    assert code_of(new_box().enrol(token, "box-2")) == "token-used"
    assert token not in (desk.folder / "fleet.db").read_bytes().decode("latin-1")


def test_a_box_whose_answer_was_lost_asks_again(desk: Desk, new_box: NewBox) -> None:
    token, box = desk.enrolment_token(), new_box()
    first, second = box.enrol(token, "box-1"), box.enrol(token, "box-1")
    assert isinstance(first, Enrolled)
    assert isinstance(second, Enrolled)
    assert second.device == "box-1"
    assert isinstance(box.poll(), Polled)


def test_a_token_used_by_many_at_once_is_good_for_one(desk: Desk, new_box: NewBox) -> None:
    token, found = desk.enrolment_token(), list[object]()
    boxes = [new_box() for _ in range(8)]
    threads = [threading.Thread(target=lambda box=box: found.append(box.enrol(token))) for box in boxes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(each).__name__ for each in found) == ["Enrolled"] + ["Refusal"] * 7
    assert len(desk.person().get("/devices")) == 1


@pytest.mark.parametrize("how", ["old", "withdrawn", "unknown", "nonsense"])
def test_a_token_that_is_not_good(desk: Desk, new_box: NewBox, how: str) -> None:
    made = desk.person().post("/tokens/enrolment", {"hours": 1})
    token = made["token"]
    if how == "old":
        desk.now_ms += 3_600_001
    elif how == "withdrawn":
        desk.person().post(f"/tokens/{made['name']}/revoke")
    elif how == "unknown":
        token = token[:-60] + "AAAAAA" + token[-54:]
    else:
        token = "ea1.????"
    assert code_of(new_box().enrol(token)) in ("bad-token", "bad-enrolment")
    assert desk.person().get("/devices") == []


def test_two_boxes_with_one_name(desk: Desk, new_box: NewBox) -> None:
    new_box("box-1")
    other, token = new_box(), desk.enrolment_token()
    assert code_of(other.enrol(token, "box-1")) == "name-taken"
    assert isinstance(other.enrol(token, "box-2"), Enrolled), "the token was not used up"


def test_a_box_that_is_replaced_is_shut_out(desk: Desk, new_box: NewBox) -> None:
    old = new_box("box-1")
    new = new_box()
    assert isinstance(new.enrol(desk.enrolment_token(device="box-1")), Enrolled)
    assert new.device == "box-1"
    assert code_of(old.poll()) == "revoked"
    assert isinstance(new.poll(), Polled)


def test_of_a_box_that_takes_a_place_nothing_is_told_that_the_one_before_said(
    desk: Desk, new_box: NewBox
) -> None:
    old = new_box("box-1")
    digits = ModelReport(name="digits", wanted=2, serving=2, phase="done")
    assert isinstance(old.tell(converged=True, freshness="fresh", models=(digits,)), Polled)
    (before,) = desk.person().get("/devices")
    assert [each["serving"] for each in before["models"]] == [2]
    new = new_box()
    assert isinstance(new.enrol(desk.enrolment_token(device="box-1")), Enrolled)
    (device,) = desk.person().get("/devices")
    assert (device["seen_ms"], device["models"], device["converged"]) == (0, [], False)
    assert (device["told_generation"], device["freshness"]) == (0, "")


def test_a_renewal_after_the_backup_that_is_put_back_keeps_no_box_out(
    new_box: NewBox, desk: Desk, tmp_path: Path
) -> None:
    box, stranger, gone = new_box("box-1"), new_box("box-2"), new_box("box-3")
    desk.person().post("/devices/box-3/revoke")
    copy_database(desk.folder / "fleet.db", tmp_path / "kept.db")
    for each in (box, stranger):
        renewed = each.ask(messages.RENEW, Renewal(request=each.request()), Renewed)
        assert isinstance(renewed, Renewed)
        each.pem = renewed.certificate
    late = new_box("box-4")
    replaced = new_box()
    replaced.enrol(desk.enrolment_token(device="box-2"))
    copy_database(tmp_path / "kept.db", desk.folder / "fleet.db")
    assert isinstance(box.poll(), Polled)
    assert isinstance(box.ask(messages.RENEW, Renewal(request=box.request()), Renewed), Renewed)
    assert code_of(late.poll()) == "unknown-certificate", "its enrolment is not known here"
    assert code_of(replaced.poll()) == "unknown-certificate", "nor is its key"
    assert code_of(gone.poll()) == "revoked"
    desk.person().post("/devices/box-1/revoke")
    assert code_of(box.poll()) == "revoked", "neither by its renewal nor by the one before"
    desk.now_ms += 400 * DAY_MS
    assert code_of(stranger.poll()) == "certificate-expired"


def test_an_expired_certificate_renews_and_does_nothing_else(desk: Desk, new_box: NewBox) -> None:
    box = new_box("box-1")
    assert not box.polled().renew
    desk.now_ms += int((DEVICE_GOOD - RENEW_BEFORE).total_seconds() * 1000) + 1
    assert box.polled().renew
    desk.now_ms += 400 * DAY_MS
    assert code_of(box.poll()) == "certificate-expired"
    assert code_of(box.send([b"\x01"])) == "certificate-expired"
    old = box.pem
    renewed = box.ask(messages.RENEW, Renewal(request=box.request()), Renewed)
    assert isinstance(renewed, Renewed)
    box.pem = renewed.certificate
    assert box.pem != old
    assert not box.polled().renew


def test_a_renewal_is_for_the_key_that_the_box_has(desk: Desk, new_box: NewBox) -> None:
    box, thief = new_box("box-1"), new_box()
    assert code_of(box.ask(messages.RENEW, Renewal(request=thief.request()), Renewed)) == "another-key"
    assert code_of(box.ask(messages.RENEW, Renewal(request="x"), Renewed)) == "bad-request"


def test_a_revoked_device_may_do_nothing(desk: Desk, new_box: NewBox) -> None:
    box = new_box("box-1")
    desk.person().post("/devices/box-1/revoke")
    found = [
        box.poll(),
        box.send([b"\x01"]),
        box.ask(messages.RENEW, Renewal(request=box.request()), Renewed),
    ]
    assert [code_of(each) for each in found] == ["revoked"] * 3
    assert code_of(box.raw("GET", f"{messages.STREAMS}{'a' * 64}", b"", bytes)) == "revoked"


def test_who_shows_no_certificate_is_no_box(desk: Desk, new_box: NewBox) -> None:
    box = new_box()
    assert [code_of(each) for each in (box.poll(), box.send([b"\x01"]))] == ["no-certificate"] * 2
    assert code_of(box.raw("GET", f"{messages.STREAMS}{'a' * 64}", b"", bytes)) == "no-certificate"


def test_a_report_of_another_device_is_refused(desk: Desk, new_box: NewBox) -> None:
    one, other = new_box("box-1"), new_box("box-2")
    assert isinstance(one.tell(freshness="fresh"), Polled)
    one.device = "box-2"
    assert code_of(one.tell(freshness="frozen")) == "another-device"
    assert isinstance(other.poll(), Polled)
    assert [each["freshness"] for each in desk.person().get("/devices")] == ["fresh", ""]


def test_a_poll_brings_what_the_box_lacks_and_nothing_else(desk: Desk, new_box: NewBox) -> None:
    box = new_box("box-1")
    first = box.polled()
    assert len(first.roots) == 1
    document = decode_document(first.document)
    assert (document.device, document.generation, document.models) == ("box-1", 1, ())
    idle = box.polled(root=1, timestamp=1, snapshot=1, targets=1)
    assert (idle.roots, idle.timestamp, idle.snapshot, idle.targets, idle.document) == (
        (),
        b"",
        b"",
        b"",
        b"",
    )
    assert len(messages.encode(idle)) < 100
    desk.now_ms += 1000 * TIMESTAMP_PERIOD_S + 1
    due = box.polled(root=1, timestamp=1, snapshot=1, targets=1)
    assert due.timestamp
    assert not due.targets


def test_reports_are_asked_for_once(desk: Desk, new_box: NewBox) -> None:
    box = new_box("box-1")
    assert box.polled(report_digest="a" * 64).wants_report
    assert not box.polled(report_digest="").wants_report


def test_telemetry_is_kept_once_and_in_order(desk: Desk, new_box: NewBox) -> None:
    box = new_box("box-1")
    records = [msgspec.msgpack.encode(["event", number]) for number in range(10)]
    assert box.send(records[:6]) == Acknowledged(stream="serve", epoch="a" * 32, next=6)
    assert box.send(records[:4]).next == 6, "an old batch comes again"
    assert box.send(records[4:], 4).next == 10
    assert [each["record"][1] for each in desk.person().get("/logs?device=box-1")] == list(range(10))
    assert box.send(records[:1], 50).next == 51, "a hole is the box's to explain"
    assert box.send(records[:2], 0, epoch="b" * 32).next == 2, "another epoch begins anew"
    assert len(desk.person().get("/logs?device=box-1")) == 13


def test_telemetry_that_is_none_is_refused_before_it_takes_memory(desk: Desk, new_box: NewBox) -> None:
    box = new_box("box-1")
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 28))
    for body in (b"", b"nonsense", bomb, zstandard.compress(b"\x93\x01\x02\x03")):
        found = box.raw("POST", messages.TELEMETRY, body, lambda data: data)
        assert code_of(found) == "bad-telemetry"
    found = box.raw("POST", messages.TELEMETRY, bytes(messages.TELEMETRY_BYTES_MAX + 1), lambda data: data)
    assert code_of(found) == "too-large"
    assert code_of(box.send([b"\x01"], 2**63 - 1)) == "bad-telemetry"


def test_messages_of_any_bytes_are_refused(desk: Desk, new_box: NewBox) -> None:
    box, chosen = new_box("box-1"), random.Random(1)
    for path in (messages.POLL, messages.RENEW, messages.ENROL):
        for _ in range(5):
            found = box.raw("POST", path, chosen.randbytes(chosen.randrange(100)), lambda data: data)
            assert code_of(found) in ("bad-message", "bad-request", "bad-enrolment")
    found = box.raw("POST", messages.POLL, b"", lambda data: data, **{"Content-Type": "text/html"})
    assert code_of(found) == "not-msgpack"
    for digest in ("a" * 64, "x", "..%2f..%2ffleet.db", "A" * 64):
        assert code_of(box.raw("GET", f"{messages.STREAMS}{digest}", b"", bytes)) == "not-there"


def test_a_device_that_floods_is_held_to_a_rate(desk: Desk, new_box: NewBox) -> None:
    flooding, other = new_box("box-1"), new_box("box-2")
    found = [flooding.poll() for _ in range(int(2 * BURST))]
    refused = [each for each in found if isinstance(each, Refusal)]
    assert refused
    assert {(each.code, each.retry_after_s) for each in refused} == {("too-often", 1)}
    assert isinstance(other.poll(), Polled)


def test_rates_forget_and_fill(tmp_path: Path) -> None:
    now = 0.0
    rates = Rates(lambda: now)
    assert [rates.wait_s("a") for _ in range(int(BURST))] == [0.0] * int(BURST)
    assert rates.wait_s("a") > 0
    assert rates.wait_s("b") == 0
    now = 10.0
    assert rates.wait_s("a") == 0


def test_a_controller_that_was_restored_is_noticed_and_a_person_resumes(
    desk: Desk, new_box: NewBox, tmp_path: Path
) -> None:
    box = new_box("box-1")
    ahead = {"root": 1, "timestamp": 9, "snapshot": 7, "targets": 5}
    found = box.polled(**ahead)
    assert (found.timestamp, found.document) == (b"", b"")
    (device,) = desk.person().get("/devices")
    assert (device["state"], device["generation"], device["told_generation"]) == ("conflict", 0, 5)
    assert box.polled(**ahead).document == b"", "nothing is decided without a person"
    assert desk.person().post("/resume") == {"devices": 1}
    resumed = box.polled(**ahead)
    assert decode_document(resumed.document).generation == 6
    assert [each["state"] for each in desk.person().get("/devices")] == ["active"]


@pytest.mark.parametrize("path", [messages.ENROL, "/api/v1/want"])
def test_a_body_that_never_ends_is_left(
    desk: Desk, new_box: NewBox, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(device_api, "BODY_S", 0.3)
    monkeypatch.setattr(people_api, "SILENCE_S", 0.3)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=desk.home.authority.pem)
    plain = socket.create_connection(("127.0.0.1", desk.port), 30)
    with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as link:
        head = f"POST {path} HTTP/1.1\r\nHost: c\r\nContent-Type: {messages.CONTENT_TYPE}\r\n"
        link.sendall(f"{head}Authorization: Bearer {desk.admin}\r\nContent-Length: 100\r\n\r\nx".encode())
        assert link.recv(100).startswith(b"HTTP/1.1 408 ")
    assert isinstance(new_box("box-1").poll(), Polled)
