"""Names of models that came from elsewhere than a listing of their directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.config.repository import RepositoryConfig
from appliance.repository.model_directory import read_model_directory
from tests.repository.onnx_files import plain_model, write_version
from tests.repository.outcomes import only_problem


@pytest.mark.parametrize("name", ["", ".", "..", "../m", "a/b", "m\0", "/tmp/m"])
def test_a_name_that_no_directory_has_is_no_model_whatever_it_leads_to(name: str, tmp_path: Path) -> None:
    write_version(tmp_path, "m", plain_model())
    (tmp_path / "r").mkdir()
    reading = read_model_directory(str(tmp_path / "r"), name, RepositoryConfig(), b"max_batch_size: 3")
    assert reading is not None
    assert "is not a name for a model" in only_problem(reading).text
