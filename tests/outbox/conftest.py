"""Folders that tests of the outbox open are closed when they end: there are many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.durable import RealFolder


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opened: list[RealFolder] = []
    make = RealFolder.__init__

    def made(folder: RealFolder, path: Path) -> None:
        make(folder, path)
        opened.append(folder)

    close = RealFolder.close

    def done(folder: RealFolder) -> None:
        opened.remove(folder)
        close(folder)

    monkeypatch.setattr(RealFolder, "__init__", made)
    monkeypatch.setattr(RealFolder, "close", done)
    yield
    for folder in opened:
        folder.close()
