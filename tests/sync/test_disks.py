"""A disk that fails at any one call of the agent costs time, and nothing that was acknowledged. ``DISK_STRIDE=1`` tries
each call, some minutes long; without it each error has calls of its own."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.durable import Folder, RealFolder
from appliance.fleet.documents import WishedModel
from appliance.outbox.outbox import Outbox, Policy
from appliance.sync import identity
from tests.cli.conftest import Run
from tests.sync.controller_double import ControllerDouble
from tests.sync.test_agent import Pack, wanted_in

RECORDS = [b"%d" % number for number in range(50)]
STRIDE = int(os.environ.get("DISK_STRIDE", "14"))
CALLS = ("write", "fsync", "rename", "unlink", "mkdir", "open")


class FailingDisk:
    """Fails the call ``at`` that changes something, with ``error``; a write takes half of it first where there is
    none, and only the next call fails."""

    def __init__(self, at: int, error: int | None) -> None:
        self.left = at
        self.error = error or errno.ENOSPC
        self.short = error is None
        self.failed = False

    def install(self, patched: pytest.MonkeyPatch) -> None:
        for name in CALLS:
            patched.setattr(os, name, self._instead(name, getattr(os, name)))

    def _instead(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **named: Any) -> Any:
            if name == "open" and not words[1] & os.O_CREAT:
                return real(*words, **named)
            self.left -= 1
            if self.left == 0 and self.short and name == "write" and len(words[1]) > 1:
                self.left = 1
                return real(words[0], words[1][: len(words[1]) // 2])
            if self.left == 0:
                self.failed = True
                raise OSError(self.error, os.strerror(self.error))
            return real(*words, **named)

        return call


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("error", "at"), [(errno.EIO, 1), (errno.ENOSPC, 4), (None, 7)], ids=["EIO", "ENOSPC", "short"]
)
def test_each_call_that_fails_is_made_up_for(
    appliance: Run,
    enrolled: Path,
    controller: ControllerDouble,
    pack: Pack,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: int | None,
    at: int,
) -> None:
    place, before = enrolled / "outbox" / "serve", tmp_path / "before"
    place.mkdir(parents=True)
    folder = RealFolder(place)
    with Outbox(folder, 1 << 20, Policy.DROP_OLDEST) as outbox:
        outbox.append(RECORDS)
    folder.close()
    shutil.copytree(enrolled, before, symlinks=True)
    controller.want(WishedModel(name="digits", wanted=controller.offer(pack())), settings={"fleet.poll_s": 9})
    failed = True
    while failed:
        shutil.rmtree(enrolled)
        shutil.copytree(before, enrolled, symlinks=True)
        controller.records.clear()
        disk = FailingDisk(at, error)
        with monkeypatch.context() as patched:
            disk.install(patched)
            appliance("sync", "once")
        failed = disk.failed
        status, out, err = appliance("sync", "once")
        assert status == 0, (at, out, err)
        assert wanted_in(enrolled) == 1, (at, out, err)
        assert controller.last is not None
        assert controller.last.settings["fleet.poll_s"] == "9"
        (held,) = (each for (stream, _), each in controller.records.items() if stream == "serve")
        assert [held[number] for number in sorted(held)] == RECORDS, at
        at += STRIDE
    assert at > 20, "the disk was hardly used"


def test_a_group_that_cannot_be_kept_keeps_nothing_else_from_the_box(
    appliance: Run,
    enrolled: Path,
    controller: ControllerDouble,
    pack: Pack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(folder: Folder, path: str, temporary: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    controller.group = "site"
    controller.want(WishedModel(name="digits", wanted=controller.offer(pack())))
    with monkeypatch.context() as patched:
        patched.setattr(identity, "replace_file", full)
        status, _, err = appliance("sync", "once")
        assert status == 0, err
    assert (wanted_in(enrolled), group_of(enrolled)) == (1, "")
    assert appliance("sync", "once")[0] == 0
    assert group_of(enrolled) == "site"


def group_of(state: Path) -> str:
    known = identity.read_identity(state)
    assert known is not None
    return known.group
