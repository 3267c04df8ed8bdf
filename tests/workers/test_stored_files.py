"""A version from a package is loaded from the bytes that its package brought, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.domain.device_wish import ON_CPU, ON_CUDA
from appliance.domain.digest import digest_of
from appliance.domain.errors import FileDiffers, LoadFailed
from appliance.domain.load_wish import LoadWish
from appliance.domain.model import ModelVersion, Warmup, WarmupInput
from appliance.domain.regular_file import read_file
from appliance.domain.tensor import Datatype
from appliance.runtimes import onnx
from appliance.runtimes.onnx import OnnxRuntime
from appliance.runtimes.runtime import RuntimeSettings, Session
from appliance.workers.child.form_builder import build_form
from appliance.workers.child.loading import Loader
from appliance.workers.messages import Load
from appliance.workers.port import ModelLoaded
from models.generators.graph import model_bytes, node, tensor_port
from tests.workers.bench import spec, version_of
from tests.workers.test_assessment import golden_of
from tests.workers.transformers import DIGEST, flip_bit, read_version

WISHES = [LoadWish(assess=True), LoadWish(assess=True, background=True), LoadWish(assess=True, quick=True)]


@pytest.fixture
def version(tmp_path: Path) -> ModelVersion:
    """One whose every kind of file is known by its digest: graph, golden set, a warm-up's tensor."""
    path = tmp_path / "1" / "model.onnx"
    path.parent.mkdir()
    ports = [[tensor_port(name, "FP32", ["n", 4])] for name in "xy"]
    path.write_bytes(model_bytes("same", [node("Identity", ["x"], ["y"])], inputs=ports[0], outputs=ports[1]))
    tensor = tmp_path / "warmup" / "row"
    tensor.parent.mkdir()
    tensor.write_bytes(bytes(16))
    golden = golden_of(tmp_path / "1", [1, 2, 3, 4])
    file = WarmupInput(spec=spec("x", Datatype.FP32, 4), file=str(tensor))
    read = [str(path), str(tensor), golden, golden.replace("set.json", "tensors.bin")]
    return version_of(
        path,
        [spec("x", Datatype.FP32, 4)],
        [spec("y", Datatype.FP32, 4)],
        max_batch_size=8,
        golden=golden,
        warmups=(Warmup(name="row", batch_size=1, count=1, inputs=(file,)),),
        digests={each: digest_of(Path(each).read_bytes()) for each in read},
    )


def load(version: ModelVersion, wish: LoadWish = WISHES[0]) -> ModelLoaded:
    loader = Loader(1, {"onnx": OnnxRuntime()}, 1)
    opened = loader.load(
        Load(1, version, wish), alone=False, tell=lambda *said: None, judge=lambda *said: None
    )
    opened.model.session.close()
    return opened.said


def differing(version: ModelVersion) -> Iterator[str]:
    """The files of the version, each with one bit changed meanwhile."""
    for path in version.digests:
        middle = Path(path).stat().st_size // 2
        flip_bit(path, middle)
        yield path
        flip_bit(path, middle)


@pytest.mark.parametrize("wish", WISHES)
def test_one_bit_of_any_file_keeps_a_version_from_being_loaded(version: ModelVersion, wish: LoadWish) -> None:
    unread = {"row"} if wish.quick else set()  # no warm-ups then
    for path in differing(version):
        if Path(path).name in unread:
            assert load(version, wish).assessment is not None
            continue
        with pytest.raises(Exception, match=r"digest") as caught:
            load(version, wish)
        error = caught.value
        is_set = path.endswith(
            "tensors.bin"
        )  # the set names the digest of its tensors, and is held to its own
        assert is_set or isinstance(error.__cause__ or error, FileDiffers), path
        assert Path(path).name in str(error)
    assert load(version, wish).assessment is not None


def test_what_was_compared_is_what_runs(version: ModelVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is another one as soon as it was read, and nobody opens it again."""

    def read(path: str, limit: int, digest: str = "", called: str = "") -> bytes:
        data = read_file(path, limit, digest, called)
        Path(path).write_bytes(b"something else")
        return data

    monkeypatch.setattr(onnx, "read_file", read)
    assert load(version).assessment is not None
    assert Path(version.path).read_bytes() == b"something else"


def test_weights_in_several_files_are_held_to_their_digests(version: ModelVersion) -> None:
    beside = Path(version.path).with_name("second.bin")
    beside.write_bytes(b"weights")
    version = replace(version, digests={**version.digests, str(beside): digest_of(b"weights")})
    assert load(version)
    flip_bit(str(beside), 3)
    with pytest.raises(FileDiffers, match=r"second\.bin is not what it was when it was stored"):
        load(version)


class OnProcessor:
    """Stands for a device: it runs what is for one on the processor."""

    name = "onnx"

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        return OnnxRuntime().load(replace(version, device=ON_CPU), settings)


def test_weights_for_a_device_are_held_to_their_digests(home: Path) -> None:
    """Nothing maps them there, so that nothing else would read and verify them."""
    version = replace(read_version(home), device=ON_CUDA, runtime="onnx")
    assert version.weights is not None
    loader = Loader(1, {"onnx": OnProcessor()}, 1)

    def load_it() -> None:
        opened = loader.load(Load(1, version), alone=False, tell=lambda *said: None, judge=lambda *said: None)
        opened.model.session.close()

    load_it()
    flip_bit(version.weights.path, version.weights.size // 2)
    try:
        with pytest.raises(LoadFailed, match="is not what it was when it was stored"):
            load_it()
    finally:
        flip_bit(version.weights.path, version.weights.size // 2)


def test_no_form_is_made_of_weights_that_rotted(home: Path, tmp_path: Path) -> None:
    version = replace(read_version(home), digest=DIGEST, forms=str(tmp_path / "forms"))
    assert version.weights is not None
    flip_bit(version.weights.path, version.weights.size // 2)
    try:
        with pytest.raises(LoadFailed, match="is not what it was when it was stored"):
            build_form(version, OnnxRuntime(), RuntimeSettings(), lambda *said: None)
    finally:
        flip_bit(version.weights.path, version.weights.size // 2)
