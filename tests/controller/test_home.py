"""The directory of a controller: its owner's alone, whatever it was before."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.controller.home import Settings, make_home, open_home

SETTINGS = Settings(url="https://127.0.0.1:1", address="127.0.0.1:0")


def test_a_directory_that_was_open_to_everybody_is_not_any_more(tmp_path: Path) -> None:
    folder, before = tmp_path / "controller", os.umask(0)
    try:
        folder.mkdir(0o777)
        make_home(folder, SETTINGS, [], [], 0)
        open_home(folder).close()
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    secret = (
        "authority.pem",
        "server.pem",
        "settings.json",
        "keys",
        "offline",
        "keys/targets.pem",
        "offline/root.pem",
    )
    assert [name for name in secret if (folder / name).stat().st_mode & 0o077] == []


def test_a_database_of_a_newer_release_is_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "controller"
    make_home(folder, SETTINGS, [], [], 0)
    with closing(sqlite3.connect(folder / "fleet.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    with closing(sqlite3.connect(folder / "fleet.db")) as database:
        before = list(database.iterdump())
    assert main(["controller", "serve", str(folder)]) == 2
    assert "is of a newer release" in capsys.readouterr().err
    with closing(sqlite3.connect(folder / "fleet.db")) as database:
        assert list(database.iterdump()) == before
