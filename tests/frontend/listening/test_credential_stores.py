"""Files that systemd gives a service are looked for where the next start will take them from."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.config.listening import ListeningConfig
from appliance.frontend.listening.credential_stores import for_next_start

GIVEN = "/run/credentials/appliance.service"
PORT = ListeningConfig(tls_certificate=f"{GIVEN}/a.crt", tls_key=f"{GIVEN}/a.key")


def put(root: Path, place: str, name: str) -> str:
    (path := root / place / name).parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    return str(path)


@pytest.mark.parametrize("place", ["etc/credstore", "run/credstore", "usr/lib/credstore"])
def test_a_file_of_the_store_is_the_one_that_is_checked(tmp_path: Path, place: str) -> None:
    certificate = put(tmp_path, place, "a.crt")
    found = for_next_start(PORT, tmp_path)
    assert found is not None
    assert (found.tls_certificate, found.tls_key) == (certificate, PORT.tls_key)


def test_what_comes_first_for_systemd_comes_first_here(tmp_path: Path) -> None:
    put(tmp_path, "usr/lib/credstore", "a.crt")
    first = put(tmp_path, "etc/credstore", "a.crt")
    found = for_next_start(PORT, tmp_path)
    assert found is not None
    assert found.tls_certificate == first


def test_an_encrypted_one_can_be_checked_by_its_service_alone(tmp_path: Path) -> None:
    put(tmp_path, "etc/credstore.encrypted", "a.key")
    assert for_next_start(PORT, tmp_path) is None
    plain = put(tmp_path, "usr/lib/credstore", "a.key")
    found = for_next_start(PORT, tmp_path)
    assert found is not None
    assert found.tls_key == plain, "as it is for systemd"


def test_other_files_are_where_they_are(tmp_path: Path) -> None:
    put(tmp_path, "etc/credstore", "a.crt")
    other = ListeningConfig(tls_certificate="/srv/a.crt", tls_key="/srv/a.key")
    assert for_next_start(other, tmp_path) == other
