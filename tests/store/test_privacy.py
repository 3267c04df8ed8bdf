"""Who may look into a state directory: its owner and, where the operator says so, a group; nobody else."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import StoreUnavailable
from appliance.durable import SHARED, is_held
from appliance.engine.versions.record_files import FileRecords
from appliance.image import note
from appliance.sources.store import StoreSource
from appliance.store import privacy
from appliance.store.catalog_file import read_catalog
from appliance.store.census import census_of
from appliance.store.layout import CATALOG, LOCK, RUNNING_LOCK, SCRUB_LOCK, SERVE
from appliance.store.privacy import Mended, keep_private
from appliance.store.scrub import Scrub
from appliance.store.writer import open_store
from tests.sources.test_store import contents
from tests.store.arrivals import arrival
from tests.store.stores import NO_FLOOR, install

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
NOBODY, GROUP = 65534, 60_001


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def fill(state: Path, *versions: int) -> None:
    """Have whoever writes there write: the writer, a daemon, its records, a scrub."""
    with open_store(state, NO_FLOOR) as store:
        for version in versions or (1, 2):
            install(store, arrival("digits", version, contents(version)), want=True, now_ms=version)
    source = StoreSource(state, RepositoryConfig(), tuple)
    source.read()
    records = FileRecords(state / SERVE, lambda call: call(), lambda *line, **more: None)
    records.reject("digits/1@" + "0" * 64, "wrong")
    records.close()
    scrub = Scrub(state, NO_FLOOR, wall_ms=lambda: 1, elapsed_s=lambda: 1.0, pause=lambda seconds: None)
    scrub.run_pass()
    scrub.close()
    source.close()


def entries(state: Path) -> dict[str, os.stat_result]:
    return {str(path.relative_to(state)): path.stat() for path in (state, *state.rglob("*"))}


def opened_up(state: Path) -> None:
    """As releases left it that let everybody read."""
    for path in (state, *state.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o444 if path.stat().st_nlink > 1 else 0o644)


def as_user(user: int, groups: list[int], do: Callable[[], object]) -> str:
    """What comes of doing it as somebody else."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(groups)
            os.setgid(user)
            os.setuid(user)
            said = str(do())
        except Exception as error:  # noqa: BLE001  whatever it is, is the answer
            said = type(error).__name__
        os.write(write, said.encode()[:4096])
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return text


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A state directory that others can get to, as far as it is up to those above it."""
    with tempfile.TemporaryDirectory() as above:
        os.chmod(above, 0o755)
        yield Path(above) / "state"


def test_everything_is_the_owner_s_alone(state: Path, umask: int) -> None:
    fill(state)
    found = entries(state)
    assert {
        "catalog.json",
        "store.lock",
        "serve/running.lock",
        "serve/tries.json",
        "scrub.json",
        "serve/forms",
    } < set(found)
    for path, status in found.items():
        assert not status.st_mode & 0o077, path
        wanted = 0o700 if stat.S_ISDIR(status.st_mode) else 0o400 if status.st_nlink > 1 else 0o600
        assert stat.S_IMODE(status.st_mode) == wanted, path


def test_what_was_open_is_closed_once(state: Path) -> None:
    fill(state)
    opened_up(state)
    mended = keep_private(state)
    assert (mended.entries > 20, mended.problem) == (True, "")
    assert not any(status.st_mode & 0o077 for status in entries(state).values())
    assert keep_private(state) == Mended()


def test_what_is_not_the_appliance_s_stays_as_it_is(state: Path) -> None:
    fill(state)
    (state / "notes" / "of").mkdir(parents=True)
    (state / "notes" / "of" / "ann").write_text("mine")
    opened_up(state)
    assert keep_private(state).entries
    left = ("notes", "notes/of", "notes/of/ann")
    assert [stat.S_IMODE((state / each).stat().st_mode) for each in left] == [0o755, 0o755, 0o644]
    assert keep_private(state) == Mended()


@pytest.mark.parametrize("holds", ["etc", "catalog.json.old"])
def test_a_directory_of_something_else_does_not_become_a_store(tmp_path: Path, holds: str) -> None:
    (tmp_path / holds).mkdir(mode=0o755)
    (tmp_path / "lost+found").mkdir()
    tmp_path.chmod(0o755)
    with (
        pytest.raises(StoreUnavailable, match=f"'{holds}', and nothing of a store"),
        open_store(tmp_path, NO_FLOOR),
    ):
        pass
    assert {each.name for each in tmp_path.iterdir()} == {holds, "lost+found"}
    assert [stat.S_IMODE(each.stat().st_mode) for each in (tmp_path, tmp_path / holds)] == [0o755, 0o755]


@pytest.mark.parametrize("there", ["lost+found", ".ansible", ".cache"])
def test_what_comes_by_itself_keeps_no_store_out(tmp_path: Path, there: str) -> None:
    (tmp_path / there).mkdir(mode=0o755)
    with open_store(tmp_path, NO_FLOOR):
        assert stat.S_IMODE((tmp_path / there).stat().st_mode) == 0o755


def test_what_is_hidden_in_everybody_s_directory_is_somebody_s(tmp_path: Path) -> None:
    (tmp_path / ".X11-unix").mkdir()
    tmp_path.chmod(0o1777)
    with pytest.raises(StoreUnavailable, match="nothing of a store"), open_store(tmp_path, NO_FLOOR):
        pass
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777


def test_what_of_a_note_a_power_cut_left_keeps_no_store_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def power_cut(*_: object, **__: object) -> None:
        raise SystemExit

    with monkeypatch.context() as cut:
        cut.setattr(os, "rename", power_cut)
        with pytest.raises(SystemExit):
            note.leave(tmp_path, "version 1.1 of the image did not pass its start")
    assert os.listdir(tmp_path)
    with open_store(tmp_path, NO_FLOOR):
        pass


def test_a_writer_closes_what_it_finds_open(state: Path) -> None:
    fill(state)
    opened_up(state)
    with open_store(state, NO_FLOOR):
        assert not any(status.st_mode & 0o077 for status in entries(state).values())


def test_a_walk_that_was_cut_short_is_walked_again(state: Path) -> None:
    fill(state)
    opened_up(state)
    state.chmod(0o700)
    assert keep_private(state).entries
    assert keep_private(state) == Mended()


def test_no_link_is_followed_that_takes_an_entry_s_place(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "passwd"
    outside.write_text("everybody's")
    outside.chmod(0o644)
    state.mkdir()
    (state / CATALOG).write_bytes(b"{}")
    opened_up(state)
    differs = privacy._differs

    def differs_and_goes(*of: Any) -> bool:
        found = differs(*of)
        (state / CATALOG).unlink()
        (state / CATALOG).symlink_to(outside)
        return found

    monkeypatch.setattr(privacy, "_differs", differs_and_goes)
    keep_private(state)
    assert stat.S_IMODE(outside.stat().st_mode) == 0o644


@ROOT_ONLY
@pytest.mark.parametrize("closed", [CATALOG, "blobs"])
def test_what_cannot_be_read_keeps_nothing_else_open(reachable: Path, closed: str) -> None:
    fill(reachable)
    opened_up(reachable)
    for path in (reachable, *reachable.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    os.chown(reachable / closed, 0, 0)
    (reachable / closed).chmod(0o700 if closed == "blobs" else 0o600)
    told = as_user(NOBODY, [], lambda: keep_private(reachable).problem)
    assert told == ("blobs: Permission denied" if closed == "blobs" else "")
    left = {name: each for name, each in entries(reachable).items() if not name.startswith("blobs")}
    assert not [name for name, each in left.items() if each.st_mode & 0o077]


def refusal(state: Path) -> str:
    with pytest.raises(StoreUnavailable) as refused:
        read_catalog(state)
    return str(refused.value)


@ROOT_ONLY
def test_nobody_else_reaches_anything_or_holds_a_lock(reachable: Path) -> None:
    fill(reachable)
    for lock in (LOCK, RUNNING_LOCK, SCRUB_LOCK):
        assert as_user(NOBODY, [], partial(is_held, reachable / lock)) == "PermissionError"
    assert "run this as the user that owns" in as_user(NOBODY, [], partial(refusal, reachable))
    assert as_user(NOBODY, [], lambda: os.listdir(reachable)) == "PermissionError"


@ROOT_ONLY
def test_a_group_may_look_where_the_operator_says_so(reachable: Path, umask: int) -> None:
    fill(reachable)
    os.chown(reachable, -1, GROUP)
    reachable.chmod(SHARED)
    assert keep_private(reachable).entries
    assert keep_private(reachable) == Mended()
    fill(reachable, 3)
    for path, status in entries(reachable).items():
        assert status.st_gid == GROUP, path
        assert not status.st_mode & 0o027, path
        assert bool(status.st_mode & 0o040) is not path.endswith((".lock", ".key")), path
    assert "digits" in as_user(NOBODY, [GROUP], lambda: read_catalog(reachable))
    for lock in (LOCK, RUNNING_LOCK, SCRUB_LOCK):
        assert as_user(NOBODY, [GROUP], partial(is_held, reachable / lock)) == "PermissionError"

    def usage() -> str:
        catalog = read_catalog(reachable)
        assert catalog is not None
        with census_of(reachable, NO_FLOOR) as census:
            return census.usage(catalog).unsaid

    assert "can only be told by the user that owns that directory" in as_user(NOBODY, [GROUP], usage)
    words = ["--state-dir", str(reachable)]
    for command in (
        ["model", "list"],
        ["model", "history"],
        ["store", "gc"],
        ["store", "check"],
        ["store", "usage"],
    ):
        assert main([*command, *words]) == Exit.OK, "its modules may lie where nobody else can read them"
    for looks in (["model", "list"], ["store", "usage"], ["store", "check"], ["model", "history"]):
        assert as_user(NOBODY, [GROUP], partial(main, [*looks, *words])) == str(int(Exit.OK)), looks
    for changes in (["store", "gc"], ["store", "gc", "--dry-run"], ["model", "uninstall", "digits"]):
        assert as_user(NOBODY, [GROUP], partial(main, [*changes, *words])) == str(int(Exit.USAGE)), changes
    assert as_user(NOBODY, [GROUP], lambda: (reachable / CATALOG).write_bytes(b"")) == "PermissionError"


@ROOT_ONLY
def test_what_root_makes_in_somebody_s_directory_is_that_one_s(reachable: Path) -> None:
    reachable.mkdir()
    os.chown(reachable, NOBODY, NOBODY)
    with open_store(reachable, NO_FLOOR) as store:
        install(store, arrival("digits", 1, contents(1)), want=True, now_ms=1)
    assert {status.st_uid for status in entries(reachable).values()} == {NOBODY}
    assert as_user(NOBODY, [], lambda: fill(reachable, 2)) == "None"
    assert {status.st_uid for status in entries(reachable).values()} == {NOBODY}
