"""Files of a version whose format is not read here: counted and watched."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.config.repository import RepositoryConfig
from tests.repository.scanning import scan

CONFIG = RepositoryConfig(runtimes=("fake",))


def test_files_of_another_format_are_watched_as_well(tmp_path: Path) -> None:
    """All that a worker can read below the version's directory; what it cannot is the runtime's to miss."""
    home = tmp_path / "m"
    (home / "1" / "parts").mkdir(parents=True)
    (home / "config.pbtxt").write_text(
        'backend: "fake" input { name: "x" data_type: TYPE_FP32 dims: 1 } '
        'output { name: "y" data_type: TYPE_FP32 dims: 1 }'
    )
    (empty,) = scan(tmp_path, CONFIG).servable
    assert empty.model.file_bytes == 0

    (home / "1" / "model.xml").write_bytes(bytes(3))
    (home / "1" / "parts" / "0").write_bytes(bytes(4))
    (home / "1" / "outside").symlink_to("/etc/hostname")
    os.mkfifo(home / "1" / "pipe")
    (first,) = scan(tmp_path, CONFIG).servable
    assert (first.model.file_bytes, first.model.path) == (7, str(home / "1"))
    assert first.fingerprint != empty.fingerprint
    assert scan(tmp_path, CONFIG).servable == (first,)

    (home / "1" / "parts" / "0").write_bytes(bytes(5))
    (second,) = scan(tmp_path, CONFIG).servable
    assert second.fingerprint != first.fingerprint
