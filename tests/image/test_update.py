"""What an update refuses, that it says all of it at once, and that it goes on where it stopped."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.domain.errors import OperatorError
from appliance.image import place, update
from appliance.image.machine import Machine
from appliance.image.place import open_place
from appliance.image.release import (
    IMAGE,
    MACHINES,
    RELEASE,
    SIGNATURE,
    VERSION_CHARACTERS_MAX,
    Release,
    ReleaseInvalid,
    decode,
    is_newer,
    problems,
)
from appliance.transfer.source import DirectorySource, SourceFailed, SourceTrouble
from tests.image.releases import Maker, machine, maker

ROOM = 1 << 40


def refused(folder: Path, keys: Maker, here: Machine, free: int = ROOM) -> list[str]:
    """What is said against the release in the folder."""
    envelope = (folder / SIGNATURE).read_bytes() if (folder / SIGNATURE).exists() else None
    try:
        release, trust = update.read((folder / RELEASE).read_bytes(), envelope, [keys.public])
    except ReleaseInvalid as error:
        return [str(problem) for problem in error.problems]
    return [str(problem) for problem in update.refusals(release, trust, here, free)]


def test_a_newer_release_of_the_maker_is_taken(tmp_path: Path) -> None:
    keys = maker(tmp_path / "maker")
    folder, _ = keys.release("1.1")
    assert refused(folder, keys, machine(tmp_path / "box")) == []


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    keys, other = maker(tmp_path / "maker"), maker(tmp_path / "other")
    folder, _ = other.release("0.9", variant="gpu", root_bytes=2 << 20)
    said = refused(folder, keys, machine(tmp_path / "box"), free=1 << 20)
    assert len(said) == 4
    for part in (
        "no key that this image trusts",
        "'gpu'; this machine runs 'cpu'",
        "older than 1.0",
        "are free",
    ):
        assert any(part in each for each in said), part


@pytest.mark.parametrize(
    ("version", "part"), [("1.0", "runs already"), ("1.0.0", "runs already"), ("0.9.9", "older")]
)
def test_only_a_newer_version_is_taken(tmp_path: Path, version: str, part: str) -> None:
    keys = maker(tmp_path / "maker")
    folder, _ = keys.release(version)
    assert [part in each for each in refused(folder, keys, machine(tmp_path / "box"))] == [True]


def test_another_machine_and_another_kernel_of_the_same_number_are_refused(tmp_path: Path) -> None:
    keys = maker(tmp_path / "maker")
    folder, _ = keys.release("1.1", architecture="arm64")
    (folder / SIGNATURE).unlink()
    here = machine(tmp_path / "box", "edge-appliance_1.0.efi", "edge-appliance_1.1+0-3.efi")
    said = refused(folder, keys, here)
    assert len(said) == 3
    assert "is not there" in said[0]
    assert "'arm64'" in said[1]
    assert "another image of that number" in said[2]


@pytest.mark.parametrize("architecture", MACHINES)
def test_a_machine_takes_releases_of_its_own_architecture_alone(tmp_path: Path, architecture: str) -> None:
    keys = maker(tmp_path / "maker")
    here = replace(machine(tmp_path / "box"), architecture=architecture)
    for each in MACHINES:
        folder, _ = keys.release("1.1", architecture=each)
        said = (
            []
            if each == architecture
            else [f"release.json: machine: is {each!r}; this machine is {architecture!r}"]
        )
        assert refused(folder, keys, here) == said


def test_parts_are_called_by_the_machine_that_reads_them(tmp_path: Path) -> None:
    """What is no architecture is no part of a path, either."""
    _, release = maker(tmp_path / "maker").release("1.1")
    (sums, root) = problems(replace(release, machine="arm64"))
    assert sums[0] == root[0] == "parts"
    assert "root-arm64-verity" in sums[1]
    assert "root-arm64\\." in root[1]
    (said,) = problems(replace(release, machine="../../etc"))
    assert said == ("machine", "is no architecture of the image: '../../etc'")


@pytest.mark.parametrize("what", ["release", "signature"])
def test_papers_that_were_changed_are_refused(tmp_path: Path, what: str) -> None:
    keys = maker(tmp_path / "maker")
    folder, _ = keys.release("1.1")
    if what == "release":
        papers = (folder / RELEASE).read_bytes()
        (folder / RELEASE).write_bytes(
            papers.replace(b'"version":"1.1"', b'"version":"1.2"').replace(b"_1.1.", b"_1.2.")
        )
    else:
        envelope = json.loads((folder / SIGNATURE).read_bytes())
        sums = envelope["signatures"][0]
        sums["sig"] = sums["sig"][:-8] + "AAAAAAA="
        (folder / SIGNATURE).write_text(json.dumps(envelope))
    assert refused(folder, keys, machine(tmp_path / "box"))


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b'{"format":2}', b"[" * 100_000, b"x" * 70_000])
def test_what_is_no_release_is_told_as_such(data: bytes) -> None:
    with pytest.raises(ReleaseInvalid) as caught:
        decode(data)
    assert caught.value.problems


def test_papers_that_were_cut_short_are_told_as_such(tmp_path: Path) -> None:
    keys = maker(tmp_path / "maker")
    folder, _ = keys.release("1.1")
    (folder / RELEASE).write_bytes((folder / RELEASE).read_bytes()[:200])
    (said,) = refused(folder, keys, machine(tmp_path / "box"))
    assert "cut short" in said


def test_versions_compare_by_their_numbers() -> None:
    assert is_newer("1.10", "1.9")
    assert not is_newer("1.4.0", "1.4")
    with pytest.raises(ValueError, match="no version"):
        is_newer("1.4-rc1", "1.4")


@pytest.mark.parametrize(("variant", "taken"), [("cpu", False), ("gpu", True)])
def test_a_part_may_be_as_large_as_the_slot_of_the_variant(tmp_path: Path, variant: str, taken: bool) -> None:
    """A root that only the slot of the larger variant has room for; and one that no slot has."""
    keys = maker(tmp_path / "maker")
    folder, _ = keys.release("1.1", variant=variant)
    papers, envelope = ((folder / name).read_bytes() for name in (RELEASE, SIGNATURE))
    release, trust = update.read(papers, envelope, [keys.public])
    here = machine(tmp_path / "box", variant=variant)

    def said(root_bytes: int) -> list[str]:
        parts = [
            replace(part, size=root_bytes) if ".root-x86-64." in part.name else part for part in release.parts
        ]
        changed = replace(release, parts=tuple(parts))
        return [str(problem) for problem in update.refusals(changed, trust, here, ROOM)]

    large = update.SLOT_BYTES["cpu"]["root"] + 1
    assert [f"the slot for it has {large - 1}" in each for each in said(large)] == [True] * (not taken)
    assert "the slot for it has" in said(update.SLOT_BYTES[variant]["root"] + 1)[0]


async def test_a_transfer_goes_on_where_it_stopped_and_what_came_is_what_was_signed(tmp_path: Path) -> None:
    keys = maker(tmp_path / "maker")
    folder, release = keys.release("1.1")
    target = tmp_path / "update"
    update.make_room(target, release)
    flapping = Flapping("link", folder, after=1_500_000)
    given: list[int] = []
    for _ in range(20):
        try:
            await update.transfer(release, flapping, target, 0)
            break
        except OperatorError:
            given.append(flapping.given)
    assert len(given) >= 3
    assert flapping.given < release.total_bytes + (1 << 20), "what had come came again"
    for part in release.parts:
        assert (target / part.name).read_bytes() == (keys.folder / part.name).read_bytes()
    update.clear(target)
    assert not [path for path in target.rglob("*") if path.is_file()]


async def test_a_place_that_lies_gives_nothing(tmp_path: Path) -> None:
    """A byte that was flipped, a stream that is too short, a stream that is gone."""
    keys = maker(tmp_path / "maker")
    folder, release = keys.release("1.1")
    root = next(part for part in release.parts if ".root-x86-64." in part.name)
    stream = folder / "streams" / root.stream
    right = stream.read_bytes()
    stream.unlink()  # it is a link to what was built
    for wrong in (right[:-1] + b"!", right[: len(right) // 2], None):
        target = tmp_path / f"update-{wrong is None}-{len(wrong or b'')}"
        update.make_room(target, release)
        if wrong is not None:
            stream.write_bytes(wrong)
        with pytest.raises(OperatorError, match="did not come"):
            await update.transfer(release, DirectorySource("stick", folder), target, 0)
        assert not (target / root.name).exists()
        stream.unlink(missing_ok=True)


async def test_what_an_earlier_release_of_the_same_number_left_is_not_taken_for_this_ones(
    tmp_path: Path,
) -> None:
    """The kernel's name has the version alone: that of one, with the root of the other, starts neither."""
    keys = maker(tmp_path / "maker")
    folder, release = keys.release("1.1")
    target = tmp_path / "update"
    update.make_room(target, release)
    for part in release.parts:
        (target / part.name).write_bytes(b"of an earlier release, or rotten")
    (target / f"{release.kernel.name}.new").write_bytes(b"left by a kill")
    await update.transfer(release, DirectorySource("stick", folder), target, 0)
    for part in release.parts:
        assert (target / part.name).read_bytes() == (keys.folder / part.name).read_bytes()


async def test_what_is_longer_than_the_stream_is_cut_off(tmp_path: Path) -> None:
    keys = maker(tmp_path / "maker")
    folder, release = keys.release("1.1")
    target = tmp_path / "update"
    update.make_room(target, release)
    (target / "spool").mkdir()
    data = (keys.folder / release.kernel.name).read_bytes()
    (target / "spool" / f"{release.kernel.stream}.stream").write_bytes(data + b"and more")
    source = DirectorySource("server", folder)
    source.over_link = True
    await update.transfer(release, source, target, 0)
    assert (target / release.kernel.name).read_bytes() == data


@pytest.mark.parametrize("name", [RELEASE, SIGNATURE])
async def test_a_pipe_or_a_device_in_the_place_of_papers_is_not_waited_for(tmp_path: Path, name: str) -> None:
    folder, _ = maker(tmp_path / "maker").release("1.1")
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir):
        path = folder / name
        path.rmdir() if path.is_dir() else path.unlink()
        make(path)
        with pytest.raises(OperatorError, match="is not a file"):
            async with open_place(str(folder)):
                pass


async def test_a_server_that_never_ends_its_papers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = asyncio.Event()

    async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
        with suppress(ConnectionError):
            while True:
                writer.write(b"{")
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()
        gone.set()

    monkeypatch.setattr(place, "PAPERS_S", 0.5)
    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(OperatorError, match="cannot be had"):
        async with open_place(f"http://127.0.0.1:{port}"):
            pass
    await gone.wait()
    server.close()


def test_a_version_fits_into_the_label_of_a_partition() -> None:
    """Else it is downloaded, and cannot be written."""
    release = Release(version="999999.999999.999999", machine="x86-64", variant="cpu", parts=())
    assert any("characters that fit" in text for _, text in problems(release))
    assert len(f"{IMAGE}_{'9' * VERSION_CHARACTERS_MAX}_verity") == 36


async def test_a_directory_without_a_release_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"has no release\.json"):
        async with open_place(str(tmp_path)):
            pass


def test_the_rate_is_kept(tmp_path: Path) -> None:
    """By the event loop's own clock: as many seconds pass as the bytes need."""
    keys = maker(tmp_path / "maker")
    folder, release = keys.release("1.1", root_bytes=300_000)
    update.make_room(tmp_path / "update", release)
    loop = Hurried()
    source = DirectorySource("stick", folder)
    source.over_link = True
    loop.run_until_complete(update.transfer(release, source, tmp_path / "update", 10_000))
    loop.close()
    assert loop.slept >= release.total_bytes / 10_000


class Flapping(DirectorySource):
    """A link that breaks off again and again."""

    over_link = True

    def __init__(self, name: str, folder: Path, after: int) -> None:
        super().__init__(name, folder)
        self._after = after
        self.given = 0

    async def _cut(self, stream: str, offset: int, size: int) -> AsyncGenerator[bytes, None]:
        begun = self.given
        async for chunk in super().read(stream, offset, size):
            if self.given - begun > self._after:
                raise SourceFailed(SourceTrouble.BROKEN_OFF, "the link broke off")
            self.given += len(chunk)
            yield chunk

    def read(self, stream: str, offset: int, size: int) -> AsyncGenerator[bytes, None]:
        """See Source."""
        return self._cut(stream, offset, size)


class Hurried(asyncio.SelectorEventLoop):
    """A loop in which sleeping takes no time; it counts how much was slept."""

    slept = 0.0

    def time(self) -> float:
        """The clock, with what was slept."""
        return super().time() + self.slept

    def call_at(self, when: float, *arguments: object, **named: object) -> asyncio.TimerHandle:
        """Do it at once, and have the time passed."""
        self.slept += max(0.0, when - self.time())
        return super().call_at(self.time(), *arguments, **named)  # type: ignore[arg-type]


def test_what_is_left_of_other_releases_goes(tmp_path: Path) -> None:
    keys = maker(tmp_path / "maker")
    _, release = keys.release("1.2")
    (tmp_path / "update").mkdir()
    (tmp_path / "update" / "edge-appliance_1.1.efi").write_bytes(b"old")
    kept = tmp_path / "update" / release.kernel.name
    kept.write_bytes(b"new")
    update.make_room(tmp_path / "update", release)
    assert [path.name for path in (tmp_path / "update").iterdir() if path.is_file()] == [kept.name]
