"""One model in a repository of its own, read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from onnx import ModelProto

from appliance.config.repository import SettledRepository
from appliance.repository.directory import RepositoryScan
from tests.repository.onnx_files import plain_model, write_version
from tests.repository.scanning import scan

ReadModel = Callable[..., RepositoryScan]


@pytest.fixture
def read_model(tmp_path: Path) -> ReadModel:
    """``read_model(config_text, graph=..., files={relative path: bytes}, **settings)``: the scan of a repository
    with the one model ``m``, version 1, whose graph is y = x, FP32 [batch, 4], unless told otherwise."""

    def read(
        config: str | bytes | None = None,
        *,
        graph: ModelProto | bytes | None = None,
        files: Mapping[str, bytes] | None = None,
        **settings: object,
    ) -> RepositoryScan:
        directory = write_version(tmp_path, "m", plain_model() if graph is None else graph)
        if config is not None:
            data = config if isinstance(config, bytes) else config.encode()
            (directory / "config.pbtxt").write_bytes(data)
        for name, content in (files or {}).items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(content)
        return scan(tmp_path, SettledRepository(**settings))  # type: ignore[arg-type]

    return read
