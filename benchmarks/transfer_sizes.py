"""``python -m benchmarks.transfer_sizes FOLDER``: what an update costs, beside the tools that there are for it.

A perceptron of 89 MB is really trained and fine-tuned with numpy; each version is packed and brought as a stream, and
the same weights are given to ``zstd --patch-from``, xdelta3, bsdiff and content-defined chunking. Prints a line of
JSON for each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from appliance.domain.digest import digest_of
from appliance.transfer.apply import apply, blobs_in
from appliance.transfer.build import build
from tests.transfer.packages import make, unpack

SIZES = (1024, 3072, 4096, 1536, 100)
PEER_LIMIT_S = 900.0
NOISE = 0.007
Weights = dict[str, NDArray[Any]]


class Perceptron:
    """A classifier, trained with Adam on examples of a random teacher; ``weights`` are float32."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.weights: Weights = {}
        for number, (width, height) in enumerate(pairwise(SIZES)):
            scale = np.float32((2 / width) ** 0.5)
            self.weights[f"w{number}"] = self._random.standard_normal((width, height), np.float32) * scale
            self.weights[f"b{number}"] = np.zeros(height, np.float32)

    def train(self, steps: int, rate: float, shift: float, only: str = "") -> None:
        """Take ``steps``; ``shift`` makes the examples others."""
        first = {name: np.zeros_like(each) for name, each in self.weights.items()}
        second = {name: np.zeros_like(each) for name, each in self.weights.items()}
        teacher = np.random.default_rng(7).standard_normal((SIZES[0], SIZES[-1]), np.float32)
        for step in range(1, steps + 1):
            inputs = self._random.standard_normal((64, SIZES[0]), np.float32) + np.float32(shift)
            for name, slope in self._slopes(inputs, (inputs @ teacher).argmax(1)).items():
                if name.startswith(only):
                    first[name] += np.float32(0.1) * (slope - first[name])
                    second[name] += np.float32(0.001) * (slope * slope - second[name])
                    mean = first[name] / np.float32(1 - 0.9**step)
                    spread = np.sqrt(second[name] / np.float32(1 - 0.999**step)) + np.float32(1e-8)
                    self.weights[name] = self.weights[name] - np.float32(rate) * mean / spread

    def _slopes(self, inputs: NDArray[Any], labels: NDArray[Any]) -> Weights:
        seen, last = [inputs], len(SIZES) - 2
        for number in range(last + 1):
            value = seen[-1] @ self.weights[f"w{number}"] + self.weights[f"b{number}"]
            seen.append(np.maximum(value, 0) if number < last else value)
        likely = np.exp(seen[-1] - seen[-1].max(1, keepdims=True))
        error = likely / likely.sum(1, keepdims=True)
        error[np.arange(len(labels)), labels] -= 1
        error /= np.float32(len(labels))
        found: Weights = {}
        for number in range(last, -1, -1):
            found[f"w{number}"], found[f"b{number}"] = seen[number].T @ error, error.sum(0)
            error = (error @ self.weights[f"w{number}"].T) * (seen[number] > 0)
        return found


def quantised(weights: Weights) -> Weights:
    """The same as int8 with a scale for each column; biases stay."""
    found: Weights = {}
    for name, each in weights.items():
        if each.ndim < 2:
            found[name] = each
            continue
        scale = np.abs(each).max(0) / np.float32(127)
        found[name] = np.rint(each / scale).astype(np.int8)
        found[f"{name}.scale"] = scale.astype(np.float32)
    return found


def with_noise(weights: Weights) -> Weights:
    """The same, each weight changed by itself, by 0.7 % on average: what fine-tuning comes to at its worst."""
    random = np.random.default_rng(5)
    spread = np.float32(NOISE / (2 / np.pi) ** 0.5)
    return {
        name: each * (1 + spread * random.standard_normal(each.shape, np.float32))
        for name, each in weights.items()
    }


def chunks(data: bytes) -> Iterator[bytes]:
    """Content-defined chunks of 64 KiB on average: a gear hash of the last 32 bytes."""
    gear = np.random.default_rng(3).integers(0, 1 << 32, 256, np.uint32)
    cuts, block = [0], 4 << 20
    for at in range(0, len(data), block):
        values = gear[np.frombuffer(data[max(at - 31, 0) : at + block], np.uint8)]
        hashed = values.copy()
        for back in range(1, 32):
            hashed[back:] += values[:-back] << np.uint32(back)
        for cut in np.flatnonzero(hashed >> np.uint32(16) == 0) + max(at - 31, 0) + 1:
            if cut - cuts[-1] >= 16 << 10:
                cuts.append(int(cut))
    for begin, end in zip(cuts, [*cuts[1:], len(data)], strict=True):
        for at in range(begin, end, 256 << 10):
            yield data[at : min(at + (256 << 10), end)]


def chunked(old: bytes, new: bytes) -> int:
    """Bytes that chunking sends: chunks that are not there, by themselves in zstd."""
    have = {digest_of(each) for each in chunks(old)}
    packer = zstandard.ZstdCompressor(level=3)
    return sum(len(packer.compress(each)) for each in chunks(new) if digest_of(each) not in have)


def peers(old: Path, new: Path) -> dict[str, Any]:
    """The bytes of each peer's difference; None for one that did not end in time."""
    out = new.with_suffix(".patch")
    words = {
        "zstd --patch-from": ["zstd", "-q", "-f", "-9", "--long=27", f"--patch-from={old}", new, "-o", out],
        "xdelta3": ["xdelta3", "-e", "-f", "-9", "-B", str(256 << 20), "-s", old, new, out],
        "bsdiff": ["bsdiff", old, new, out],
    }
    found: dict[str, Any] = {"chunks of 64 KiB": chunked(old.read_bytes(), new.read_bytes())}
    for name, each in words.items():
        try:
            subprocess.run(list(map(str, each)), check=True, timeout=PEER_LIMIT_S)
            found[name] = out.stat().st_size
        except subprocess.TimeoutExpired:
            found[name] = None
        out.unlink(missing_ok=True)
    return found


def compare(folder: Path, name: str, old: Weights, new: Weights) -> None:
    """One line: sizes in percent of the new package, and how fast the stream is made and applied."""
    base = make(folder / f"{name}.1.model", old)
    target = make(folder / f"{name}.2.model", new, version=2)
    began = time.perf_counter()
    built = build(target, base, folder / f"{name}.stream")
    made_s = time.perf_counter() - began
    blobs = unpack(base, folder / f"{name}.blobs")
    took = []
    for _ in range(3):
        began = time.process_time()
        apply(folder / f"{name}.stream", folder / "made.model", blobs_in(blobs))
        took.append(time.process_time() - began)
    assert (folder / "made.model").read_bytes() == target.read_bytes()
    size = target.stat().st_size
    for kind, weights in (("old", old), ("new", new)):
        (folder / f"{name}.{kind}").write_bytes(b"".join(each.tobytes() for each in weights.values()))
    found = {"stream": built.size, **peers(folder / f"{name}.old", folder / f"{name}.new")}
    result = {
        "case": name,
        "bytes": size,
        "percent": {each: count and round(100 * count / size, 2) for each, count in found.items()},
        "made_mb_s": round(size / made_s / 1e6),
        "applied_mb_s_of_cpu": [round(size / each / 1e6) for each in took],
    }
    print(json.dumps(result), flush=True)


def main(folder: Path) -> None:
    """Train, then compare."""
    folder.mkdir(parents=True, exist_ok=True)
    model = Perceptron(1)
    model.train(25, 1e-3, 0.0)
    old = dict(model.weights)
    model.train(20, 1e-5, 0.3)
    tuned = dict(model.weights)
    change = np.abs(tuned["w1"] - old["w1"]).mean() / np.abs(old["w1"]).mean()
    print(json.dumps({"relative change of weights": round(float(change), 4)}), flush=True)
    model.weights = dict(old)
    model.train(5, 1e-4, 0.3, only=f"w{len(SIZES) - 2}")
    last = dict(model.weights)
    make(folder / "first.model", old)
    print(
        json.dumps({"first": build(folder / "first.model", None, folder / "first.stream").size}), flush=True
    )
    compare(folder, "last layer", old, last)
    compare(folder, "int8", quantised(old), quantised(tuned))
    compare(folder, "fp32", old, tuned)
    compare(folder, "int8 with noise", quantised(old), quantised(with_noise(old)))
    compare(folder, "fp32 with noise", old, with_noise(old))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
