"""A bundle to a box and one back: the same trust, the same pieces, the same telemetry as over the link."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec import structs
from zstandard import ZstdCompressor

from appliance.controller.bundles import Export, Received, parts_for, receive
from appliance.controller.signing import sign_bundle
from appliance.domain.digest import digest_of
from appliance.domain.manifest import INT64_MAX
from appliance.durable import Bytes, RealFolder
from appliance.fleet.bundle import BundleInvalid, SignedIndex
from appliance.fleet.documents import Transfer, WishedModel, WishedVersion
from appliance.fleet.messages import TELEMETRY_UNPACKED_MAX, Acknowledged, Batch, Report, encode
from appliance.package.keys import open_signer
from appliance.sync import trust_file
from appliance.sync.bundle_export import index_for, parts_of, signed_by_box
from appliance.sync.bundle_import import Found, look, take
from appliance.sync.carried import CARRIED, SPOOL, Carried
from appliance.sync.trust import Trusted, begin
from appliance.transfer.bundle_reader import BundleReader
from appliance.transfer.bundle_writer import (
    Part,
    Sign,
    index_of,
    part_of,
    write_directory,
    write_file,
)
from appliance.transfer.pieces import Index
from appliance.transfer.spool import Spool
from tests.store.volatile_disk import VolatileDisk
from tests.transfer.indexes import index_of as index_bytes
from tests.trust.boxes import Authority
from tests.trust.repository import DEVICE, Fleet, unsigned

STREAM = Random(1).randbytes(300_000)
PIECES = index_bytes(STREAM)
OTHER = b"nobody asked for this"
EPOCH = "0" * 32
HEARD = (Acknowledged(stream="serve", epoch=EPOCH, next=7),)
WAY = Transfer(stream=digest_of(STREAM), size=len(STREAM), index=digest_of(PIECES))
VERSION = WishedVersion(version=2, manifest="b" * 64, total_bytes=5, transfers=(WAY,))
MODELS = (WishedModel(name="digits", wanted=VERSION),)


class Blobs:
    """The blobs of a controller."""

    def __init__(self, *blobs: bytes) -> None:
        self._blobs = {digest_of(each): each for each in blobs}

    def size(self, digest: str) -> int | None:
        return len(self._blobs[digest]) if digest in self._blobs else None

    def chunks(self, digest: str) -> Iterable[Bytes]:
        return [self._blobs[digest]]


FLEET = Fleet()
METADATA = FLEET.publish(4, models=MODELS)
EXPORT = Export(metadata=METADATA, acknowledged=HEARD)
BLOBS = Blobs(STREAM, PIECES, OTHER)


def signed_by_fleet(index: bytes) -> SignedIndex:
    return sign_bundle(FLEET.keys, index)


def to_boxes(path: Path, parts: Sequence[Part] | None = None, sign: Sign = signed_by_fleet) -> BundleReader:
    """A bundle for this box, open."""
    parts = parts_for(FLEET.roots, {DEVICE: EXPORT}, BLOBS)[0] if parts is None else parts
    (write_directory if path.suffix == "" else write_file)(path, index_of("to-boxes", parts, 0), parts, sign)
    return BundleReader(path)


def replaced(path: str, data: bytes) -> list[Part]:
    """The right files but for one."""
    parts = parts_for(FLEET.roots, {DEVICE: EXPORT}, BLOBS)[0]
    assert path in {each.member.path for each in parts}
    return [part_of(path, data) if each.member.path == path else each for each in parts]


@pytest.mark.parametrize("name", ["bundle", "bundle.tar"])
def test_a_box_comes_to_trust_what_was_carried(name: str, tmp_path: Path) -> None:
    disk = VolatileDisk()
    heard: list[Acknowledged] = []
    trust_file.enrol(disk, FLEET.root)
    with to_boxes(tmp_path / name) as bundle:
        found = look(bundle, trust_file.load(disk).trusted, DEVICE)
        assert (found.refused, found.signed, len(found.pieces)) == (None, True, 2)
        take(bundle, found, Carried(disk), lambda each: trust_file.keep(disk, each), heard.append)
        trusted = trust_file.load(disk).trusted
        again = look(bundle, trusted, DEVICE)
    assert trusted.desired is not None
    assert trusted.desired.models == MODELS
    assert (again.refused, again.trusted) == (None, trusted), "a second time changes nothing"
    assert tuple(heard) == HEARD
    tree = disk.tree()
    assert tree[f"{CARRIED}/streams/{WAY.stream}"] == STREAM
    assert tree[f"{CARRIED}/indexes/{WAY.index}"] == PIECES


class SmallDisk(VolatileDisk):
    """Has room for all but one byte of what the bundle brings."""

    def free_bytes(self) -> int:
        """See Folder."""
        return len(STREAM) + len(PIECES) - 1


def test_nothing_is_taken_of_a_bundle_that_the_disk_has_no_room_for(tmp_path: Path) -> None:
    disk = SmallDisk()
    trust_file.enrol(disk, FLEET.root)
    before = disk.tree()
    with to_boxes(tmp_path / "bundle") as bundle:
        found = look(bundle, trust_file.load(disk).trusted, DEVICE)
        with pytest.raises(OSError, match=rf"takes {len(STREAM) + len(PIECES)} bytes, and \d+ are free"):
            take(bundle, found, Carried(disk), lambda each: trust_file.keep(disk, each), lambda each: None)
        assert disk.tree() == before
        Carried(disk).put(f"indexes/{WAY.index}", [PIECES])
        take(bundle, found, Carried(disk), lambda each: trust_file.keep(disk, each), lambda each: None)
    assert disk.tree()[f"{CARRIED}/streams/{WAY.stream}"] == STREAM


def test_the_agent_takes_over_what_is_wanted_and_clears_away_the_rest(tmp_path: Path) -> None:
    folder = RealFolder(tmp_path)
    carried = Carried(folder)
    carried.put(f"streams/{WAY.stream}", [STREAM])
    carried.put(f"indexes/{WAY.index}", [PIECES])
    carried.put(f"streams/{digest_of(OTHER)}", [OTHER])
    half = structs.replace(WAY, stream="c" * 64)
    assert carried.hand_over([WAY, half]) == 1
    assert not [each for each in (tmp_path / CARRIED).rglob("*") if each.is_file()]
    spool = Spool(tmp_path / SPOOL)
    assert spool.index(WAY) == PIECES
    arrival = spool.open(WAY, Index(PIECES, WAY.size))
    assert arrival.is_whole, "nothing of it has to come over a link"
    arrival.finish()
    arrival.close()
    assert carried.hand_over([WAY]) == 0
    folder.close()


def test_what_the_controller_lacks_is_named() -> None:
    parts, missing = parts_for(FLEET.roots, {DEVICE: EXPORT}, Blobs(STREAM))
    assert missing == (WAY.index,)
    assert f"streams/{WAY.stream}" in {each.member.path for each in parts}


def test_a_box_that_has_old_roots_follows_those_in_the_bundle(tmp_path: Path) -> None:
    fleet = Fleet()
    first = fleet.root
    for _ in range(11):
        fleet.rotate()
    parts, _ = parts_for(fleet.roots, {DEVICE: Export(metadata=fleet.publish(1))}, Blobs())
    with to_boxes(tmp_path / "bundle.tar", parts) as bundle:
        found = look(bundle, begin(first), DEVICE)
    assert (found.refused, found.trusted.root_version) == (None, 12)


def test_acknowledgements_that_the_controller_did_not_sign_are_not_believed(tmp_path: Path) -> None:
    """They would make the box forget telemetry that nobody has."""
    stranger = Fleet()
    for name, sign in (("a.tar", unsigned), ("b.tar", lambda index: sign_bundle(stranger.keys, index))):
        with to_boxes(tmp_path / name, sign=sign) as bundle:
            found = look(bundle, begin(FLEET.root), DEVICE)
        assert (found.refused, found.signed, found.acknowledged) == (None, False, ())
        assert found.trusted.desired is not None, "documents prove themselves"
    parts = replaced(f"devices/{DEVICE}/acknowledged.msgpack", msgspec.msgpack.encode(HEARD))
    taken: list[bytes] = []

    def steal(index: bytes) -> SignedIndex:
        taken.append(index)
        return structs.replace(signed_by_fleet(b"of another bundle"), index=index)

    with to_boxes(tmp_path / "c.tar", parts, steal) as bundle:
        assert not look(bundle, begin(FLEET.root), DEVICE).signed


def refused(tmp_path: Path, parts: Sequence[Part], device: str = DEVICE) -> list[str]:
    """All that is wrong with the bundle, for a box that trusts the root."""
    with to_boxes(tmp_path / "bundle.tar", parts) as bundle, pytest.raises(BundleInvalid) as caught:
        look(bundle, begin(FLEET.root), device)
    return [str(each) for each in caught.value.problems]


def test_a_bundle_for_others_is_refused(tmp_path: Path) -> None:
    parts, _ = parts_for(FLEET.roots, {DEVICE: EXPORT}, BLOBS)
    (problem,) = refused(tmp_path, parts, "box-9")
    assert "is for box-1, and this is box-9" in problem


def test_a_document_of_another_box_under_our_name_is_refused(tmp_path: Path) -> None:
    other = FLEET.publish(9, device="box-2")
    parts, _ = parts_for(FLEET.roots, {DEVICE: Export(metadata=other)}, BLOBS)
    with to_boxes(tmp_path / "bundle.tar", parts) as bundle:
        found = look(bundle, begin(FLEET.root), DEVICE)
    assert found.refused is not None
    assert (found.refused.code, found.trusted) == ("other-device", begin(FLEET.root))


def test_everything_that_is_damaged_is_told_at_once_and_nothing_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    to_boxes(path).close()
    for name in (f"devices/{DEVICE}/targets.json", f"streams/{WAY.stream}", f"indexes/{WAY.index}"):
        data = (path / name).read_bytes()
        (path / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with BundleReader(path) as bundle, pytest.raises(BundleInvalid) as caught:
        look(bundle, begin(FLEET.root), DEVICE)
    assert sorted(each.file.partition("/")[0] for each in caught.value.problems) == [
        "devices",
        "indexes",
        "streams",
    ]


def test_acknowledgements_that_are_none_are_told(tmp_path: Path) -> None:
    for junk in (b"", b"\xff", msgspec.msgpack.encode([[1, 2, 3]]), b"\x91\x93\xa1\xff\xa1a\x01"):
        parts = replaced(f"devices/{DEVICE}/acknowledged.msgpack", junk)
        (problem,) = refused(tmp_path, parts)
        assert "no acknowledgements" in problem


class Killed(BaseException):
    """The end of the process."""


def test_an_import_that_is_killed_loses_nothing_and_is_done_again(tmp_path: Path) -> None:
    random = Random(3)
    disk = VolatileDisk()
    trust_file.enrol(disk, FLEET.root)
    heard: list[Acknowledged] = []

    def act(bundle: BundleReader, on: VolatileDisk) -> None:
        found: Found = look(bundle, trust_file.load(on).trusted, DEVICE)

        def acknowledge(each: Acknowledged) -> None:
            assert trust_file.load(on).trusted.desired is not None, "what it came with is kept first"
            heard.append(each)

        take(bundle, found, Carried(on), lambda each: trust_file.keep(on, each), acknowledge)

    with to_boxes(tmp_path / "bundle.tar") as bundle:
        at, finished = 0, False
        while not finished:
            at += 1
            dying, count = disk.copy(), 0

            def before(operation: str, path: str, at: int = at) -> None:
                nonlocal count
                count += 1
                if count == at:
                    raise Killed

            dying.before = before
            try:
                act(bundle, dying)
                finished = True
            except Killed:
                pass
            after = dying.after_power_cut(lambda: random.random() < 0.5, random)
            trusted = trust_file.load(after).trusted
            if trusted.desired is not None:
                tree = after.tree()
                assert tree[f"{CARRIED}/streams/{WAY.stream}"] == STREAM, "what is wanted was there first"
            act(bundle, after)
            assert trust_file.load(after).trusted.desired is not None
    assert at > 20


# --- the way back


REPORT = Report(device=DEVICE, generation=4)
BATCHES = [
    Batch(stream="serve", epoch=EPOCH, first=0, records=(b"\x01", b"\x02")),
    Batch(stream="sync", epoch=EPOCH, first=5, records=(b"\x03",)),
]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def from_box(
    tmp_path: Path, authority: Authority, device: str = DEVICE, parts: list[Part] | None = None
) -> BundleReader:
    """A bundle that ``device`` signed, open."""
    place, certificate = authority.identity(device, tmp_path / "identity.pem")
    signer = open_signer(place, lambda what: "")
    parts = parts_of(device, REPORT, BATCHES) if parts is None else parts
    path = tmp_path / "back.tar"
    write_file(path, index_for(parts, 0), parts, lambda index: signed_by_box(index, certificate, signer))
    return BundleReader(path)


def received(bundle: BundleReader, authority: Authority, **more: Any) -> Received:
    return receive(
        bundle, [Authority().certificate, authority.certificate], more.get("revoked", lambda each: False)
    )


def test_telemetry_comes_back_as_it_was_written(tmp_path: Path, authority: Authority) -> None:
    with from_box(tmp_path, authority) as bundle:
        found = received(bundle, authority)
        assert (found.device, found.report, list(found.batches)) == (DEVICE, REPORT, BATCHES)
    assert found.records == sum(len(each.records) for each in BATCHES)


def test_telemetry_that_together_is_more_than_memory_takes_no_more_than_one_batch(
    tmp_path: Path, authority: Authority
) -> None:
    """Each batch is within its bounds, and a stick has room for many."""
    record = bytes(TELEMETRY_UNPACKED_MAX - 4096)
    parts = [
        part_of(
            f"telemetry/{DEVICE}/{number:08}.zst",
            ZstdCompressor().compress(
                encode(Batch(stream="serve", epoch=EPOCH, first=number, records=(record,)))
            ),
        )
        for number in range(40)
    ]
    with from_box(tmp_path, authority, parts=parts) as bundle:
        tracemalloc.start()
        try:
            found = received(bundle, authority)
            assert (found.records, sum(len(each.records) for each in found.batches)) == (40, 40)
            assert tracemalloc.get_traced_memory()[1] < 8 * TELEMETRY_UNPACKED_MAX
        finally:
            tracemalloc.stop()


def test_only_a_box_of_this_controller_brings_telemetry(tmp_path: Path, authority: Authority) -> None:
    with from_box(tmp_path, Authority()) as bundle, pytest.raises(BundleInvalid, match="another controller"):
        received(bundle, authority)
    with from_box(tmp_path, authority) as bundle, pytest.raises(BundleInvalid, match="revoked"):
        received(bundle, authority, revoked=lambda each: True)
    with to_boxes(tmp_path / "out.tar") as bundle, pytest.raises(BundleInvalid, match="a box imports it"):
        received(bundle, authority)


def test_a_box_speaks_for_itself_alone(tmp_path: Path, authority: Authority) -> None:
    parts = parts_of(DEVICE, REPORT, BATCHES)
    with from_box(tmp_path, authority, "box-2", parts) as bundle, pytest.raises(BundleInvalid) as caught:
        received(bundle, authority)
    assert len(caught.value.problems) == 3
    named = [part_of("reports/box-2.msgpack", encode(REPORT))]
    with (
        from_box(tmp_path, authority, "box-2", named) as bundle,
        pytest.raises(BundleInvalid, match="names another device"),
    ):
        received(bundle, authority)


def test_a_signature_is_of_the_index_that_it_is_with(tmp_path: Path, authority: Authority) -> None:
    place, certificate = authority.identity(DEVICE, tmp_path / "identity.pem")
    signer = open_signer(place, lambda what: "")
    parts = parts_of(DEVICE, REPORT, BATCHES)
    lies: list[Sign] = [
        unsigned,
        lambda index: structs.replace(signed_by_box(index + b"x", certificate, signer), index=index),
        lambda index: structs.replace(signed_by_box(index, certificate, signer), certificate="none"),
        lambda index: structs.replace(signed_by_box(index, certificate, signer), signature=b""),
    ]
    for number, sign in enumerate(lies):
        path = tmp_path / f"{number}.tar"
        write_file(path, index_for(parts, 0), parts, sign)
        with BundleReader(path) as bundle, pytest.raises(BundleInvalid, match="not signed by a box"):
            received(bundle, authority)


def test_telemetry_that_would_fill_memory_is_refused(tmp_path: Path, authority: Authority) -> None:
    """Compressed bytes say of themselves how many they become, and a library believes them."""
    bomb = ZstdCompressor().compress(bytes(TELEMETRY_UNPACKED_MAX * 8))
    beyond = Batch(stream="serve", epoch=EPOCH, first=INT64_MAX, records=(b"\x01",))
    parts = [
        part_of(f"telemetry/{DEVICE}/00000001.zst", bomb),
        part_of(f"telemetry/{DEVICE}/00000002.zst", b"junk"),
        part_of(f"telemetry/{DEVICE}/00000003.zst", ZstdCompressor().compress(b"\xff")),
        part_of(f"telemetry/{DEVICE}/00000004.zst", ZstdCompressor().compress(encode(beyond))),
    ]
    with from_box(tmp_path, authority, parts=parts) as bundle, pytest.raises(BundleInvalid) as caught:
        received(bundle, authority)
    assert len(caught.value.problems) == 4
    assert "unpacks to more" in str(caught.value.problems[0])


def test_what_was_trusted_is_kept_where_a_bundle_goes_back(tmp_path: Path) -> None:
    newer: Trusted = look_at(tmp_path / "new", FLEET.publish(5, METADATA), begin(FLEET.root)).trusted
    found = look_at(tmp_path / "old", METADATA, newer)
    assert found.refused is not None
    assert (found.refused.code, found.trusted) == ("generation-went-back", newer)


def look_at(path: Path, metadata: Any, trusted: Trusted) -> Found:
    """What a bundle with ``metadata`` holds for a box that trusts so much."""
    with to_boxes(path, parts_for(FLEET.roots, {DEVICE: Export(metadata=metadata)}, BLOBS)[0]) as bundle:
        return look(bundle, trusted, DEVICE)
