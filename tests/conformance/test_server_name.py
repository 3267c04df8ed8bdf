"""What the server calls itself is the operator's to choose, over every port."""

from __future__ import annotations

from pathlib import Path

import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http

from appliance.configuration import load
from appliance.domain.errors import ConfigInvalid
from tests.conftest import Serve
from tests.fronts import Sections

NAME = "kiln 7, G\u00f6teborg"


@pytest.mark.every_front_end
def test_clients_are_told_the_name(serve: Serve, front_end: Sections, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    control = tmp_path / "control"
    named = {"frontend": {**front_end["frontend"], "server_name": NAME}, "control": {"socket": str(control)}}
    daemon = serve(tmp_path / "models", named)
    for address in (daemon.grpc, f"unix:{control}"):
        with grpc.InferenceServerClient(address) as client:
            assert client.get_server_metadata().name == NAME
    with http.InferenceServerClient(daemon.http) as client:
        assert client.get_server_metadata()["name"] == NAME


@pytest.mark.parametrize("name", ["", "x" * 129, "two\\nlines"])
def test_a_name_is_a_line_of_text(tmp_path: Path, name: str) -> None:
    file = tmp_path / "a.toml"
    file.write_text(f'[frontend]\nserver_name = "{name}"')
    with pytest.raises(ConfigInvalid, match="must be a printable text of 1 to 128 characters"):
        load(file)
