"""The file operations of the store: one suite for the kernel's and for the disk in memory, then what one alone does."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from appliance.domain.errors import StoreBusy
from appliance.durable import (
    Folder,
    RealFolder,
    WriterLock,
    ensure_directory,
    is_held,
    read_whole,
    remove_tree,
    replace_file,
)
from tests.store.volatile_disk import VolatileDisk


@pytest.fixture(params=["kernel", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    if request.param == "memory":
        yield VolatileDisk()
        return
    real = RealFolder(tmp_path)
    yield real
    real.close()


def put(folder: Folder, path: str, data: bytes = b"x") -> None:
    with folder.create(path) as file:
        file.write(data)
        file.sync()
        assert file.size() == len(data)


def data_of(folder: Folder, path: str) -> bytes:
    return b"".join(bytes(chunk) for chunk in folder.chunks(path))


def refused(number: int, act: Callable[[], object]) -> None:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is compared
        act()
    assert errno.errorcode[caught.value.errno or 0] == errno.errorcode[number]


def test_files_are_made_read_linked_moved_and_removed(folder: Folder) -> None:
    folder.make_directory("a")
    put(folder, "a/one", b"12345")
    folder.link("a/one", "two")
    found, twin = folder.status("a/one"), folder.status("two")
    assert found is not None
    assert twin is not None
    assert found.identity == twin.identity
    assert (found.size, found.is_file, found.is_directory) == (5, True, False)
    put(folder, "three", b"other")
    folder.rename("two", "three")
    assert data_of(folder, "three") == b"12345"
    assert folder.status("two") is None
    assert folder.names("") == ["a", "three"]
    folder.unlink("a/one")
    folder.remove_directory("a")
    folder.sync_directory("")
    assert folder.names("") == ["three"]
    assert data_of(folder, "three") == b"12345"


def test_what_is_refused(folder: Folder) -> None:
    folder.make_directory("a")
    folder.make_directory("a/b")
    put(folder, "file")
    put(folder, "other", b"o")
    refused(errno.EEXIST, lambda: folder.create("file"))
    refused(errno.EEXIST, lambda: folder.make_directory("a"))
    refused(errno.EEXIST, lambda: folder.link("file", "other"))
    refused(errno.ENOENT, lambda: folder.create("none/file"))
    refused(errno.ENOENT, lambda: folder.rename("none", "file"))
    refused(errno.ENOENT, lambda: folder.link("none", "new"))
    refused(errno.ENOENT, lambda: folder.unlink("none"))
    refused(errno.ENOENT, lambda: folder.names("none"))
    refused(errno.ENOENT, lambda: data_of(folder, "none"))
    refused(errno.ENOTDIR, lambda: folder.names("file"))
    refused(errno.ENOTDIR, lambda: folder.create("file/inner"))
    refused(errno.ENOTEMPTY, lambda: folder.remove_directory("a"))
    refused(errno.EISDIR, lambda: folder.unlink("a/b"))
    refused(errno.EISDIR, lambda: folder.rename("file", "a"))
    assert folder.status("none/deeper") is None
    assert data_of(folder, "other") == b"o"


def test_two_names_of_one_file_stay_two_when_one_is_moved_over_the_other(folder: Folder) -> None:
    """As rename(2) has it: a trap for whoever replaces a name by a link."""
    put(folder, "one")
    folder.link("one", "two")
    folder.rename("one", "two")
    assert folder.names("") == ["one", "two"]


def test_a_file_is_replaced_whole(folder: Folder) -> None:
    replace_file(folder, "file", "new", b"first")
    put(folder, "new", b"left by one that was killed")
    replace_file(folder, "file", "new", b"second")
    assert read_whole(folder, "file", 100) == b"second"
    assert folder.names("") == ["file"]
    with pytest.raises(OSError, match="'file' has 6 bytes; the limit is 5"):
        read_whole(folder, "file", 5)
    assert read_whole(folder, "none", 5) is None


def test_directories_are_ensured_and_trees_removed(folder: Folder) -> None:
    for _ in range(2):
        ensure_directory(folder, "a")
        ensure_directory(folder, "a/b")
    put(folder, "a/b/file")
    remove_tree(folder, "a")
    remove_tree(folder, "a")
    assert folder.names("") == []


def test_links_are_never_followed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (inside / "way").symlink_to(outside)
    (inside / "file").symlink_to(outside / "secret")
    folder = RealFolder(inside)
    for act in (
        lambda: data_of(folder, "file"),
        lambda: data_of(folder, "way/secret"),
        lambda: folder.create("way/new"),
        lambda: folder.create("file"),
        lambda: folder.make_directory("way/new"),
        lambda: folder.rename("way/secret", "got"),
        lambda: folder.link("way/secret", "got"),
        lambda: folder.unlink("way/secret"),
        lambda: folder.names("way"),
        lambda: folder.sync_directory("way"),
    ):
        with pytest.raises(OSError):  # noqa: PT011 - ELOOP or ENOTDIR, as the kernel likes
            act()
    folder.link("file", "got")
    assert (inside / "got").is_symlink(), "a link to a link is one, too"
    remove_tree(folder, "way")
    folder.close()
    assert (outside / "secret").read_bytes() == b"secret"
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]


@pytest.mark.parametrize("path", ["..", "b/..", "../a", "/b", "b//c", ".", "b/./c", "b/", ""])
def test_paths_that_lead_elsewhere_are_a_mistake_of_the_program(tmp_path: Path, path: str) -> None:
    (tmp_path / "a").mkdir()
    folder = RealFolder(tmp_path / "a")
    with pytest.raises(AssertionError):
        folder.create(path)
    folder.close()


def test_a_pipe_in_the_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    folder = RealFolder(tmp_path)
    for chunks in (folder.chunks, folder.uncached_chunks):
        with pytest.raises(OSError, match=r"regular file|Invalid"):
            list(chunks("pipe"))
    folder.close()


@pytest.mark.parametrize(
    "size", [0, 1, 511, 4096, 4097, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, (8 << 20) + 5]
)
def test_both_ways_to_read_give_the_same(tmp_path: Path, size: int) -> None:
    data = Random(size).randbytes(size)
    (tmp_path / "file").write_bytes(data)
    folder = RealFolder(tmp_path)
    assert data_of(folder, "file") == data
    assert b"".join(bytes(chunk) for chunk in folder.uncached_chunks("file")) == data
    folder.close()


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    folder = RealFolder(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    ensure_directory(folder, "a")
    replace_file(folder, "a/file", "a/new", b"x")
    for path in ("none/x", "a/file/x", "a/none"):
        with pytest.raises(OSError):  # noqa: PT011 - whichever
            list(folder.chunks(path))
        with pytest.raises(OSError):  # noqa: PT011 - whichever
            folder.names(path)
    assert len(os.listdir("/proc/self/fd")) == before
    folder.close()


def test_a_write_that_the_kernel_takes_in_part_goes_on(tmp_path: Path) -> None:
    """A signal during a write to a pipe that is full: the kernel says how much it took. The rest comes all the same."""
    data = bytes(range(256)) * 4096
    os.mkfifo(tmp_path / "pipe")
    program = (
        "import os, signal, sys\nfrom appliance import durable\n"
        "signal.signal(signal.SIGALRM, lambda *_: None)\n"
        "calls, write = [], os.write\n"
        "os.write = lambda *words: (calls.append(1), write(*words))[1]\n"
        "durable._RealFile(os.open(sys.argv[1], os.O_WRONLY)).write(bytes(range(256)) * 4096)\n"
        "print(len(calls))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "pipe")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        with (tmp_path / "pipe").open("rb", buffering=0) as pipe:
            room = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
            while struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0] < room:
                os.sched_yield()
            writer.send_signal(signal.SIGALRM)
            received = b"".join(iter(lambda: pipe.read(1000), b""))
        assert writer.stdout is not None
        assert int(writer.stdout.read()) > 1
    assert received == data


def test_a_limit_of_size_in_the_middle_of_a_write_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    """The kernel writes up to the limit, which is a short write, and refuses the rest."""
    program = (
        "import resource, signal, sys\nfrom pathlib import Path\n"
        "from appliance.durable import RealFolder, replace_file\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nresource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "replace_file(RealFolder(Path(sys.argv[1])), 'file', 'new', b'x' * 5000)\n"
    )
    (tmp_path / "file").write_bytes(b"before")
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "File too large" in done.stderr
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"before"


def test_the_lock_is_held_by_one_and_given_back_by_the_kernel(tmp_path: Path) -> None:
    place = tmp_path / "lock"
    assert not is_held(place)
    first = WriterLock(place)
    assert is_held(place)
    with pytest.raises(StoreBusy, match=f"process {os.getpid()} is writing") as caught:
        WriterLock(place)
    assert caught.value.pid == os.getpid()
    first.release()
    assert not is_held(place)
    program = (
        "import sys; from pathlib import Path; from appliance.durable import WriterLock\n"
        "lock = WriterLock(Path(sys.argv[1]))\nprint('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert is_held(place)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert not is_held(place)
    WriterLock(place).release()


@pytest.mark.parametrize("text", ["", "nonsense", "-5", "9" * 40, "\0"])
def test_a_lock_that_does_not_say_who_holds_it_holds_all_the_same(tmp_path: Path, text: str) -> None:
    lock = WriterLock(tmp_path / "lock")
    (tmp_path / "lock").write_text(text)
    with pytest.raises(StoreBusy, match="is writing to"):
        WriterLock(tmp_path / "lock")
    lock.release()


def test_a_lock_is_no_way_to_write_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("kept")
    (tmp_path / "lock").symlink_to("target")
    refused(errno.ELOOP, lambda: WriterLock(tmp_path / "lock"))
    assert (tmp_path / "target").read_text() == "kept"


def test_who_only_asks_whether_a_lock_is_held_keeps_nobody_from_it(tmp_path: Path) -> None:
    """Asking takes the lock for an instant, and that may be the one in which a writer begins."""
    path = tmp_path / "lock"
    asking = os.open(path, os.O_RDONLY | os.O_CREAT)
    fcntl.flock(asking, fcntl.LOCK_SH)
    WriterLock(path, pause=lambda _: os.close(asking)).release()


def test_whoever_holds_a_lock_for_longer_than_an_instant_has_it(tmp_path: Path) -> None:
    pauses: list[float] = []
    held = WriterLock(tmp_path / "lock")
    with pytest.raises(StoreBusy, match=f"process {os.getpid()} is writing"):
        WriterLock(tmp_path / "lock", pause=pauses.append)
    assert 0.005 < sum(pauses) < 0.5
    held.release()
