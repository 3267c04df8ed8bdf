"""What an outbox acknowledged arrives or is accounted for, whatever happens to disk and processes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from appliance.durable import RealFolder
from appliance.outbox.gap import Reason
from appliance.outbox.outbox import SEGMENT_BYTES_LEAST, Outbox, OutboxFull, Policy
from appliance.outbox.reader import OutboxReader
from appliance.outbox.segment import HEADER_BYTES, MARK_BYTES, OVERHEAD_BYTES, RECORD_BYTES_MAX, decode
from appliance.outbox.shelf import read_cursor, segments
from tests.outbox.world import World

LARGE = 1 << 30
HISTORIES = 1000
"""With and without damage: 2,000 together."""


@pytest.fixture
def folder(tmp_path: Path) -> RealFolder:
    return RealFolder(tmp_path)


def everything(reader: OutboxReader) -> list[bytes]:
    """What there is to read, read in small portions."""
    found: list[bytes] = []
    while reading := reader.read(1000, 7):
        found += reading.payloads
        reader.acknowledge(reading.epoch, reading.end)
    return found


@pytest.mark.parametrize("damage", [False, True], ids=["crashes", "damage"])
@pytest.mark.timeout(240)
def test_conservation(damage: bool) -> None:
    totals = [0, 0, 0]
    for seed in range(HISTORIES):
        seen = World(seed, damage=damage).play()
        assert not seen.wrong, (seed, seen.wrong[:3])
        totals = [a + b for a, b in zip(totals, (seen.kept, seen.gaps, seen.failed), strict=True)]
    assert min(totals) > 500, "nothing happened"


def test_records_come_in_order_and_once(folder: RealFolder) -> None:
    with Outbox(folder, LARGE, Policy.REFUSE) as outbox:
        told = [str(number).encode() for number in range(100)]
        for number in range(0, 100, 10):
            assert outbox.append(told[number : number + 10]) == number
        assert everything(OutboxReader(folder)) == told
        assert OutboxReader(folder).read(1000, 1000) is None


def test_what_was_read_and_not_acknowledged_comes_again(folder: RealFolder) -> None:
    with Outbox(folder, LARGE, Policy.REFUSE) as outbox:
        outbox.append([b"a", b"b", b"c"])
    reader = OutboxReader(folder)
    reading = reader.read(1000, 2)
    assert reading is not None
    assert reading.payloads == (b"a", b"b")
    again = OutboxReader(folder).read(1000, 1000)
    assert again is not None
    assert again.payloads == (b"a", b"b", b"c")


def test_the_oldest_are_dropped_and_told_of(folder: RealFolder) -> None:
    limit = 4 * SEGMENT_BYTES_LEAST
    with Outbox(folder, limit, Policy.DROP_OLDEST) as outbox:
        for number in range(400):
            outbox.append([b"%d " % number + bytes(100)])
        assert outbox.size_bytes <= limit
    reading = OutboxReader(folder).read(1 << 20, 1000)
    assert reading is not None
    (gap,) = reading.lost
    assert (gap.first, gap.last, gap.reason) == (0, reading.first - 1, Reason.BOUND)
    assert reading.payloads[0].startswith(b"%d " % reading.first)


def test_what_must_not_be_dropped_is_refused_until_there_is_room(folder: RealFolder) -> None:
    with Outbox(folder, 4 * SEGMENT_BYTES_LEAST, Policy.REFUSE) as outbox:
        told: list[int] = []

        def fill() -> None:
            while True:
                outbox.append([b"%d " % len(told) + bytes(100)])
                told.append(len(told))

        with pytest.raises(OutboxFull, match="keeps all until they are sent"):
            fill()
        found = everything(OutboxReader(folder))
        assert [int(each.split()[0]) for each in found] == told
        assert outbox.append([b"more"]) == len(told)


def test_a_commit_is_shared(folder: RealFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many threads append; there are fewer syncs than records, and each waits for its own."""
    with Outbox(folder, LARGE, Policy.REFUSE) as outbox:
        syncs = 0
        sync = os.fsync

        def counted(descriptor: int) -> None:
            nonlocal syncs
            syncs += 1
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", counted)
        numbers: list[int] = []
        ready = threading.Barrier(16)

        def produce() -> None:
            ready.wait()
            numbers.extend(outbox.append([b"x"]) for _ in range(50))

        threads = [threading.Thread(target=produce) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(numbers) == list(range(800))
    assert syncs < 800


@pytest.mark.parametrize("payload", [b"", bytes(RECORD_BYTES_MAX + 1)], ids=["empty", "long"])
def test_what_cannot_be_a_record_is_refused(folder: RealFolder, payload: bytes) -> None:
    with Outbox(folder, LARGE, Policy.REFUSE) as outbox, pytest.raises(ValueError, match="can be kept"):
        outbox.append([b"good", payload])
    assert OutboxReader(folder).read(1000, 1000) is None


def test_every_byte_of_a_segment_that_changes_is_noticed(folder: RealFolder, tmp_path: Path) -> None:
    with Outbox(folder, LARGE, Policy.REFUSE) as outbox:
        outbox.append([b"first record", b"second record"])
    ((_, name),) = segments(folder)
    data = (tmp_path / name).read_bytes()
    whole = decode(data)
    assert whole is not None
    assert (whole.payloads, whole.marked, whole.rest_bytes) == ((b"first record", b"second record"), 2, 0)
    for at in range(len(data)):
        changed = decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        if at < HEADER_BYTES:
            assert changed is None
        else:
            assert changed is not None
            assert changed.payloads == whole.payloads[: len(changed.payloads)]
            assert (changed.payloads, changed.marked) != (whole.payloads, whole.marked)
        cut = decode(data[:at])
        assert cut is None or cut.payloads == whole.payloads[: len(cut.payloads)]


def test_a_damaged_segment_is_told_of_and_the_others_are_read(folder: RealFolder, tmp_path: Path) -> None:
    with Outbox(folder, 16 * SEGMENT_BYTES_LEAST, Policy.REFUSE) as outbox:
        for number in range(200):
            outbox.append([b"%d " % number + bytes(100)])
    _, (_, second), *_ = segments(folder)
    data = bytearray((tmp_path / second).read_bytes())
    data[HEADER_BYTES + 10] ^= 1
    (tmp_path / second).chmod(0o600)
    (tmp_path / second).write_bytes(data)
    reader, numbers, lost = OutboxReader(folder), list[int](), list[int]()
    while reading := reader.read(10_000, 100):
        for gap in reading.lost:
            assert gap.reason is Reason.DAMAGED
            lost += range(gap.first, gap.last + 1)
        numbers += [int(each.split()[0]) for each in reading.payloads]
        reader.acknowledge(reading.epoch, reading.end)
    assert lost
    assert sorted(numbers + lost) == list(range(200))


@pytest.mark.parametrize("change", ["flip", "zeros", "cut"])
def test_the_newest_segment_damaged_at_any_byte_costs_what_is_told(tmp_path: Path, change: str) -> None:
    """While nobody runs; a receiver has some of it already, and must not take new records for those."""
    told = [b"%d " % number + bytes(10) for number in range(12)]
    number, more = 0, True
    while more:
        place = tmp_path / str(number)
        place.mkdir()
        folder = RealFolder(place)
        held: dict[int, bytes] = {}
        with Outbox(folder, LARGE, Policy.REFUSE) as outbox:
            for commit in range(0, 12, 3):
                outbox.append(told[commit : commit + 3])
            reading = OutboxReader(folder).read(1000, 4)
            assert reading is not None
            held |= dict(enumerate(reading.payloads))
            OutboxReader(folder).acknowledge(reading.epoch, reading.end)
        ((_, name),) = segments(folder)
        data = (place / name).read_bytes()
        at, size = HEADER_BYTES + number, len(data)
        broken = {
            "flip": data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :],
            "zeros": data[:at] + bytes(min(20, size - at)) + data[at + 20 :],
            "cut": data[:at],
        }[change]
        (place / name).write_bytes(broken)
        with Outbox(folder, LARGE, Policy.REFUSE) as outbox:
            first = outbox.append([b"new"])
        assert first not in held
        reader, gone, reasons = OutboxReader(folder), set[int](), set[Reason]()
        while reading := reader.read(1000, 100):
            gone |= {each for gap in reading.lost for each in range(gap.first, gap.last + 1)}
            reasons |= {gap.reason for gap in reading.lost}
            for index, payload in enumerate(reading.payloads):
                assert held.setdefault(reading.first + index, payload) == payload
            reader.acknowledge(reading.epoch, reading.end)
        assert held.pop(first) == b"new"
        assert all(payload == told[each] for each, payload in held.items())
        tail = size - at <= MARK_BYTES + 3 * (OVERHEAD_BYTES + len(told[-1])) or change == "cut"
        assert tail or set(held) | gone >= set(range(12))
        assert tail or (Reason.DAMAGED in reasons) == (len(held) < 12)
        number, more = number + 1, at + 1 < size


def test_a_damaged_segment_is_kept_for_a_person_when_its_room_is_wanted(
    folder: RealFolder, tmp_path: Path
) -> None:
    with Outbox(folder, 64 * SEGMENT_BYTES_LEAST, Policy.REFUSE) as outbox:
        for number in range(400):
            outbox.append([b"%d " % number + bytes(100)])
        (_, whole), (_, damaged), _, *_ = segments(folder)
        data = bytearray((tmp_path / damaged).read_bytes())
        data[HEADER_BYTES + 10] ^= 1
        (tmp_path / damaged).write_bytes(data)
        everything(OutboxReader(folder))
        outbox.trim()
    assert not (tmp_path / whole).exists()
    assert (tmp_path / "damaged" / damaged).read_bytes() == data


def test_a_cursor_that_cannot_be_read_is_begun_anew(folder: RealFolder, tmp_path: Path) -> None:
    with Outbox(folder, LARGE, Policy.REFUSE) as outbox:
        outbox.append([b"a"])
    (tmp_path / "cursor").write_bytes(b"\xff")
    assert everything(OutboxReader(folder)) == [b"a"]
    assert read_cursor(folder).next == 1


PRODUCER = """
import os, sys
from pathlib import Path
from appliance.durable import RealFolder
from appliance.outbox.outbox import Outbox, Policy
outbox = Outbox(RealFolder(Path(sys.argv[1])), 1 << 20, Policy.DROP_OLDEST)
number = int(sys.argv[2])
while True:
    try:
        place = outbox.append([b"%d" % (number + index) + bytes(200) for index in range(5)])
    except OSError as error:
        said = f"failed {error.errno}\\n"
    else:
        said = f"{outbox.epoch} {place} {number}\\n"
        number += 5
    os.writev(1, [said.encode()])
"""


@pytest.mark.timeout(120)
def test_a_real_producer_that_is_killed_loses_nothing_that_it_was_told_is_kept(tmp_path: Path) -> None:
    """SIGKILL at any moment, two hundred times, and a receiver that keeps what it gets."""
    kept: dict[int, int] = {}
    held: dict[int, int] = {}
    gone: set[int] = set()
    folder = RealFolder(tmp_path)
    number = 0
    for turn in range(200):
        words = [sys.executable, "-c", PRODUCER, str(tmp_path), str(number)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(1 + turn * 7 % 40):
                _, place, told = process.stdout.readline().split()
                kept |= {int(place) + index: int(told) + index for index in range(5)}
            process.send_signal(signal.SIGKILL)
            for line in process.stdout:
                if len(words := line.split()) == 3 and line.endswith("\n"):
                    kept |= {int(words[1]) + index: int(words[2]) + index for index in range(5)}
        number = 1_000_000 * (turn + 1)
        reader = OutboxReader(folder)
        for _ in range(turn % 3):
            if reading := reader.read(20_000, 1000):
                take(reading.first, reading.payloads, held)
                gone |= {each for gap in reading.lost for each in range(gap.first, gap.last + 1)}
                reader.acknowledge(reading.epoch, reading.end)
    Outbox(folder, 1 << 20, Policy.DROP_OLDEST).close()
    drain(folder, held, gone)
    assert len(kept) > 2000
    assert not {place for place, told in kept.items() if held.get(place, told) != told}
    assert not {place for place in kept if place not in held and place not in gone}


def drain(folder: RealFolder, held: dict[int, int], gone: set[int]) -> None:
    """Receive all there is. Nobody pulled the plug, so what was cut was never acknowledged."""
    reader = OutboxReader(folder)
    while reading := reader.read(100_000, 1000):
        take(reading.first, reading.payloads, held)
        lost = (gap for gap in reading.lost if gap.reason is not Reason.CUT)
        gone |= {each for gap in lost for each in range(gap.first, gap.last + 1)}
        reader.acknowledge(reading.epoch, reading.end)


def take(first: int, payloads: tuple[bytes, ...], held: dict[int, int]) -> None:
    for index, payload in enumerate(payloads):
        told = int(payload.rstrip(b"\0"))
        assert held.setdefault(first + index, told) == told


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_a_disk_that_fails_at_a_call_costs_what_was_told(tmp_path: Path, call: str, error: str) -> None:
    """A real process whose kernel fails some such calls; it goes on by itself."""
    box = tmp_path / "box"
    box.mkdir()
    calls = "rename,renameat,renameat2" if call == "rename" else call
    when = "2..3" if call == "rename" else "20..25"
    words = ["strace", "-f", "-qq", "-o", str(tmp_path / "trace"), "-e", f"trace={calls}"]
    words += [
        "-e",
        f"inject={calls}:error={error}:when={when}",
        sys.executable,
        "-c",
        PRODUCER,
        str(box),
        "0",
    ]
    try:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    except FileNotFoundError:
        pytest.skip("there is no strace here")
    told: dict[int, int] = {}
    failed = 0
    with process:
        assert process.stdout is not None
        for _ in range(300):
            line = process.stdout.readline().split()
            failed += line[:1] == ["failed"]
            if len(line) == 3:
                told |= {int(line[1]) + index: int(line[2]) + index for index in range(5)}
        os.killpg(process.pid, signal.SIGKILL)
    assert len(told) > 500
    assert failed, "nothing was injected"
    held: dict[int, int] = {}
    gone: set[int] = set()
    folder = RealFolder(box)
    Outbox(folder, 1 << 20, Policy.DROP_OLDEST).close()
    drain(folder, held, gone)
    assert not {place for place in told if held.get(place) != told[place] and place not in gone}


def test_writes_that_are_short_cost_what_was_told(tmp_path: Path) -> None:
    """A file system that takes a part of a write, and then no more: each file may have 32 KiB."""
    box = tmp_path / "box"
    box.mkdir()
    words = ["bash", "-c", 'ulimit -f 32; exec "$@"', "-", sys.executable, "-c", PRODUCER, str(box), "0"]
    told: dict[int, int] = {}
    failed = 0
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(300):
            line = process.stdout.readline().split()
            failed += line == ["failed", str(errno.EFBIG)]
            if len(line) == 3:
                told |= {int(line[1]) + index: int(line[2]) + index for index in range(5)}
        process.kill()
    assert failed > 1, "the limit was not met"
    held: dict[int, int] = {}
    gone: set[int] = set()
    folder = RealFolder(box)
    Outbox(folder, 1 << 20, Policy.DROP_OLDEST).close()
    drain(folder, held, gone)
    assert len(told) > 500
    assert not {place for place in told if held.get(place) != told[place] and place not in gone}


def test_a_write_that_failed_is_told_and_its_number_is_accounted_for(
    folder: RealFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Outbox(folder, LARGE, Policy.REFUSE) as outbox:
        outbox.append([b"a"])
        with monkeypatch.context() as patched:

            def full(*_: object) -> int:
                raise OSError(errno.ENOSPC, "no room")

            patched.setattr(os, "write", full)
            with pytest.raises(OSError, match="no room"):
                outbox.append([b"failed"])
        assert outbox.append([b"b"]) == 2
    reader = OutboxReader(folder)
    assert everything(reader) == [b"a", b"b"]
    assert reader.cursor.next == 3
