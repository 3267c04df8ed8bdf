"""Weights as mapped pages of a file: found by inode, let go, brought back, and never believed blindly."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.domain.digest import PIECE_BYTES, Digester, digest_of
from appliance.domain.errors import LoadFailed
from appliance.domain.model import WeightsFile
from appliance.runtimes import weights
from appliance.runtimes.weights import MappedWeights, Mapping, find_mapped, mapped_now, read_ahead

PAGE = mmap.PAGESIZE
PIECES = 3
TAIL = 5 * PAGE + 100
SIZE = (PIECES - 1) * PIECE_BYTES + TAIL
PATIENCE_S = 30.0


@pytest.fixture
def file(tmp_path: Path) -> WeightsFile:
    """Two and a bit pieces of bytes that are nowhere alike."""
    path = tmp_path / "weights.bin"
    data = bytearray(os.urandom(SIZE))
    path.write_bytes(data)
    with open(path, "rb") as written:
        os.fsync(written.fileno())
    digester = Digester()
    digester.update(data)
    found = digester.finish()
    assert len(found.pieces) == PIECES
    return WeightsFile(path=str(path), size=SIZE, digest=found.digest, pieces=found.pieces)


@contextmanager
def mapped(file: WeightsFile, *parts: tuple[int, int]) -> Iterator[tuple[MappedWeights, list[mmap.mmap]]]:
    """Private mappings of parts of the file, as (offset, bytes), as a runtime makes them."""
    with open(file.path, "rb") as source:
        maps = [
            mmap.mmap(source.fileno(), nbytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ, offset=offset)
            for offset, nbytes in parts
        ]
    found = find_mapped(file)
    assert found is not None
    try:
        yield found, maps
    finally:
        found.close()
        for each in maps:
            each.close()


@pytest.mark.parametrize("advice", [22, 9999], ids=["populate", "an older kernel"])
@pytest.mark.parametrize("verify", [False, True])
def test_evict_and_page_in(
    file: WeightsFile, monkeypatch: pytest.MonkeyPatch, advice: int, verify: bool
) -> None:
    monkeypatch.setattr(weights, "_MADV_POPULATE_READ", advice)
    whole = SIZE // PAGE * PAGE
    with mapped(file, (0, whole)) as (found, (memory,)):
        assert found.nbytes == whole
        before = bytes(memory)
        found.evict_weights()
        assert rss_of(file) == 0
        found.page_in(verify=verify)
        assert 0.9 * whole <= rss_of(file) <= whole, "but for what the kernel takes back at once"
        assert bytes(memory) == before


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without large pages"
)
def test_large_pages_are_asked_for_where_a_session_has_mapped_the_file(file: WeightsFile) -> None:
    with mapped(file, (0, PAGE), (PIECE_BYTES, 4 * PAGE)):
        flags, ours = [], False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if "-" in line.split(maxsplit=1)[0]:
                ours = line.endswith(file.path)
            elif ours and line.startswith("VmFlags:"):
                flags.append("hg" in line.split())
    assert flags == [True, True]


def test_only_what_is_mapped_is_read_and_pieces_of_it_are_verified_whole(file: WeightsFile) -> None:
    near, far = 4 * PAGE, 2 * PIECE_BYTES
    with mapped(file, (0, PAGE), (near, PAGE), (far, PAGE)) as (found, _):
        found.evict_weights()
        found.page_in(verify=True)
        assert rss_of(file) == 3 * PAGE


@pytest.mark.parametrize(
    ("position", "checked"),
    [(PIECE_BYTES - 1, True), (PIECE_BYTES, False), (2 * PIECE_BYTES, True)],
    ids=["beside what is mapped", "between", "mapped"],
)
def test_pieces_between_mappings_that_lie_far_apart_are_not_verified(
    file: WeightsFile, position: int, checked: bool
) -> None:
    with open(file.path, "r+b") as target:
        target.seek(position)
        (byte,) = target.read(1)
        target.seek(position)
        target.write(bytes([byte ^ 1]))
    refused = pytest.raises(LoadFailed, match=f"piece {position // PIECE_BYTES} ")
    with (
        mapped(file, (0, PAGE), (2 * PIECE_BYTES, PAGE)) as (found, _),
        refused if checked else nullcontext(),
    ):
        found.page_in(verify=True)


def test_a_small_gap_is_verified_even_where_it_is_a_piece_of_its_own(
    file: WeightsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "GAP_BYTES_MAX", 2 * PIECE_BYTES)
    with open(file.path, "r+b") as target:
        target.seek(PIECE_BYTES)
        target.write(bytes(8))
    with (
        mapped(file, (0, PAGE), (2 * PIECE_BYTES, PAGE)) as (found, _),
        pytest.raises(LoadFailed, match="piece 1 "),
    ):
        found.page_in(verify=True)


def test_the_mappings_of_another_file_are_another_files(file: WeightsFile, tmp_path: Path) -> None:
    other = tmp_path / "other.bin"
    other.write_bytes(bytes(SIZE))
    with mapped(file, (0, PAGE)):
        assert find_mapped(WeightsFile(path=str(other), size=SIZE)) is None
        os.link(file.path, tmp_path / "second name.bin")
        again = find_mapped(replace(file, path=str(tmp_path / "second name.bin")))
        assert again is not None
        assert again.nbytes == PAGE
        again.close()


def test_what_another_session_has_mapped_of_the_file_is_not_this_ones(file: WeightsFile) -> None:
    """It goes when the other one is closed, and its addresses may be anybody's then."""
    with mapped(file, (0, 3 * PAGE)) as (first, maps):
        others = mapped_now(file)
        assert find_mapped(file, others) is None
        with open(file.path, "rb") as source:
            mine = mmap.mmap(
                source.fileno(), 2 * PAGE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ, offset=3 * PAGE
            )
        found = find_mapped(file, others)
        assert found is not None
        assert (first.nbytes, found.nbytes) == (3 * PAGE, 2 * PAGE)
        maps[0].close()
        found.evict_weights()
        found.page_in(verify=True)
        found.close()
        mine.close()


PLACES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=12)


@given(PLACES, st.integers(1, 9), st.integers(0, 5))
def test_each_mapped_page_is_read_once_and_then_shown_once(
    places: list[tuple[int, int]], step: int, gap: int
) -> None:
    """Mappings may overlap; the file ends within its last page."""
    size = max(first + count for first, count in places) * PAGE - 100
    mappings = sorted(
        (
            Mapping(number << 40, count * PAGE, first * PAGE)
            for number, (first, count) in enumerate(places, 1)
        ),
        key=lambda mapping: mapping.offset,
    )
    read: list[int] = []
    shown: list[tuple[int, int]] = []

    def populate(address: int, nbytes: int) -> None:
        assert address % PAGE == 0
        number, place = divmod(address, 1 << 40)
        pages = range(place // PAGE, -(-(place + nbytes) // PAGE))
        if number == 0:
            assert nbytes <= step * PAGE
            read.extend(pages)
            return
        first, _ = places[number - 1]
        assert {first + page for page in pages} <= {*read}, "it is read before"
        shown.extend((number, page) for page in pages)

    whole = cast("weights._SharedMapping", SimpleNamespace(address=0))
    file = WeightsFile(path="", size=size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "_populate", populate)
        patch.setattr(weights, "STEP_BYTES", step * PAGE)
        patch.setattr(weights, "GAP_BYTES_MAX", gap * PAGE)
        ends: list[int] = []
        weights._populate_all(file, whole, mappings, ends.append)
    assert sorted(shown) == [
        (number, page) for number, (_, count) in enumerate(places, 1) for page in range(count)
    ]
    assert len(read) == len({*read})
    assert ends == sorted(ends)
    assert ends[-1] == size


@pytest.mark.parametrize(
    ("others", "left"),
    [
        ([], [(100, 60, 7)]),
        ([(0, 100), (160, 50)], [(100, 60, 7)]),
        ([(100, 20)], [(120, 40, 27)]),
        ([(140, 50)], [(100, 40, 7)]),
        ([(110, 10), (130, 5)], [(100, 10, 7), (120, 10, 27), (135, 25, 42)]),
        ([(90, 100)], []),
    ],
)
def test_of_what_the_kernel_lists_as_one_the_rest_is_taken(
    others: list[tuple[int, int]], left: list[tuple[int, int, int]]
) -> None:
    there = [Mapping(address, nbytes, 0) for address, nbytes in others]
    assert list(weights._beside(Mapping(100, 60, 7), there)) == left


@pytest.mark.parametrize("position", [0, PIECE_BYTES - 1, PIECE_BYTES, SIZE - 1])
def test_a_bit_anywhere_is_found_and_its_piece_named(file: WeightsFile, position: int) -> None:
    with open(file.path, "r+b") as target:
        target.seek(position)
        (byte,) = target.read(1)
        target.seek(position)
        target.write(bytes([byte ^ 0x80]))
    with pytest.raises(LoadFailed, match=rf"piece {position // PIECE_BYTES} \(bytes .* digest differs"):
        read_ahead(file, verify=True)
    read_ahead(file, verify=False)


def test_rot_outside_of_what_is_mapped_is_left_to_the_scrub(file: WeightsFile) -> None:
    with open(file.path, "r+b") as target:
        target.seek(SIZE - 1)
        target.write(b"\0")
    with mapped(file, (0, PAGE)) as (found, _):
        found.page_in(verify=True)


@pytest.mark.parametrize("size", [0, PAGE, SIZE - 1, SIZE + 1])
def test_a_file_of_another_size_is_refused(file: WeightsFile, size: int) -> None:
    os.truncate(file.path, size)
    with pytest.raises(LoadFailed, match=f"has {size} bytes where {SIZE} were expected"):
        read_ahead(file, verify=False)


def test_a_file_that_is_gone(file: WeightsFile) -> None:
    os.unlink(file.path)
    with pytest.raises(LoadFailed, match="cannot be read: No such file"):
        read_ahead(file, verify=False)
    with pytest.raises(LoadFailed, match="cannot be read: No such file"):
        find_mapped(file)


def test_digests_that_are_too_few_do_not_pass(file: WeightsFile) -> None:
    with pytest.raises(LoadFailed, match="piece 2"):
        read_ahead(replace(file, pieces=file.pieces[:2]), verify=True)


def test_every_thread_begins_with_what_it_is_told(file: WeightsFile) -> None:
    begun: list[str] = []
    read_ahead(file, verify=True, begin=lambda: begun.append("verify"))
    assert begun == ["verify"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_piece_whose_check_ended_early_is_not_verified_whatever_ended_it(
    file: WeightsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(file.path).write_bytes(bytes(SIZE))
    ended = threading.Event()

    def check(piece: memoryview) -> str:
        if threading.current_thread().name != "verify":
            return digest_of(piece)
        ended.set()
        raise MemoryError

    def progress(done_bytes: int) -> None:
        assert ended.wait(PATIENCE_S), "nothing was checked while the rest was read"

    monkeypatch.setattr(weights, "digest_of", check)
    rotten = replace(file, pieces=(file.pieces[0], digest_of(bytes(PIECE_BYTES)), digest_of(bytes(TAIL))))
    with pytest.raises(LoadFailed, match="could not be verified"):
        read_ahead(rotten, verify=True, progress=progress)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_a_thread_that_did_not_begin_was_to_verify_is_not_verified(file: WeightsFile) -> None:
    def begin() -> None:
        raise MemoryError

    with pytest.raises(LoadFailed, match="could not be verified"):
        read_ahead(file, verify=True, begin=begin)


def test_the_thread_is_over_where_the_reader_fails(
    file: WeightsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it reads is unmapped then."""
    begun, awaited = threading.Event(), threading.Event()
    checking: list[threading.Thread] = []

    class Awaited(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            awaited.set()
            super().join(timeout)

    def check(piece: memoryview) -> str:
        if threading.current_thread().name != "verify":
            raise MemoryError
        digest = digest_of(piece)
        checking.append(threading.current_thread())
        begun.set()
        assert awaited.wait(PATIENCE_S)
        return digest

    def progress(done_bytes: int) -> None:
        assert begun.wait(PATIENCE_S)

    monkeypatch.setattr(weights, "digest_of", check)
    monkeypatch.setattr(threading, "Thread", Awaited)
    with pytest.raises(MemoryError):
        read_ahead(file, verify=True, progress=progress)
    alive = checking[0].is_alive()
    awaited.set()
    assert not alive


def rss_of(file: WeightsFile) -> int:
    """Bytes of the file in the page tables of this process."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            inside = line.endswith(file.path)
        elif inside and first == "Rss:":
            found += int(line.split()[1]) << 10
    return found
