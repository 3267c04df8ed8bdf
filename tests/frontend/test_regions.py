"""Regions of shared memory: whose they are, which files may be one, and that a file that changes harms one request."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from appliance.config.shared_memory import SharedMemoryConfig
from appliance.domain.errors import (
    ApplianceError,
    Forbidden,
    InvalidRequest,
    QueueFull,
    RegionExists,
    RegionsFull,
    UnknownRegion,
    Unsupported,
)
from appliance.domain.inference import OutputTensor, Parameter
from appliance.domain.steps import finished
from appliance.domain.tensor import Datatype
from appliance.frontend import regions as module
from appliance.frontend.regions import (
    NAME_BYTES_MAX,
    NOBODYS,
    OVERFLOW_USER,
    RESERVED,
    UNKNOWN_USER,
    Regions,
    Registered,
    put_outputs,
    user_problems,
    users_of,
)

ME = os.getuid()
OTHER = ME + 1
SIZE = 64
HUGE = (1 << 64) - 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine").write_bytes(bytes(range(SIZE)))
    return tmp_path


@pytest.fixture
def regions(folder: Path) -> Regions:
    config = SharedMemoryConfig(max_bytes=4 * 4096)
    return Regions(config, frozenset({ME, OTHER}), str(folder))


def mine(name: str = "r", key: str = "/mine", offset: int = 0, nbytes: int = SIZE) -> Registered:
    return Registered(name, key, offset, nbytes)


def part(nbytes: int, offset: int = 0, region: str = "r") -> Mapping[str, Parameter]:
    return {
        "shared_memory_region": region,
        "shared_memory_byte_size": nbytes,
        "shared_memory_offset": offset,
    }


def copied(regions: Regions, nbytes: int, offset: int = 0) -> bytes:
    window = regions.window(ME, "input", "x", part(nbytes, offset))
    place = memoryview(bytearray(len(window)))
    assert window.read_into(place) is None
    return bytes(place)


def output(data: bytes, name: str = "y") -> OutputTensor:
    return OutputTensor(name, Datatype.UINT8, (len(data),), data)


def test_what_is_in_a_region_is_read_and_written(regions: Regions, folder: Path) -> None:
    regions.register(ME, mine(offset=8, nbytes=16))
    assert copied(regions, 4, 2) == bytes(range(10, 14))
    window = regions.window(ME, "output", "y", part(16))
    outputs, written = put_outputs([output(b"abcd"), output(b"z", "other")], {"y": window})
    assert [each.data for each in outputs] == [b"", b"z"]
    assert written == {"y": ("r", 0, 4)}
    assert (folder / "mine").read_bytes()[6:14] == b"\x06\x07abcd\x0c\x0d"


def test_status_and_unregistering(regions: Regions) -> None:
    regions.register(ME, mine("a"))
    regions.register(ME, mine("b", offset=8, nbytes=8))
    assert regions.status(ME, "b") == [mine("b", offset=8, nbytes=8)]
    assert [each.name for each in regions.status(ME, "")] == ["a", "b"]
    regions.unregister(ME, "a")
    regions.unregister(ME, "never was")
    with pytest.raises(UnknownRegion, match="Unable to find system shared memory region: 'a'"):
        regions.status(ME, "a")
    regions.unregister(ME, "")
    assert not regions.status(ME, "")


def test_a_region_is_its_user_s_alone(regions: Regions) -> None:
    regions.register(ME, mine())
    assert not regions.status(OTHER, "")
    with pytest.raises(UnknownRegion):
        regions.status(OTHER, "r")
    with pytest.raises(UnknownRegion):
        regions.window(OTHER, "input", "x", part(4))
    regions.unregister(OTHER, "r")
    regions.unregister(OTHER, "")
    assert regions.status(ME, "r")


def test_a_name_is_taken_once(regions: Regions) -> None:
    regions.register(ME, mine())
    with pytest.raises(RegionExists, match="'r' already in manager"):
        regions.register(ME, mine(nbytes=8))


@pytest.mark.parametrize("user", [UNKNOWN_USER, OVERFLOW_USER])
def test_who_is_not_known_is_told_how_to_be(regions: Regions, user: int) -> None:
    for ask in (
        lambda: regions.register(user, mine()),
        lambda: regions.unregister(user, ""),
        lambda: regions.status(user, ""),
        lambda: regions.window(user, "input", "x", part(4)),
    ):
        with pytest.raises(Forbidden, match="connect over a Unix socket"):
            ask()


def test_who_is_not_named_is_refused(regions: Regions) -> None:
    with pytest.raises(Forbidden, match=rf"not for user {ME + 2}; .* shared_memory.users"):
        regions.register(ME + 2, mine())


def test_it_is_off_until_users_are_named() -> None:
    assert not NOBODYS.on
    with pytest.raises(Unsupported, match="client shared memory is turned off here"):
        NOBODYS.register(ME, mine())
    with pytest.raises(
        Unsupported, match="input 'x' asks for client shared memory, which is turned off here"
    ):
        NOBODYS.window(ME, "input", "x", part(4))


@pytest.mark.parametrize(
    "key",
    ["", "/", ".", "/..", "../mine", "/a/mine", "mine/", "/../mine", "x" * 256, "mi\0ne", "\udc80"],
)
def test_a_key_leads_nowhere_else(regions: Regions, key: str) -> None:
    with pytest.raises(InvalidRequest, match=r"key|Unable to open"):
        regions.register(ME, mine(key=key))


@pytest.mark.parametrize("name", ["", "x" * (NAME_BYTES_MAX + 1), f"{RESERVED}7", "\udc80"])
def test_names_that_none_may_have(regions: Regions, name: str) -> None:
    with pytest.raises(InvalidRequest, match="name"):
        regions.register(ME, mine(name=name))


def test_the_segments_of_a_neighbouring_triton_are_none(regions: Regions, folder: Path) -> None:
    """CVE-2025-23319, CVE-2025-23320, CVE-2025-23334: a server's own segment, its name learned from an error, was
    registered as a client's."""
    (folder / f"{RESERVED}7").write_bytes(bytes(8))
    with pytest.raises(InvalidRequest, match="are reserved"):
        regions.register(ME, mine(key=f"/{RESERVED}7", nbytes=8))


def test_a_file_of_another_user_is_not_opened_for_this_one(regions: Regions) -> None:
    with pytest.raises(InvalidRequest, match=f"does not belong to user {OTHER}"):
        regions.register(OTHER, mine())


def test_a_file_that_the_appliance_may_not_open(regions: Regions) -> None:
    """Triton's utilities make regions for their user alone; what to do about it is said."""
    if os.getuid():
        pytest.skip("being another user takes root")
    os.seteuid(2001)
    try:
        with pytest.raises(
            InvalidRequest, match=r"which runs as user 2001, may not read and write it; .* chmod 660"
        ):
            regions.register(ME, mine())
    finally:
        os.seteuid(0)


def test_only_regular_files_of_the_folder(regions: Regions, folder: Path) -> None:
    (folder / "link").symlink_to(folder / "mine")
    (folder / "outside").symlink_to("/etc/passwd")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    for name in ("link", "outside", "folder", "pipe", "none"):
        with pytest.raises(
            InvalidRequest, match=f"Unable to open shared memory region: '/{name}': "
        ) as refused:
            regions.register(ME, mine(key=f"/{name}", nbytes=1))
        assert str(folder / "mine") not in str(refused.value)


def test_a_file_on_another_device_is_none(
    regions: Regions, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = os.stat("/proc")
    monkeypatch.setattr(os, "stat", lambda path: where)
    with pytest.raises(InvalidRequest, match="it is no regular file"):
        regions.register(ME, mine())


@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [(0, 0), (0, SIZE + 1), (SIZE, 1), (1, SIZE), (HUGE, 1), (0, HUGE), (HUGE, HUGE), (-1, 1), (0, -1)],
)
def test_bounds_when_a_region_is_registered(regions: Regions, offset: int, nbytes: int) -> None:
    """Sums that wrap around in 64 bits among them, which other servers took for small."""
    with pytest.raises((InvalidRequest, RegionsFull)):
        regions.register(ME, mine(offset=offset, nbytes=nbytes))
    assert not regions.status(ME, "")


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, 17), (16, 1), (1, 16), (HUGE, 1), (1, HUGE), (HUGE, HUGE), (1 << 63, 1)]
)
def test_bounds_when_a_region_is_used(regions: Regions, offset: int, nbytes: int) -> None:
    """What lies in the file beyond the region is not the region's either."""
    regions.register(ME, mine(offset=8, nbytes=16))
    for kind in ("input", "output"):
        with pytest.raises(
            InvalidRequest, match="Invalid offset \\+ byte size for shared memory region: 'r'"
        ):
            regions.window(ME, kind, "x", part(nbytes, offset))


def test_a_file_that_shrank_or_went_is_an_error_of_its_request(regions: Regions, folder: Path) -> None:
    regions.register(ME, mine())
    source, target = (regions.window(ME, kind, "x", part(SIZE)) for kind in ("input", "output"))
    os.truncate(folder / "mine", 10)
    error = source.read_into(memoryview(bytearray(SIZE)))
    assert error is not None
    assert "'r' is smaller than when it was registered" in str(error)
    with pytest.raises(InvalidRequest, match="is smaller"):
        put_outputs([output(bytes(SIZE), "x")], {"x": target})
    with pytest.raises(InvalidRequest, match="is smaller"):
        finished(source.read("x"))
    assert (folder / "mine").stat().st_size == 10, "nothing grew"
    os.unlink(folder / "mine")
    assert copied(regions, 10) == bytes(range(10)), "what was opened is still there"


def test_an_output_without_room_writes_nothing(regions: Regions, folder: Path) -> None:
    regions.register(ME, mine())
    windows = {name: regions.window(ME, "output", name, part(4)) for name in ("a", "b")}
    with pytest.raises(InvalidRequest, match=r"output 'b' \(4 bytes\) should be at least 5 bytes"):
        put_outputs([output(b"1234", "a"), output(b"12345", "b")], windows)
    assert (folder / "mine").read_bytes() == bytes(range(SIZE))


def test_strings_are_copied_once_before_they_are_checked(
    regions: Regions, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 7)
    monkeypatch.setattr(module, "STRINGS_BYTES_MAX", 32)
    regions.register(ME, mine())
    read = finished(regions.window(ME, "input", "x", part(32)).read("x"))
    (folder / "mine").write_bytes(b"\xff" * SIZE)
    assert bytes(read) == bytes(range(32))
    with pytest.raises(InvalidRequest, match="33 bytes of strings in shared memory; at most 32"):
        finished(regions.window(ME, "input", "x", part(33)).read("x"))


def test_copies_of_strings_have_a_bound_and_count_until_they_go(
    regions: Regions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COPIES_BYTES_MAX", 64)
    regions.register(ME, mine())
    window = regions.window(ME, "input", "x", part(32))
    held = [finished(window.read("x")) for _ in range(2)]
    with pytest.raises(QueueFull, match="strings copied from shared memory hold 64 of 64 bytes"):
        finished(window.read("x"))
    held.pop()
    assert finished(window.read("x")) == held[0]


def test_a_region_in_use_stays_open_and_counts_until_it_is_not(
    regions: Regions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REGIONS_MAX", 3)
    before = set(os.listdir("/proc/self/fd"))
    for name in "abc":
        regions.register(ME, mine(name))
    window = regions.window(ME, "input", "x", part(4, region="a"))
    regions.unregister(ME, "")
    for name in "de":
        regions.register(ME, mine(name))
    with pytest.raises(RegionsFull, match="has 3 open, and no more are kept"):
        regions.register(ME, mine("f"))
    assert window.read_into(memoryview(bytearray(4))) is None
    del window
    regions.register(ME, mine("f"))
    regions.unregister(ME, "")
    assert set(os.listdir("/proc/self/fd")) == before


def test_bytes_have_a_bound_for_each_user(regions: Regions, folder: Path) -> None:
    os.truncate(folder / "mine", 5 * 4096)
    regions.register(ME, mine("a", nbytes=3 * 4096))
    with pytest.raises(
        RegionsFull, match=r"has 12288 bytes open, and shared_memory.max_bytes allows 16384"
    ) as full:
        regions.register(ME, mine("b", nbytes=2 * 4096))
    assert full.value.retry_after_ns < 0
    regions.register(ME, mine("b", nbytes=4096))


def test_what_cannot_be_registered_leaves_nothing_open(regions: Regions, folder: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for user, wrong in ((OTHER, mine()), (ME, mine(nbytes=SIZE + 1)), (ME, mine(key="/none"))):
        with pytest.raises(ApplianceError):
            regions.register(user, wrong)
    assert set(os.listdir("/proc/self/fd")) == before


def test_users_of_the_configuration() -> None:
    assert users_of(["root", "7"]) == {0, 7}
    assert not list(user_problems(["root", "1000"]))
    for name in ("no such user", "", str(1 << 32), "-1"):
        (problem,) = user_problems([name])
        assert f"'{name}' is no user of this machine" in problem
    (problem,) = user_problems([str(OVERFLOW_USER)])
    assert "stands for everybody of whom the kernel knows no user" in problem
