"""Checking packages: well made ones pass, and every lie is told, all of a package's at once."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.config.store import Unsigned
from appliance.domain.digest import digest_of
from appliance.domain.golden import GoldenSet, encode_golden
from appliance.domain.manifest import LatencyPromise, Manifest, Opset, RuntimeNeed
from appliance.domain.manifest_codec import encode
from appliance.domain.tensor import FREE, Datatype, TensorSpec
from appliance.package.container import write_package
from appliance.package.keys import make_key, open_signer, public_key_of
from appliance.package.trust import sign
from appliance.package.verification import Policy, Verification, verify_package
from appliance.tools.packaging.packing import Labels, lay_out
from appliance.tools.packaging.source import find_source
from tests.domain.manifests import file_entry
from tests.package.archives import archive, members_of
from tests.package.onnx_models import MODELS


@pytest.fixture
def laid_out(tmp_path: Path) -> tuple[Manifest, dict[str, bytes]]:
    """A version as it is before it is written: its manifest, and its files."""
    return lay(MODELS["layers"], tmp_path / "made")


def lay(model: onnx.ModelProto, folder: Path) -> tuple[Manifest, dict[str, bytes]]:
    folder.mkdir()
    onnx.save(model, folder / "layers.onnx")
    source = find_source(folder / "layers.onnx", None)
    manifest = lay_out(source, Labels(name="layers", version=1), folder / "out", lambda count: None)
    home = folder / "out" / "layers"
    return manifest, {entry.path: (home / entry.path).read_bytes() for entry in manifest.files}


def check(
    tmp_path: Path,
    manifest: Manifest,
    contents: dict[str, bytes],
    policy: Policy | None = None,
    signatures: bytes | None = None,
) -> Verification:
    """What is said of a package that was written without asking whether it is right."""
    path = tmp_path / "layers-1.model"
    path.write_bytes(archive(members_of(manifest, contents, signatures)))
    return verified(path, policy)


def verified(path: Path, policy: Policy | None = None) -> Verification:
    folder = path.with_suffix(".folder")
    folder.mkdir()
    told: list[int] = []
    found = verify_package(path, policy or Policy(), folder, lambda total: told.append)
    if not found.problems and found.manifest is not None:
        assert sum(told) == found.manifest.total_bytes
    return found


def with_file(manifest: Manifest, path: str, content: bytes) -> Manifest:
    """The manifest with another content of a file."""
    files = [entry for entry in manifest.files if entry.path != path] + [file_entry(path, content)]
    return replace(manifest, files=tuple(sorted(files, key=lambda entry: entry.path)))


def said(found: Verification) -> str:
    return "\n".join(map(str, found.problems))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_what_was_packed_is_well(name: str, tmp_path: Path) -> None:
    manifest, contents = lay(MODELS[name], tmp_path / "made")
    found = check(tmp_path, manifest, contents)
    assert said(found) == ""
    assert found.manifest == manifest
    assert found.digest == digest_of(encode(manifest))


Laid = tuple[Manifest, dict[str, bytes]]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"inputs": ()}, "manifest.json: inputs: are not those of the graph"),
        ({"outputs": (TensorSpec(name="z", datatype=Datatype.FP32, shape=()),)}, "outputs: are not those"),
        ({"max_batch_size": 5}, "max_batch_size: are not those"),
        ({"tensors": ()}, "does not list the 16384 bytes at 0 of 1/weights.bin that the graph uses"),
        (
            {
                "runtime": RuntimeNeed(
                    name="onnxruntime", minimum="1.20", opsets=(Opset(domain="", version=5),)
                )
            },
            "runtime.opsets: are not those of the graph",
        ),
    ],
)
def test_claims_that_are_not_true(changed: dict[str, Any], says: str, laid_out: Laid, tmp_path: Path) -> None:
    manifest, contents = laid_out
    assert says in said(check(tmp_path, replace(manifest, **changed), contents))


def test_a_package_that_an_earlier_release_read_as_batches_is_well(tmp_path: Path) -> None:
    """First dimensions without names are none where an operator counts what it finds; that was not known."""
    free = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 3]) for name in "xy"]
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Add", ["x", "most"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", free[:1], free[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    manifest, contents = lay(made, tmp_path / "made")
    assert (manifest.max_batch_size, manifest.inputs[0].shape) == (0, (FREE, 3))
    ports = (
        replace(manifest.inputs[0], shape=(3,)),
        replace(manifest.outputs[0], shape=(3,)),
    )
    earlier = replace(manifest, inputs=ports[:1], outputs=ports[1:], max_batch_size=32)
    assert said(check(tmp_path, earlier, contents)) == ""
    (tmp_path / "half").mkdir()
    half = replace(earlier, outputs=manifest.outputs)
    assert "inputs: are not those" in said(check(tmp_path / "half", half, contents))


def test_two_promises_are_told_with_all_else(laid_out: Laid, tmp_path: Path) -> None:
    manifest, contents = laid_out
    promise = LatencyPromise(rows=1, p99_us=5)
    found = said(check(tmp_path, replace(manifest, promise=promise, max_batch_size=5), contents))
    assert "promise: is 1 row in 5 us in 99 of 100 runs; the golden set promises nothing" in found
    assert "max_batch_size: are not those" in found
    golden = GoldenSet(
        cases=(), tolerances={}, promise=replace(promise, p99_us=1490), tensors_digest=digest_of(b"")
    )
    for path, data in (("golden/set.json", encode_golden(golden)), ("golden/tensors.bin", b"")):
        manifest, contents = with_file(manifest, path, data), {**contents, path: data}
    (tmp_path / "other").mkdir()
    found = said(check(tmp_path / "other", replace(manifest, promise=promise), contents))
    assert "is 1 row in 5 us in 99 of 100 runs; the golden set promises 1 row in 1490 us" in found
    (tmp_path / "one").mkdir()
    assert said(check(tmp_path / "one", replace(manifest, promise=golden.promise), contents)) == ""


def test_tensors_that_are_others(laid_out: Laid, tmp_path: Path) -> None:
    manifest, contents = laid_out
    one, two, three = manifest.tensors
    start, end = three.offset + 64, three.offset + 16_384
    other = replace(
        three,
        offset=start,
        length=end - start,
        shape=(4080,),
        digest=digest_of(contents[three.file][start:end]),
    )
    lie = replace(manifest, tensors=(replace(one, digest="0" * 64), two, other))
    problems = said(check(tmp_path, lie, contents))
    assert "the bytes of 'w0' in 1/weights.bin have another digest" in problems
    assert "lists 16320 bytes at 32832 of 1/weights.bin that the graph does not use" in problems
    assert "w1" not in problems


def test_a_golden_set_that_belongs_to_other_tensors(laid_out: Laid, tmp_path: Path) -> None:
    manifest, contents = laid_out
    document = (
        '{"format": 1, "tensors_bytes": 4, "tensors_digest": "%s", "tolerances": {}, "cases": [{"name": "a", '
        '"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 64], "offset": 0, "length": 256}], '
        '"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 64], "offset": 0, "length": 256}]}]}'
    ).replace('"tensors_bytes": 4', '"tensors_bytes": 256') % digest_of(b"others")
    for path, content in (("golden/set.json", document.encode()), ("golden/tensors.bin", bytes(256))):
        manifest, contents = with_file(manifest, path, content), contents | {path: content}
    assert "golden/set.json: tensors_digest: is not that" in said(check(tmp_path, manifest, contents))


def test_what_the_repository_refuses_is_told(laid_out: Laid, tmp_path: Path) -> None:
    """Configuration and graph are read as they are when they are served."""
    manifest, contents = laid_out
    config = contents["config.pbtxt"] + b"unheard_of: 1\nsequence_batching { }\n"
    found = check(tmp_path, with_file(manifest, "config.pbtxt", config), contents | {"config.pbtxt": config})
    assert "unheard_of" in said(found)
    assert "sequence_batching" in said(found)


@pytest.mark.parametrize(
    "config",
    [
        b'parameters { key: "run_timeout_ms" value { string_value: "' + b"7" * 5_000 + b'" } }',
        b"dynamic_batching { preferred_batch_size: [ " + b"1, " * 64 + b"1 ] }",
        b'parameters { key: "k" value { string_value: "' + b"v" * 900_000 + b'" } }',
    ],
)
def test_what_no_box_would_serve_is_refused_by_all_who_read_a_package(
    laid_out: Laid, tmp_path: Path, config: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, contents = laid_out
    contents = {**contents, "config.pbtxt": contents["config.pbtxt"] + config}
    found = check(tmp_path, with_file(manifest, "config.pbtxt", contents["config.pbtxt"]), contents)
    assert "layers/config.pbtxt" in said(found)
    installing = ["model", "install", str(tmp_path / "layers-1.model"), "--allow-unsigned"]
    assert main([*installing, "--state-dir", str(tmp_path / "state")]) == Exit.REFUSED
    assert "layers/config.pbtxt" in capsys.readouterr().err
    for file, content in contents.items():
        (tmp_path / "unpacked" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "unpacked" / file).write_bytes(content)
    packing = ["model", "pack", str(tmp_path / "unpacked"), "--no-proof", "-o", str(tmp_path / "again.model")]
    assert main(packing) != Exit.OK
    assert "config.pbtxt" in capsys.readouterr().err
    assert not (tmp_path / "again.model").exists()


def test_a_graph_that_reaches_outside_is_told(laid_out: Laid, tmp_path: Path) -> None:
    manifest, contents = laid_out
    graph = onnx.ModelProto.FromString(contents["1/graph.onnx"])
    for tensor, place in zip(
        graph.graph.initializer, ("../../secret", "/etc/passwd", "other.bin"), strict=True
    ):
        tensor.external_data[0].value = place
    wire = graph.SerializeToString()
    found = check(tmp_path, with_file(manifest, "1/graph.onnx", wire), contents | {"1/graph.onnx": wire})
    for place in ("../../secret", "/etc/passwd", "other.bin"):
        assert place in said(found)


def test_a_graph_with_operators_of_others_is_told(laid_out: Laid, tmp_path: Path) -> None:
    manifest, contents = laid_out
    graph = onnx.ModelProto.FromString(contents["1/graph.onnx"])
    graph.graph.node[0].domain = "evil.example"
    wire = graph.SerializeToString()
    found = check(tmp_path, with_file(manifest, "1/graph.onnx", wire), contents | {"1/graph.onnx": wire})
    assert "evil.example" in said(found)


def test_files_that_are_no_model(tmp_path: Path, laid_out: Laid) -> None:
    manifest, _ = laid_out
    contents = {"1/notes.txt": b"hello"}
    lie = replace(manifest, tensors=(), files=(file_entry("1/notes.txt", b"hello"),))
    assert "model.onnx" in said(check(tmp_path, lie, contents))


def test_damage_in_several_places_is_told_at_once(laid_out: Laid, tmp_path: Path) -> None:
    """Weights, configuration, length, signature."""
    manifest, contents = laid_out
    data = bytearray(archive(members_of(manifest, contents, b"{}")))
    for content in (contents["1/weights.bin"], contents["config.pbtxt"]):
        data[bytes(data).index(content) + 5] ^= 1
    path = tmp_path / "layers-1.model"
    path.write_bytes(bytes(data) + b"more")
    problems = said(verified(path))
    for says in (
        "1/weights.bin: is damaged",
        "config.pbtxt: is damaged",
        "demands",
        "signature.json",
        "goes on after",
    ):
        assert says in problems


def test_damaged_weights_do_not_hide_what_is_wrong_with_the_model(laid_out: Laid, tmp_path: Path) -> None:
    manifest, contents = laid_out
    data = bytearray(archive(members_of(replace(manifest, max_batch_size=3), contents)))
    data[bytes(data).index(contents["1/weights.bin"]) + 20_000] ^= 1
    path = tmp_path / "layers-1.model"
    path.write_bytes(bytes(data))
    problems = said(verified(path))
    assert "1/weights.bin: is damaged" in problems
    assert "max_batch_size" in problems


@pytest.mark.parametrize("more", [[], ["1/weights.bin"]])
def test_nothing_is_said_of_a_model_whose_files_are_damaged(
    more: list[str], laid_out: Laid, tmp_path: Path
) -> None:
    manifest, contents = laid_out
    data = bytearray(archive(members_of(replace(manifest, max_batch_size=3), contents)))
    for name in ("config.pbtxt", *more):
        data[bytes(data).index(contents[name]) + 5] ^= 1
    path = tmp_path / "layers-1.model"
    path.write_bytes(bytes(data))
    damaged = verified(path).problems
    assert [problem.text.partition(" between")[0] for problem in damaged] == ["is damaged"] * (1 + len(more))


@pytest.mark.parametrize("cut", [10, 700, 20_000, 50_000, -1])
def test_a_file_that_is_cut_off(cut: int, laid_out: Laid, tmp_path: Path) -> None:
    manifest, contents = laid_out
    path = tmp_path / "layers-1.model"
    path.write_bytes(archive(members_of(manifest, contents))[:cut])
    assert verified(path).problems


def test_no_package_at_all(tmp_path: Path) -> None:
    path = tmp_path / "junk.model"
    path.write_bytes(b"junk")
    assert "does not begin with manifest.json" in said(verified(path))
    with pytest.raises(OSError, match="No such file"):
        verify_package(tmp_path / "absent", Policy(), tmp_path, lambda total: lambda count: None)
    with pytest.raises(OSError):  # noqa: PT011 - which one it is depends on the system
        verify_package(tmp_path, Policy(), tmp_path, lambda total: lambda count: None)


def test_signatures_are_judged_where_keys_are_given(laid_out: Laid, tmp_path: Path) -> None:
    manifest, contents = laid_out
    (tmp_path / "key.pem").write_bytes(make_key("ecdsa")[0])
    signer = open_signer(str(tmp_path / "key.pem"), str)
    stranger = make_key("ed25519")[1]
    signatures = sign(encode(manifest), [signer])
    key = public_key_of(signer)

    def judged(name: str, signed: bytes | None, **policy: Any) -> str:
        (tmp_path / name).mkdir()
        return said(check(tmp_path / name, manifest, contents, Policy(**policy), signed))

    assert judged("a", signatures, keys=[key], unsigned=Unsigned.REFUSE) == ""
    assert judged("b", signatures) == ""
    assert "no trusted key" in judged("c", signatures, keys=[stranger], unsigned=Unsigned.REFUSE)
    assert "is not signed" in judged("d", None, keys=[key], unsigned=Unsigned.REFUSE)
    assert judged("e", None, keys=[key], unsigned=Unsigned.ALLOW) == ""


def test_paths_that_share_a_content_are_all_there(tmp_path: Path, laid_out: Laid) -> None:
    manifest, contents = laid_out
    for path in ("a.txt", "b.txt"):
        manifest, contents = with_file(manifest, path, b"same"), contents | {path: b"same"}
    assert said(check(tmp_path, manifest, contents)) == ""


def test_a_package_of_the_writer_is_that_of_these_tests(laid_out: Laid) -> None:
    manifest, contents = laid_out
    out = io.BytesIO()
    write_package(out, manifest, None, lambda entry: io.BytesIO(contents[entry.path]))
    assert out.getvalue() == archive(members_of(manifest, contents))


@st.composite
def changes(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Bytes taken out, put in or changed at one place."""
    place, taken, put = draw(st.floats(0, 1)), draw(st.integers(0, 8)), draw(st.binary(max_size=8))

    def change(content: bytes) -> bytes:
        at = int(place * len(content))
        return content[:at] + put + content[at + taken :]

    return change


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Laid:
    return lay(MODELS["subgraphs"], tmp_path_factory.mktemp("fuzz") / "made")


@settings(max_examples=150, deadline=None)
@given(change=changes(), data=st.data())
def test_no_content_that_its_digest_fits_raises_anything(
    change: Callable[[bytes], bytes], data: st.DataObject, made: Laid
) -> None:
    """Whoever makes a package can seal anything: a graph, a configuration, a golden set."""
    manifest, contents = made
    contents = contents | {"golden/set.json": b'{"format": 1, "cases": []}', "golden/tensors.bin": b""}
    path = data.draw(st.sampled_from(sorted(contents)))
    changed = contents | {path: change(contents[path])}
    for name, content in changed.items():
        manifest = with_file(manifest, name, content)
    if path.endswith("weights.bin"):
        manifest = replace(manifest, tensors=())
    with TemporaryDirectory() as folder:
        found = check(Path(folder), manifest, changed)
    assert found.manifest == manifest
