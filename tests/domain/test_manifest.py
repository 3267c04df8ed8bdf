"""Manifests: one form each, every rule told, nothing else comes out whatever the bytes are."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from appliance.domain.digest import PIECE_BYTES, Digester, digest_of, is_digest, piece_count
from appliance.domain.errors import PackageInvalid
from appliance.domain.manifest import (
    FileEntry,
    Manifest,
    Opset,
    RuntimeNeed,
    TensorEntry,
    is_name,
    manifest_problems,
    path_problem,
)
from appliance.domain.manifest_codec import MANIFEST_BYTES_MAX, decode, encode
from appliance.domain.tensor import Datatype, TensorSpec
from tests.domain.manifests import file_entry, manifest_of, manifests

PLAIN = manifest_of({"1/graph.onnx": b"graph", "1/weights.bin": bytes(100), "config.pbtxt": b"name"})
TENSOR = TensorEntry(
    name="w",
    datatype="FLOAT",
    shape=(5, 5),
    file="1/weights.bin",
    offset=0,
    length=100,
    digest=digest_of(bytes(100)),
)


@given(manifests())
def test_what_is_written_is_read(manifest: Manifest) -> None:
    assert list(manifest_problems(manifest)) == []
    assert decode(encode(manifest)) == manifest


@given(manifests(), st.data())
def test_a_changed_byte_is_another_manifest_or_none(manifest: Manifest, data: st.DataObject) -> None:
    wire = bytearray(encode(manifest))
    at = data.draw(st.integers(0, len(wire) - 1))
    wire[at] ^= data.draw(st.integers(1, 255))
    try:
        found = decode(bytes(wire))
    except PackageInvalid:
        return
    assert found != manifest
    assert encode(found) == bytes(wire)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(junk: bytes) -> None:
    with pytest.raises(PackageInvalid):
        decode(junk)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(json.loads(encode(PLAIN)))), JSON)
def test_no_value_at_any_key_raises_anything_else(key: str, value: Any) -> None:
    table = json.loads(encode(PLAIN))
    same = table[key] == value and type(table[key]) is type(value)
    table[key] = value
    wire = json.dumps(table, sort_keys=True, separators=(",", ":")).encode()
    try:
        found = decode(wire)
    except PackageInvalid:
        assert not same
    else:
        assert encode(found) == wire


@pytest.mark.parametrize(
    "wire",
    [
        encode(PLAIN) + b"\n",
        encode(PLAIN).replace(b'{"', b'{ "', 1),
        encode(PLAIN).replace(b'"format":1,', b'"format":1,"format":1,', 1),
        encode(PLAIN).replace(b'"tensors":[],', b"", 1),
        encode(PLAIN).replace(b"sample", b"s\\u0061mple", 1),
        json.dumps(json.loads(encode(PLAIN))).encode(),
    ],
    ids=["trailing newline", "blank", "key twice", "default left out", "needless escape", "blanks"],
)
def test_other_spellings_are_refused(wire: bytes) -> None:
    with pytest.raises(PackageInvalid, match="canonical"):
        decode(wire)


@pytest.mark.parametrize(
    ("wire", "says"),
    [
        (b"\xff", "is not JSON"),
        (b"[]", "not a JSON object"),
        (b"[" * 200_000, "is not JSON"),
        (b'{"format":' + b"9" * 5000 + b"}", "is not JSON"),
        (b'{"format":2}', "update it"),
        (b'{"format":true}', "knows format 1"),
        (b'{"format":1,"files":[' + b"0," * 1024 + b"0]}", "1025 entries"),
        (b" " * (MANIFEST_BYTES_MAX + 1), "the limit is"),
        (b'{"format":1,"name":"\\ud800"}', "version"),
        (encode(PLAIN).replace(b'"made by a test"', b'"\\ud800"'), "UTF-8"),
        (encode(PLAIN).replace(b'"version":1}', b'"version":1.0}'), "must be an integer"),
        (encode(PLAIN).replace(b'"version":1}', b'"version":1,"zeal":1}'), "not a known key"),
    ],
)
def test_what_is_no_manifest_is_told(wire: bytes, says: str) -> None:
    with pytest.raises(PackageInvalid, match=says):
        decode(wire)


def test_all_problems_come_at_once() -> None:
    wrong = replace(PLAIN, name="UPPER", version=0, outputs=(), max_batch_size=-1)
    with pytest.raises(PackageInvalid) as caught:
        encode(wrong)
    keys = [problem.key for problem in caught.value.problems]
    assert {"name", "version", "outputs", "max_batch_size"} <= set(keys)


def test_the_list_of_problems_is_bounded() -> None:
    files = tuple(FileEntry(path="", size=-1, digest="", pieces=()) for _ in range(1000))
    with pytest.raises(PackageInvalid, match="more than 100 problems") as caught:
        encode(replace(PLAIN, files=files))
    assert len(caught.value.problems) == 101


def entries(*paths: str) -> tuple[FileEntry, ...]:
    return tuple(file_entry(path, path.encode()) for path in paths)


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"name": ".hidden"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"version": 1 << 63}, "version"),
        ({"format": 2}, "format"),
        ({"files": entries("1/a", "1/a")}, "files"),
        ({"files": entries("b", "1/a")}, "files"),
        ({"files": entries("1/a", "1/a/b")}, "files"),
        ({"files": entries("1/a", "2/a")}, "files"),
        ({"files": entries("config.pbtxt")}, "files"),
        ({"files": entries("1/../x")}, "files[0].path"),
        ({"files": (FileEntry(path="1/a", size=5, digest="0" * 64, pieces=()),)}, "files[0].pieces"),
        (
            {"files": (FileEntry(path="1/a", size=5, digest="0" * 64, pieces=("1" * 64,)),)},
            "files[0].pieces",
        ),
        ({"files": (FileEntry(path="1/a", size=0, digest="0" * 63 + "A", pieces=()),)}, "files[0].digest"),
        (
            {
                "files": (
                    FileEntry(path="1/a", size=0, digest="0" * 64, pieces=()),
                    FileEntry(path="1/b", size=1, digest="0" * 64, pieces=("0" * 64,)),
                )
            },
            "files[1]",
        ),
        ({"tensors": (replace(TENSOR, file="1/other"),)}, "tensors[0].file"),
        ({"tensors": (replace(TENSOR, offset=1),)}, "tensors[0]"),
        ({"tensors": (replace(TENSOR, offset=-1),)}, "tensors[0]"),
        ({"tensors": (replace(TENSOR, length=99),)}, "tensors[0].length"),
        ({"tensors": (replace(TENSOR, datatype="STRING"),)}, "tensors[0].datatype"),
        ({"tensors": (replace(TENSOR, shape=(-5, -5)),)}, "tensors[0].shape"),
        ({"tensors": (replace(TENSOR, digest="x"),)}, "tensors[0].digest"),
        ({"tensors": (TENSOR, TENSOR)}, "tensors"),
        ({"tensors": (TENSOR, replace(TENSOR, name="x", digest="0" * 64))}, "tensors[1]"),
        ({"tensors": (replace(TENSOR, name="x"), TENSOR)}, "tensors[1]"),
        ({"outputs": (TensorSpec(name="", datatype=Datatype.FP32, shape=()),)}, "outputs[0].name"),
        ({"outputs": (TensorSpec(name="y", datatype=Datatype.FP32, shape=(-2,)),)}, "outputs[0].shape"),
        ({"inputs": (PLAIN.inputs[0], PLAIN.inputs[0])}, "inputs"),
        ({"runtime": RuntimeNeed(name="o", minimum="new")}, "runtime.minimum"),
        ({"runtime": replace(PLAIN.runtime, opsets=PLAIN.runtime.opsets * 2)}, "runtime.opsets"),
        (
            {"runtime": replace(PLAIN.runtime, opsets=(Opset(domain="", version=0),))},
            "runtime.opsets[0].version",
        ),
        ({"licence": "x" * 300_000}, "licence"),
    ],
)
def test_each_rule(changed: dict[str, Any], key: str) -> None:
    assert key in [where for where, _ in manifest_problems(replace(PLAIN, **changed))]


def test_a_datatype_that_the_protocol_does_not_have_is_told() -> None:
    with pytest.raises(PackageInvalid, match=r"inputs\[0\]\.datatype: must be one of 'BOOL'"):
        decode(encode(PLAIN).replace(b'"FP32"', b'"FP99"'))


def test_tensors_with_equal_bytes_may_share_a_place() -> None:
    shared = replace(PLAIN, tensors=(TENSOR, replace(TENSOR, name="x")))
    assert decode(encode(shared)) == shared


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        "..",
        "a/..",
        ".git",
        "A",
        "a\0",
        "a\n",
        "a b",
        "a\\b",
        "é",
        "a/b/c/d/e",
        "x" * 65,
    ],
)
def test_tricks_in_paths(path: str) -> None:
    assert path_problem(path)


def test_plain_names() -> None:
    assert all(map(is_name, ["a", "0", "resnet-50_v1.5", "_x", "-", "x" * 64]))
    assert not path_problem("3/graph.onnx")


def test_blobs_are_distinct_contents_in_order() -> None:
    manifest = manifest_of({"1/a": b"one", "1/b": b"two", "1/c": b"one"})
    assert [entry.path for entry in manifest.blobs] == ["1/a", "1/b"]
    assert manifest.total_bytes == 6
    assert manifest.file("1/c") == manifest.files[2]
    assert manifest.file("1/d") is None


@given(st.binary(max_size=100), st.lists(st.integers(0, 100)))
def test_digests_do_not_depend_on_how_bytes_come(data: bytes, cuts: list[int]) -> None:
    digester = Digester()
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in pairwise(places):
        digester.update(data[start:end])
    found = digester.finish()
    assert (found.size, found.digest) == (len(data), blake3(data).hexdigest())


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_pieces(size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    digester = Digester()
    for start in range(0, size, 1_000_003):
        digester.update(memoryview(data)[start : start + 1_000_003])
    found = digester.finish()
    parts = [data[start : start + PIECE_BYTES] for start in range(0, size, PIECE_BYTES)]
    assert found.pieces == tuple(map(digest_of, parts))
    assert len(found.pieces) == piece_count(size)
    assert is_digest(found.digest)


def test_tensors_in_equal_files_lie_apart_or_on_one_another_too() -> None:
    """Their bytes are summed once for all files of that content, whatever those are called."""
    plain = manifest_of({"1/a.bin": bytes(100), "1/b.bin": bytes(100)})
    one = replace(TENSOR, file="1/a.bin")
    same = replace(TENSOR, name="v", file="1/b.bin")
    assert list(manifest_problems(replace(plain, tensors=(one, same)))) == []
    part = replace(same, shape=(99,), datatype="UINT8", offset=1, length=99, digest=digest_of(bytes(99)))
    found = manifest_problems(replace(plain, tensors=(one, part)))
    assert [key for key, _ in found] == ["tensors[1]"]
