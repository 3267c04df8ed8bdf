"""A directory of models is read again where it changed, and only once what changed has settled."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import ConfigInvalid
from appliance.repository import model_directory
from appliance.repository.directory import RepositoryScan
from appliance.repository.model_files import ModelHome
from appliance.sources import directory
from appliance.sources.directory import DirectorySource
from appliance.sources.source import Look
from tests.repository.onnx_files import plain_model, write_version

NOTHING = Look()


def served(look: Look) -> Sequence[str]:
    assert look.scan is not None
    return [entry.model.key for entry in look.scan.servable]


@pytest.fixture
def source(tmp_path: Path) -> DirectorySource:
    for name in ("a", "b"):
        write_version(tmp_path, name, plain_model())
    source = DirectorySource(tmp_path, RepositoryConfig())
    assert len(source.read().servable) == 2
    return source


def test_a_look_at_what_did_not_change_finds_nothing(source: DirectorySource) -> None:
    assert source.look() == NOTHING


def test_a_new_model_counts_when_it_was_the_same_twice(source: DirectorySource, tmp_path: Path) -> None:
    write_version(tmp_path, "new", plain_model())
    assert source.look() == Look(unsettled=True)
    assert served(source.look()) == ["a/1", "b/1", "new/1"]
    assert source.look() == NOTHING


def test_a_copy_under_way_is_left_alone_until_it_stops_growing(
    source: DirectorySource, tmp_path: Path
) -> None:
    complete = plain_model().SerializeToString()
    (tmp_path / "a" / "2").mkdir()
    with (tmp_path / "a" / "2" / "model.onnx").open("wb") as copy:
        for byte in range(5):
            copy.write(complete[byte : byte + 1])
            copy.flush()
            assert source.look() == Look(unsettled=True)
        copy.write(complete[5:])
    assert source.look() == Look(unsettled=True)
    assert served(source.look()) == ["a/2", "b/1"]


def test_a_model_that_is_renamed_over_another_is_never_missed_in_between(
    source: DirectorySource, tmp_path: Path
) -> None:
    (tmp_path / "a").rename(tmp_path / "_old")
    assert source.look() == Look(unsettled=True)
    (tmp_path / "_old").rename(tmp_path / "a")
    assert source.look() == NOTHING


def test_a_removed_model_leaves_after_two_looks(source: DirectorySource, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "a")
    assert source.look() == Look(unsettled=True)
    assert served(source.look()) == ["b/1"]


def test_a_changed_file_of_equal_size_and_time_is_seen_by_its_inode(
    source: DirectorySource, tmp_path: Path
) -> None:
    model = tmp_path / "a" / "1" / "model.onnx"
    before = model.stat()
    fresh = tmp_path / "a" / "1" / "_fresh"
    fresh.write_bytes(model.read_bytes())
    os.utime(fresh, ns=(before.st_atime_ns, before.st_mtime_ns))
    fresh.rename(model)
    assert source.look().unsettled
    assert source.look().scan is not None


def test_a_vanished_directory_is_an_error_and_forgets_nothing(
    source: DirectorySource, tmp_path: Path
) -> None:
    moved = tmp_path.with_name(f"{tmp_path.name}-moved")
    tmp_path.rename(moved)
    with pytest.raises(ConfigInvalid, match="cannot be read"):
        source.look()
    moved.rename(tmp_path)
    assert source.look() == NOTHING


def test_directories_are_told(source: DirectorySource, tmp_path: Path) -> None:
    real = os.path.realpath(tmp_path)
    assert set(source.directories()) == {real, *(f"{real}/{below}" for below in ("a", "a/1", "b", "b/1"))}


def test_one_model_is_read_at_once_and_with_another_configuration(
    source: DirectorySource, tmp_path: Path
) -> None:
    write_version(tmp_path, "a", plain_model(), 7)
    reading = source.model("a")
    assert reading is not None
    assert [entry.model.version for entry in reading.servable] == [7]
    assert source.look() == NOTHING, "it was read"
    other = source.model("b", b"max_batch_size: 3")
    assert other is not None
    assert [entry.model.max_batch_size for entry in other.servable] == [3]
    assert source.model("none") is None


def broken(look: Look) -> Sequence[str]:
    assert look.scan is not None
    return [f"{entry.name}: {entry.reason}" for entry in look.scan.broken]


@pytest.mark.parametrize("target", ["loop", "b/1/model.onnx/below"])
def test_a_link_that_leads_nowhere_hides_nobody(source: DirectorySource, tmp_path: Path, target: str) -> None:
    (tmp_path / "loop").symlink_to(target)
    assert source.look() == Look(unsettled=True)
    assert served(source.look()) == ["a/1", "b/1"]
    assert [entry.model.key for entry in source.read().servable] == ["a/1", "b/1"]
    assert source.look() == NOTHING
    (tmp_path / "loop").unlink()
    write_version(tmp_path, "loop", plain_model())
    source.look()
    assert served(source.look()) == ["a/1", "b/1", "loop/1"]


def test_a_link_that_leads_to_itself_is_told(source: DirectorySource, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    source.look()
    assert broken(source.look()) == ["loop: cannot be read: Too many levels of symbolic links"]


def test_a_model_that_trips_its_reader_hides_nobody(
    source: DirectorySource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = model_directory._read

    def trip(root: str, home: ModelHome, entry: str, *more: object) -> RepositoryScan | None:
        if entry == "a":
            raise ZeroDivisionError("nobody thought of this")
        return read(root, home, entry, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(model_directory, "_read", trip)
    found = source.read()
    assert [entry.model.key for entry in found.servable] == ["b/1"]
    assert ["ZeroDivisionError: nobody thought of this" in entry.reason for entry in found.broken] == [True]
    by_hand = source.model("a", b"")
    assert by_hand is not None
    assert "nobody thought of this" in by_hand.broken[0].reason


def test_a_model_whose_files_cannot_even_be_listed_hides_nobody(
    source: DirectorySource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature_of = directory.signature_of

    def trip(home: str) -> directory.Signature | None:
        if home.endswith("/a"):
            raise ZeroDivisionError("nobody thought of this")
        return signature_of(home)

    monkeypatch.setattr(directory, "signature_of", trip)
    write_version(tmp_path, "new", plain_model())
    source.look()
    assert "new/1" in served(source.look())
