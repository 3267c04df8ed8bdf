"""The scrub finds what changed on the disk, remembers how far it was, and is no faster than it is told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.config.store import StoreConfig
from appliance.domain.errors import StoreBusy
from appliance.store.layout import SCRUB, blob_path
from appliance.store.scrub import Damage, Scrub, ScrubRecord, decode, due_s, encode, noted, read_record
from appliance.store.writer import open_store
from tests.store.arrivals import arrival, contents_of
from tests.store.stores import install

CONFIG = StoreConfig(free_floor_bytes=0, scrub_bytes_per_s=1000)
DIGESTS = [f"{number:064x}" for number in range(4)]


class Clock:
    """Time that passes only in pauses."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def elapsed_s(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds

    def wall_ms(self) -> int:
        return int(self.now_s * 1000) + 1


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with open_store(tmp_path / "state", CONFIG) as store:
        install(store, arrival(), want=True, now_ms=1)
        install(store, arrival(version=2), want=True, now_ms=2)
    return tmp_path / "state"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def scrub(state: Path, clock: Clock) -> Iterator[Scrub]:
    made = Scrub(state, CONFIG, wall_ms=clock.wall_ms, elapsed_s=clock.elapsed_s, pause=clock.pause)
    yield made
    made.close()


def weights(state: Path) -> Path:
    """The blob with the weights of version 1."""
    wanted = contents_of(1)["1/weights.bin"]
    return next(
        path for path in (state / "blobs").rglob("*") if path.is_file() and path.read_bytes() == wanted
    )


def flip(path: Path) -> None:
    os.chmod(path, 0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def test_a_whole_store_has_no_damage(state: Path, scrub: Scrub) -> None:
    record = scrub.run_pass()
    assert record.damaged == ()
    assert record.blobs == len([path for path in (state / "blobs").rglob("*") if path.is_file()])
    assert record.position == ""
    assert read_record(state) == record


def test_a_flipped_bit_is_found_and_forgotten_once_it_is_repaired(
    state: Path, scrub: Scrub, clock: Clock
) -> None:
    blob = weights(state)
    flip(blob)
    (damage,) = scrub.run_pass().damaged
    assert damage.digest == blob.name
    assert damage.text == "has other bytes than its name says"
    clock.pause(5)
    assert scrub.run_pass().damaged == (damage,), "it is told when it was found first"
    with open_store(state, CONFIG) as store:
        before = store.catalog
        install(store, arrival(), want=False, now_ms=3)
        assert store.catalog.models == before.models
        assert store.catalog.generation == before.generation + 1, "who serves it looks again"
    assert scrub.run_pass().damaged == ()


@pytest.mark.parametrize("loss", ["missing", "shorter", "directory"])
def test_other_losses_are_found(state: Path, scrub: Scrub, loss: str) -> None:
    blob = weights(state)
    if loss == "shorter":
        os.truncate(blob, 3)
    else:
        blob.unlink()
    if loss == "directory":
        blob.mkdir()
    words = {"missing": "is missing", "shorter": "has 3 bytes and not", "directory": "is not a file"}
    (damage,) = scrub.run_pass().damaged
    assert words[loss] in damage.text


def test_it_is_no_faster_than_it_is_told(state: Path, scrub: Scrub, clock: Clock) -> None:
    record = scrub.run_pass()
    assert clock.now_s == pytest.approx(record.bytes / CONFIG.scrub_bytes_per_s)


def test_it_goes_on_where_it_was(state: Path, scrub: Scrub) -> None:
    blobs = sorted(path.name for path in (state / "blobs").rglob("*") if path.is_file())
    flip(state / blob_path(blobs[0]))
    half = ScrubRecord(position=blobs[2], started_ms=5, blobs=3, bytes=9)
    (state / SCRUB).write_bytes(encode(half))
    record = scrub.run_pass()
    assert record.blobs == len(blobs)
    assert record.damaged == (), "what comes before was read before"
    assert record.started_ms == 5
    assert [each.digest for each in scrub.run_pass().damaged] == [blobs[0]]


def test_what_was_uninstalled_meanwhile_is_not_damaged(state: Path, scrub: Scrub) -> None:
    def uninstall(_: int) -> None:
        if blob.exists():
            with open_store(state, CONFIG) as store:
                store.uninstall("digits")

    blob = weights(state)
    assert scrub.run_pass(uninstall).damaged == ()
    assert not blob.exists()


def test_there_is_one_scrub_at_a_time_and_the_writer_is_not_in_its_way(
    state: Path, scrub: Scrub, clock: Clock
) -> None:
    with pytest.raises(StoreBusy):
        Scrub(state, CONFIG, wall_ms=clock.wall_ms, elapsed_s=clock.elapsed_s, pause=clock.pause)
    with open_store(state, CONFIG):
        scrub.run_pass()


def test_when_a_pass_is_due() -> None:
    done = ScrubRecord(finished_ms=1_000_000)
    assert due_s(ScrubRecord(), 3600, 5) == 0
    assert due_s(done, 3600, 1_000_000) == 3600
    assert due_s(done, 3600, 9_000_000) == 0
    assert due_s(done, 3600, 0) == 3600, "a clock that was stepped back"
    assert due_s(ScrubRecord(position=DIGESTS[1], finished_ms=1_000_000), 3600, 1_000_000) == 0


def test_the_record_survives_its_file() -> None:
    record = noted(noted(ScrubRecord(), DIGESTS[1], 5, "is missing", 7), DIGESTS[2], 6, "", 8)
    assert record == ScrubRecord(
        position=DIGESTS[2],
        blobs=2,
        bytes=11,
        damaged=(Damage(digest=DIGESTS[1], text="is missing", found_ms=7),),
    )
    assert decode(encode(record)) == record


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"format": 2}', b'{"format": 1, "damaged": [1]}', b"[" * 9999,
     encode(ScrubRecord(position="x")), encode(ScrubRecord(blobs=-1))],
)  # fmt: skip
def test_a_record_that_cannot_be_read_is_begun_anew(data: bytes) -> None:
    assert decode(data) == ScrubRecord()
