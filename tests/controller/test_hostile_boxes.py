"""Boxes that were let in and mean harm: to the controller, to its operators, to other boxes."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import pytest
from zstandard import ZstdCompressor

from appliance.controller import contact, device_api, tables
from appliance.controller.bundles import Batches, Received, receive
from appliance.controller.by_hand import desk_of, incoming, outgoing
from appliance.controller.contact import ISSUED_MAX, ISSUED_WITHIN_S
from appliance.controller.device_api import AT_ONCE_MAX, BURST
from appliance.controller.fleet_store import ROW_BYTES, Rows
from appliance.domain.digest import digest_of
from appliance.domain.errors import OperatorError
from appliance.domain.manifest import INT64_MAX
from appliance.fleet import messages
from appliance.fleet.messages import Batch, ModelReport, Poll, Renewal, Report
from appliance.fleet.records import Lost, Minute, VersionMinute, encode
from appliance.package.keys import open_signer
from appliance.sync.bundle_export import signed_by_box
from appliance.transfer.bundle_reader import BundleReader
from appliance.transfer.bundle_writer import index_of, part_of, write_file
from tests.controller.conftest import DAY_MS, Box, Served, code, csr
from tests.trust.repository import unsigned


@pytest.mark.parametrize(
    "name", ["..", "../../x", "a/b", ".a", "A", "a b", "a\n", "\x1b[2J", "\u202ea", "\u00e9"]
)
def test_a_box_cannot_call_itself_what_no_operator_could_name(served: Served, name: str) -> None:
    token = served.token()
    assert code(Box(served, name).try_enrol(token)) == (400, "bad-enrolment")
    assert served.done("GET", "/api/v1/devices") == []
    assert Box(served, "a-good.name_1").enrol(token).poll().document


def test_records_that_json_cannot_say_keep_nobody_from_the_logs(served: Served) -> None:
    box = Box(served, "box-a").enrol(served.token())
    odd = (
        msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"x")),
        b"\x81\x92\x01\x02\x03",  # a map whose key is an array
        b"\x81\xc0\x01",
        b"\xc7\x0c\xff" + b"\xff" * 12,  # a time that there is not
        b"\x91" * 5000 + b"\xc0",
        b"\xdd\xff\xff\xff\xff",
        b"\xa1\xff",
    )
    good = msgspec.msgpack.encode({"a": 1})
    box.send(Batch(stream="sync", epoch="0" * 32, first=0, records=(*odd, good)))
    found = [each["record"] for each in served.done("GET", "/api/v1/logs")]
    assert found == [*(each[:2048].hex() for each in odd), {"a": 1}]


def test_an_answer_of_logs_is_bounded_whatever_a_box_sent(served: Served) -> None:
    box = Box(served, "box-a").enrol(served.token())
    record = msgspec.msgpack.encode(bytes((1 << 20) - 8))
    for first in (0, 6):
        box.send(Batch(stream="sync", epoch="0" * 32, first=first, records=(record,) * 6))
    found = served.done("GET", "/api/v1/logs")
    assert [each["number"] for each in found] == list(range(4, 12))
    assert served.done("GET", "/api/v1/logs?most=2") == found[-2:]


@pytest.mark.parametrize("what", ["records", "losses", "epochs"])
def test_what_takes_rows_counts_though_it_says_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(contact, "TELEMETRY_MAX", 50 * ROW_BYTES)
    box, answers = Box(served, "box-a").enrol(served.token()), list[int]()
    for number in range(60):
        epoch = f"{number if what == 'epochs' else 0:032x}"
        gone = tuple(
            Lost(epoch=f"{number:016x}{each:016x}", first=0, last=1, reason="")
            for each in range(4 if what == "losses" else 0)
        )
        records = (b"",) * 4 if what == "records" else ()
        batch = Batch(stream="sync", epoch=epoch, first=4 * number, records=records, lost=gone)
        answers.append(box.post(messages.TELEMETRY, compress(messages.encode(batch)))[0])
    assert answers[0] == 200
    assert answers[-1] == 429
    with served.home.store.transaction() as rows:
        rows.forget_telemetry(served.now_ms + DAY_MS)
        epochs = len(rows.all(tables.outboxes))
        (device,) = rows.all(tables.devices)
    assert device.telemetry_bytes == epochs * ROW_BYTES, "which are remembered, so that nothing is kept twice"


def test_many_records_at_once_count_as_many_requests(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_api, "RATE", 1e-6)
    flooding, other = (Box(served, name).enrol(served.token()) for name in ("box-a", "box-b"))
    bodies = [
        compress(
            messages.encode(Batch(stream="sync", epoch=f"{each:032x}", first=0, records=(b"",) * 65_536))
        )
        for each in range(3)
    ]
    answers = [flooding.post(messages.TELEMETRY, body) for body in bodies]
    assert [status for status, _ in answers] == [200, 429, 429]
    assert code(answers[1]) == (429, "too-often")
    assert other.poll().document


def test_many_versions_in_one_record_count_as_many_requests(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adding them up keeps all other boxes waiting, though they take few bytes."""
    monkeypatch.setattr(device_api, "RATE", 1e-6)
    box = Box(served, "box-a").enrol(served.token())
    many = tuple(VersionMinute(name=f"m{number}", version=1, outcomes=(1,)) for number in range(4096))
    record = encode(Minute(at_ms=served.now_ms, window_ms=60_000, uptime_ms=1, versions=many))
    for first in range(4):
        box.send(Batch(stream="serve", epoch="0" * 32, first=first, records=(record,)))
    batch = Batch(stream="serve", epoch="0" * 32, first=4, records=(record,))
    assert code(box.post(messages.TELEMETRY, compress(messages.encode(batch)))) == (429, "too-often")


def test_a_box_whose_clock_was_put_back_is_believed_by_what_it_knows(served: Served) -> None:
    """Else what it said of before stands beside the document that it knows now, as if it were about that."""
    Box(served, "box-a").enrol(served.token())

    def brought(generation: int, wall_ms: int, serving: int) -> None:
        stands = (ModelReport(name="m", serving=serving, wanted=serving),)
        report = Report(device="box-a", trusted_generation=generation, wall_ms=wall_ms, models=stands)
        with desk_of(served.folder) as desk:
            bundle = Received(
                device="box-a", report=report, report_bytes=messages.encode(report),
                batches=Batches(cast(BundleReader, None), ()), records=0,
            )  # fmt: skip
            incoming(desk, bundle, "me", 1)

    def stands() -> tuple[int, int]:
        (found,) = served.done("GET", "/api/v1/devices")
        return found["told_generation"], found["models"][0]["serving"]

    brought(1, wall_ms=9_000, serving=1)
    brought(2, wall_ms=4_000, serving=2)
    assert stands() == (2, 2)
    brought(2, wall_ms=3_000, serving=3)
    assert stands() == (2, 2), "an older one of the same document is passed over"


def test_a_key_that_was_shut_out_takes_nothing_from_its_successor(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_api, "RATE", 1e-6)
    old = Box(served, "box-a").enrol(served.token())
    new = Box(served).enrol(served.token(device="box-a"))
    refused = [code(old.post(messages.POLL, Poll())) for _ in range(int(BURST) + 20)]
    assert refused[0] == (403, "revoked")
    assert refused[-1] == (429, "too-often")
    assert new.poll().document


def compress(data: bytes) -> bytes:
    return ZstdCompressor().compress(data)


def test_a_box_that_tells_of_the_last_number_keeps_nobody_from_being_resumed(served: Served) -> None:
    liar, honest = (Box(served, name).enrol(served.token()) for name in ("box-a", "box-b"))
    liar.poll(root=1, timestamp=INT64_MAX, snapshot=INT64_MAX, targets=INT64_MAX)
    ahead = {"root": 1, "timestamp": 9, "snapshot": 9, "targets": 9}
    assert honest.poll(**ahead).document == b""
    assert served.done("POST", "/api/v1/resume") == {"devices": 1}
    assert honest.poll(**ahead).document
    assert liar.poll(root=1).document == b""
    status, found = served.ask("POST", "/api/v1/devices/box-a/resume", None, served.admin)
    assert status == 200, "it told of less meanwhile"
    liar.poll(root=1, timestamp=INT64_MAX, snapshot=INT64_MAX, targets=INT64_MAX)
    status, found = served.ask("POST", "/api/v1/devices/box-a/resume", None, served.admin)
    assert (status, found["code"]) == (422, "refused")


def test_a_box_has_few_certificates_at_a_time_and_more_later(served: Served) -> None:
    box = Box(served, "box-a")
    token = served.token()
    assert [box.try_enrol(token)[0] for _ in range(ISSUED_MAX - 1)] == [200] * (ISSUED_MAX - 1)
    box.enrol(token)
    renewal = Renewal(request=csr(box.key))
    assert code(box.post(messages.RENEW, renewal)) == (429, "too-often")
    assert code(box.try_enrol(token)) == (429, "too-often")
    served.now_ms += ISSUED_WITHIN_S * 1000
    assert box.post(messages.RENEW, renewal)[0] == 200


def test_versions_that_a_box_makes_up_are_not_looked_for_one_by_one(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, one = list[object](), Rows.one

    def counted(rows: Rows, table: object, **key: object) -> object:
        looked.append(table)
        return one(rows, table, **key)

    box = Box(served, "box-a").enrol(served.token(group="site"))
    model = ModelReport(name="m", installed=tuple(range(1, 50_000)))
    report = messages.encode(Report(device="box-a", models=(model,)))
    box.poll(report=report, report_digest=digest_of(report))
    with served.home.store.transaction() as rows:
        rows.put(
            tables.releases, model="m", version=7, manifest="a" * 64, package="b" * 64, total_bytes=1,
            trust="", by_whom="", at_ms=0,
        )  # fmt: skip
    monkeypatch.setattr(Rows, "one", counted)
    served.done("POST", "/api/v1/want", {"model": "m", "group": "site", "wish": {"version": 7}})
    assert len(looked) < 20


def test_a_box_that_makes_up_epochs_spoils_nobody_s_bundle(served: Served, tmp_path: Path) -> None:
    for name in ("box-a", "box-b"):
        Box(served, name).enrol(served.token()).poll()
    with served.home.store.transaction() as rows:
        for number in range(30_000):
            rows.put(tables.outboxes, device="box-a", stream="sync", epoch=f"{number:032x}", next=INT64_MAX)
    with desk_of(served.folder) as desk:
        parts = outgoing(desk, (), "ann", served.now_ms).parts
        write_file(tmp_path / "all.tar", index_of("to-boxes", parts, 0), parts, unsigned)
    with BundleReader(tmp_path / "all.tar") as bundle:
        assert bundle.index.devices == ("box-a", "box-b")


@pytest.mark.parametrize("path", [messages.POLL, messages.RENEW, messages.TELEMETRY])
def test_a_stranger_is_refused_before_his_body_is_read(served: Served, path: str) -> None:
    headers = {"Content-Type": messages.CONTENT_TYPE, "Content-Length": str(1 << 19)}
    assert code(Box(served).request("POST", path, b"x", headers)) == (401, "no-certificate")
    headers["Content-Length"] = str(messages.REQUEST_BYTES_MAX)
    assert code(Box(served).request("POST", messages.ENROL, b"x", headers)) == (413, "too-large")


def test_a_box_has_few_bodies_at_a_time(served: Served) -> None:
    box, other = (Box(served, name).enrol(served.token()) for name in ("box-a", "box-b"))
    head = f"POST {messages.POLL} HTTP/1.1\r\nHost: c\r\nContent-Type: {messages.CONTENT_TYPE}\r\n"
    with ExitStack() as stack:
        links = []
        for _ in range(AT_ONCE_MAX):
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), 30))
            link = served.tls(box.identity).wrap_socket(plain, server_hostname="127.0.0.1")
            link.sendall(f"{head}Expect: 100-continue\r\nContent-Length: 9\r\n\r\n".encode())
            assert link.recv(100).startswith(b"HTTP/1.1 100 ")
            links.append(stack.enter_context(link))
        assert code(box.post(messages.POLL, Poll())) == (429, "too-often")
        assert other.poll().document
        links[0].sendall(b"nonsense.")
        assert links[0].recv(100).startswith(b"HTTP/1.1 400 ")
        assert box.poll().document


def test_a_bundle_brings_no_more_of_a_box_than_is_kept(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contact, "TELEMETRY_MAX", 8 * ROW_BYTES)
    box = Box(served, "box-a").enrol(served.token())
    assert box.identity is not None
    certificate = box.identity.read_text().partition("-----BEGIN CERTIFICATE")
    parts = [
        part_of(
            f"telemetry/box-a/{number:08}.zst",
            compress(
                messages.encode(Batch(stream="sync", epoch="0" * 32, first=4 * number, records=(b"",) * 4))
            ),
        )
        for number in range(4)
    ]
    signer = open_signer(str(box.identity), lambda what: "")
    sign = partial(signed_by_box, certificate="".join(certificate[1:]), signer=signer)
    write_file(tmp_path / "b.tar", index_of("from-box", parts, 0), parts, sign)
    with desk_of(served.folder) as desk, BundleReader(tmp_path / "b.tar") as bundle:
        received = receive(bundle, [desk.authority.certificate], lambda each: False)
        with pytest.raises(OperatorError, match="bytes of this box are kept"):
            incoming(desk, received, "ann", served.now_ms)
        with desk.store.look() as view:
            assert len(view.all(tables.telemetry)) == 8, "what came before is here, as over the link"
            assert [each.next for each in view.all(tables.outboxes)] == [8]
