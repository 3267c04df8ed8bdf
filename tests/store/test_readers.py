"""Readers need no lock: whatever the writer does, a reader finds one catalog or the next, and all of it whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from appliance.config.store import StoreConfig
from appliance.domain.digest import digest_of
from appliance.domain.errors import ArtefactError
from appliance.durable import RealFolder
from appliance.store.catalog import InstalledVersion
from appliance.store.catalog_file import read_catalog
from appliance.store.layout import view_path
from appliance.store.scrub import inspect
from appliance.store.writer import open_store
from tests.store.arrivals import arrival
from tests.store.stores import install

ROUNDS = 12
PROGRAM = """
import sys
from pathlib import Path
from appliance.config.store import StoreConfig
from appliance.store.writer import open_store
from tests.store.arrivals import arrival
from tests.store.stores import install
for round in range(int(sys.argv[2])):
    with open_store(Path(sys.argv[1]), StoreConfig(free_floor_bytes=0)) as store:
        for version in (2 + round % 2, 3 - round % 2):
            install(store, arrival(version=version), want=True, now_ms=round, downgrade=True)
        store.uninstall("digits", 2 + round % 2)
        store.roll_back("digits", round)
        store.uninstall("digits", 3 - round % 2)
"""


def test_a_reader_finds_every_wanted_version_whole_while_a_writer_comes_and_goes(tmp_path: Path) -> None:
    with open_store(tmp_path, StoreConfig(free_floor_bytes=0)) as store:
        install(store, arrival(version=1), want=True, now_ms=0)
    seen = set()
    folder = RealFolder(tmp_path)
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path), str(ROUNDS)]) as writer:
        while writer.poll() is None:
            catalog = read_catalog(tmp_path)
            assert catalog is not None
            seen.add(catalog.generation)
            for model, version in catalog.wanted():
                if not is_whole(folder, version):
                    now = read_catalog(tmp_path)
                    assert now is not None
                    assert version not in [each for _, each in now.installed()], (
                        f"{model.name}/{version.version}"
                    )
        assert writer.returncode == 0
    final = read_catalog(tmp_path)
    assert final is not None
    assert [version.version for _, version in final.installed()] == [1]
    assert inspect(folder, lambda: final).findings == ()
    folder.close()
    assert len(seen) > 2


def is_whole(folder: RealFolder, version: InstalledVersion) -> bool:
    """Whether every file of the view can be read, and is what it should be. A file that is there is always right."""
    try:
        for file in version.files:
            data = b"".join(
                bytes(chunk) for chunk in folder.chunks(f"{view_path(version.digest)}/{file.path}")
            )
            if digest_of(data) != file.digest:
                raise ArtefactError(f"{file.path} has wrong bytes")
    except FileNotFoundError:
        return False
    return True
