"""What is trusted, on the disk: killed, cut and failing at every operation, damaged in every byte."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from appliance.controller.signing import DeviceMetadata
from appliance.durable import RealFolder
from appliance.sync import trust_file
from appliance.sync.trust import NoRoot, Trusted, examine
from appliance.sync.trust_file import FILE, FIRST_ROOT, enrol, keep, load
from tests.store.volatile_disk import VolatileDisk
from tests.trust.repository import DEVICE, Fleet, online_keys, polled

SEED = int(os.environ.get("STORE_SEED", "1"))
CUTS = 6


class Killed(BaseException):
    """The end of the process."""


def history() -> tuple[Fleet, list[Trusted]]:
    """A fleet, and what one box came to trust: documents, a root with other keys, one that cannot be done, one more."""
    fleet = Fleet()
    disk = VolatileDisk()
    trusted = [enrol(disk, fleet.root)]
    sent: list[DeviceMetadata] = [fleet.publish(1)]
    sent.append(fleet.publish(2, sent[-1]))
    sent.append(fleet.stamped(sent[-1]))
    fleet.rotate(keys=online_keys())
    sent.append(fleet.publish(3, sent[-1]))
    sent.append(fleet.publish(4, sent[-1], format=9))
    sent.append(fleet.publish(5, sent[-1]))
    for each in sent:
        trusted.append(examine(trusted[-1], polled(each, fleet.roots[1:]), DEVICE)[0])
    return fleet, trusted


FLEET, HISTORY = history()


def whole(disk: VolatileDisk) -> Trusted:
    """What a box finds there; nothing was damaged."""
    loaded = load(disk)
    assert loaded.damage == ""
    return loaded.trusted


def is_same(one: Trusted, other: Trusted) -> bool:
    return one == other and (one.counters, one.root_version, one.desired) == (
        other.counters, other.root_version, other.desired,
    )  # fmt: skip


def test_what_is_kept_is_what_is_loaded() -> None:
    disk = VolatileDisk()
    enrol(disk, FLEET.roots[0])
    for each in HISTORY:
        keep(disk, each)
        assert is_same(whole(disk), each)


def operations(act: Callable[[VolatileDisk], object], disk: VolatileDisk) -> int:
    """How many file operations ``act`` does."""
    count = 0

    def before(operation: str, path: str) -> None:
        nonlocal count
        count += 1

    disk.before = before
    act(disk)
    return count


def stopped(act: Callable[[VolatileDisk], object], disk: VolatileDisk, at: int, how: BaseException) -> bool:
    """Do ``act`` up to its operation ``at``, which ends with ``how``; whether it got there."""
    count = 0

    def before(operation: str, path: str) -> None:
        nonlocal count
        count += 1
        if count == at:
            raise how

    disk.before = before
    try:
        act(disk)
    except (Killed, OSError):
        return True
    finally:
        disk.before = lambda operation, path: None
    return False


@pytest.mark.parametrize("place", range(1, len(HISTORY)))
def test_a_kill_or_a_power_cut_leaves_the_set_before_or_the_set_after(place: int) -> None:
    random = Random(SEED)
    before, after = HISTORY[place - 1], HISTORY[place]
    disk = VolatileDisk()
    enrol(disk, FLEET.roots[0])
    keep(disk, before)
    count = operations(lambda folder: keep(folder, after), disk.copy())
    assert count >= 5
    for at in range(1, count + 1):
        dying = disk.copy()
        assert stopped(lambda folder: keep(folder, after), dying, at, Killed())
        assert any(is_same(whole(dying), each) for each in (before, after))
        for _ in range(CUTS):
            cut = dying.after_power_cut(lambda: random.random() < 0.5, random)
            assert any(is_same(whole(cut), each) for each in (before, after)), (SEED, at)
            keep(cut, after)
            assert is_same(whole(cut), after)
    done = disk.copy()
    keep(done, after)
    assert is_same(whole(done.after_power_cut(lambda: False, random)), after), (
        "what was acknowledged is there"
    )


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_leaves_what_was_there(error: int) -> None:
    before, after = HISTORY[1], HISTORY[2]
    disk = VolatileDisk()
    enrol(disk, FLEET.roots[0])
    keep(disk, before)
    for at in range(1, operations(lambda folder: keep(folder, after), disk.copy()) + 1):
        failing = disk.copy()
        stopped(lambda folder: keep(folder, after), failing, at, OSError(error, os.strerror(error)))
        assert any(is_same(whole(failing), each) for each in (before, after))


def test_an_enrolment_that_was_killed_is_none_or_done() -> None:
    random = Random(SEED)
    act: Callable[[VolatileDisk], object] = lambda folder: enrol(folder, FLEET.roots[0])  # noqa: E731
    for at in range(1, operations(act, VolatileDisk()) + 1):
        disk = VolatileDisk()
        assert stopped(act, disk, at, Killed())
        cut = disk.after_power_cut(lambda: random.random() < 0.5, random)
        with suppress(NoRoot):
            assert load(cut).trusted == HISTORY[0]
        assert enrol(cut, FLEET.roots[0]) == load(cut).trusted == HISTORY[0]


def test_a_box_that_was_enrolled_elsewhere_trusts_the_new_fleet_alone() -> None:
    disk = VolatileDisk()
    enrol(disk, FLEET.roots[0])
    keep(disk, HISTORY[-1])
    other = Fleet()
    enrol(disk, other.root)
    assert whole(disk).root == other.root
    assert whole(disk).desired is None


def test_a_damaged_file_is_noticed_and_leads_back_to_the_first_root(tmp_path: Path) -> None:
    folder = RealFolder(tmp_path)
    enrol(folder, FLEET.roots[0])
    keep(folder, HISTORY[-1])
    path = tmp_path / FILE
    good = path.read_bytes()
    for damaged in (
        b"",
        good[:-1],
        good + b"\0",
        bytes(len(good)),
        *(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(0, len(good), 97)),
    ):
        path.chmod(0o600)
        path.write_bytes(damaged)
        loaded = load(folder)
        assert loaded.damage
        assert loaded.trusted == HISTORY[0]
    trusted, refused = examine(
        loaded.trusted, polled(FLEET.publish(6, HISTORY[-1].counters), FLEET.roots[1:]), DEVICE
    )
    assert refused is None, "the controller brings it all again"
    keep(folder, trusted)
    assert load(folder).damage == ""
    path.unlink()
    assert load(folder).trusted == HISTORY[0]
    (tmp_path / FIRST_ROOT).unlink()
    with pytest.raises(NoRoot, match="enrol this box again"):
        load(folder)
    folder.close()


def test_what_a_newer_release_kept_begins_with_the_root_of_the_enrolment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = VolatileDisk()
    enrol(disk, FLEET.roots[0])
    known = trust_file.FORMAT
    monkeypatch.setattr(trust_file, "FORMAT", known + 1)
    keep(disk, HISTORY[-1])
    monkeypatch.setattr(trust_file, "FORMAT", known)
    loaded = load(disk)
    assert is_same(loaded.trusted, HISTORY[0])
    assert f"it has format {known + 1}, and this appliance knows {known}" in loaded.damage
