"""The directory of a controller: its owner's alone, whatever it was before."""

from __future__ import annotations

import os
from pathlib import Path

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
