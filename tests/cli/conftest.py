"""Commands on a store of their own: where it is, packages to put into it, and how a command is run; and a model with a
golden set to try things on."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.domain.digest import digest_of
from appliance.package.container import write_package
from models.generate import write_model
from models.make_digits import HOME
from tests.domain.manifests import manifest_of_mlp
from tests.store.arrivals import contents_of

Pack = Callable[..., Path]
FilesOf = Callable[[int], dict[str, bytes]]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "state"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A disk may be as full as it likes, packages need no signature."""
    file = tmp_path / "a.toml"
    file.write_text('[store]\nfree_floor_bytes = 0\n[packages]\nunsigned = "allow"\n')
    return file


@pytest.fixture
def files_of(tmp_path: Path) -> Callable[[int], dict[str, bytes]]:
    """A model that can be served, the same graph in each version, and weights that nobody reads."""
    graph = (write_model("mlp", tmp_path / "models") / "1" / "model.onnx").read_bytes()
    return lambda version: {
        f"{version}/model.onnx": graph,
        f"{version}/weights.bin": contents_of(version)[f"{version}/weights.bin"],
    }


@pytest.fixture
def pack(tmp_path: Path, files_of: FilesOf) -> Pack:
    def packed(
        version: int = 1, signatures: bytes | None = None, files: dict[str, bytes] | None = None
    ) -> Path:
        files = files or files_of(version)
        by_digest = {digest_of(content): content for content in files.values()}
        path = tmp_path / f"digits-{version}.model"
        with path.open("wb") as out:
            manifest = manifest_of_mlp(files, name="digits", version=version)
            write_package(out, manifest, signatures, lambda entry: io.BytesIO(by_digest[entry.digest]))
        return path

    return packed


@pytest.fixture
def appliance(
    state: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    def run(*words: str) -> tuple[int, str, str]:
        status = main([*words, "--state-dir", str(state), "--config", str(config)])
        told = capsys.readouterr()
        return status, told.out, told.err

    return run


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Version 2 of the digits with its golden set."""
    home = tmp_path / "digits"
    shutil.copytree(HOME, home, ignore=shutil.ignore_patterns("1", "*.png", "golden.json"))
    return home
