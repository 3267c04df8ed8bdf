"""Regions of shared memory: whose they are, how many, and which files may be one."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest

from appliance.domain.errors import (
    ApplianceError,
    Forbidden,
    InvalidRequest,
    RegionExists,
    RegionsFull,
    UnknownRegion,
    Unsupported,
)
from appliance.domain.protocol import REGION_NAME_BYTES_MAX
from appliance.frontend.regions import registry as module
from appliance.frontend.regions.region import File
from appliance.frontend.regions.registry import NOBODYS, RESERVED, Regions
from appliance.frontend.regions.users import OVERFLOW_USER, UNKNOWN_USER
from tests.descriptors import open_below
from tests.frontend.regions.rig import HUGE, ME, OTHER, SIZE, mine, part


def wait_until_closed(folder: Path) -> None:
    """Files are closed by another thread."""
    while open_below(folder):
        os.sched_yield()


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


@pytest.mark.parametrize(
    ("user", "text"),
    [(UNKNOWN_USER, "connect over a Unix socket"), (OVERFLOW_USER, "this one is none in its user namespace")],
)
def test_who_is_not_known_is_told_how_to_be(regions: Regions, user: int, text: str) -> None:
    for ask in (
        lambda: regions.register(user, mine()),
        lambda: regions.unregister(user, ""),
        lambda: regions.status(user, ""),
        lambda: regions.window(user, "input", "x", part(4)),
    ):
        with pytest.raises(Forbidden, match=text):
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
    [
        *("", "/", ".", "/..", "../mine", "/a/mine", "mine/", "/../mine", "/dev/shm/mine", "//"),
        *("x" * 256, "/" * 300 + "mine", "mi\0ne", "\0", "\udc80"),
    ],
)
def test_a_key_leads_nowhere_else(regions: Regions, key: str) -> None:
    with pytest.raises(InvalidRequest, match=r"without slashes|at most 255 bytes|is not valid Unicode"):
        regions.register(ME, mine(key=key))


@pytest.mark.parametrize(
    "name", ["", "x" * (REGION_NAME_BYTES_MAX + 1), "\u00e9" * 200, f"{RESERVED}7", "\udc80"]
)
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
            InvalidRequest,
            match=r"which runs as user 2001, may not read and write it; .*setfacl -m u:2001:rw",
        ):
            regions.register(ME, mine())
    finally:
        os.seteuid(0)


def test_what_is_said_of_a_region_is_short(regions: Regions) -> None:
    """It is kept as long as the region is, and told back."""
    for wrong in (mine(name="x" * (1 << 20)), mine(key="/" * (1 << 20) + "mine"), mine(key="x" * (1 << 20))):
        with pytest.raises(InvalidRequest) as refused:
            regions.register(ME, wrong)
        assert len(str(refused.value)) < 200


def test_a_file_that_its_owner_has_a_lease_on_is_not_waited_for(regions: Regions, folder: Path) -> None:
    """Opening it would wait until the owner gives it up, or the kernel takes it away."""
    leased = os.open(folder / "mine", os.O_RDWR)
    told = signal.signal(signal.SIGIO, signal.SIG_IGN)  # that somebody would open it
    fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    try:
        with pytest.raises(InvalidRequest, match="temporarily unavailable"):
            regions.register(ME, mine())
    finally:
        os.close(leased)
        signal.signal(signal.SIGIO, told)


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


def test_a_region_in_use_stays_open_and_counts_until_it_is_not(
    regions: Regions, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REGIONS_MAX", 3)
    for name in "abc":
        regions.register(ME, mine(name))
    window = regions.window(ME, "input", "x", part(4, region="a"))
    regions.unregister(ME, "")
    for name in "de":
        regions.register(ME, mine(name))
    with pytest.raises(RegionsFull, match="has 3 open, and may have no more"):
        regions.register(ME, mine("f"))
    assert window.read_into(memoryview(bytearray(4))) is None
    del window
    regions.register(ME, mine("f"))
    regions.unregister(ME, "")
    wait_until_closed(folder)


def test_bytes_have_a_bound_for_each_user(regions: Regions, folder: Path) -> None:
    page = mmap.PAGESIZE
    os.truncate(folder / "mine", 5 * page)
    regions.register(ME, mine("a", nbytes=3 * page))
    with pytest.raises(
        RegionsFull, match=f"has {3 * page} bytes open, and shared_memory.max_bytes allows {4 * page}"
    ) as full:
        regions.register(ME, mine("b", nbytes=2 * page))
    assert full.value.retry_after_ns < 0
    regions.register(ME, mine("b", nbytes=page))


def test_what_cannot_be_registered_leaves_nothing_open(regions: Regions, folder: Path) -> None:
    for user, wrong in ((OTHER, mine()), (ME, mine(nbytes=SIZE + 1)), (ME, mine(key="/none"))):
        with pytest.raises(ApplianceError):
            regions.register(user, wrong)
    wait_until_closed(folder)


def test_files_that_are_still_to_be_closed_have_a_bound(
    regions: Regions, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last to close a large file has its memory to free, which takes its time."""
    monkeypatch.setattr(module, "FILES_MAX", 4)
    held = Event()
    close = File.close

    def slow(self: File) -> None:
        held.wait()
        close(self)

    monkeypatch.setattr(File, "close", slow)
    for _ in range(4):
        regions.register(ME, mine())
        regions.unregister(ME, "r")
    with pytest.raises(RegionsFull, match="has 4 files that are still to be closed; try again later") as full:
        regions.register(ME, mine())
    assert full.value.retry_after_ns > 0
    held.set()
    wait_until_closed(folder)
    regions.register(ME, mine())


def test_a_client_that_registers_without_end_has_what_it_may_and_no_more(
    regions: Regions, folder: Path
) -> None:
    for number in range(2000):
        with suppress(ApplianceError):
            regions.register(ME, mine(str(number), nbytes=1 + number % SIZE))
        if number % 7 == 0:
            regions.unregister(ME, "" if number % 2 else str(number))
            assert len(open_below(folder)) <= module.FILES_MAX
    regions.unregister(ME, "")
    wait_until_closed(folder)
    regions.register(ME, mine())
