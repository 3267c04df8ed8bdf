"""Packing: the same answers, the same bytes, weights in order, and what cannot be packed refused with all reasons."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from appliance.config.repository import RepositoryConfig
from appliance.domain.digest import digest_of
from appliance.domain.errors import ArtefactError, ModelInvalid, PackageInvalid
from appliance.domain.golden import GoldenCase, GoldenSet, GoldenTensor, read_golden, write_golden
from appliance.domain.manifest import LatencyPromise, Manifest
from appliance.domain.tensor import Datatype
from appliance.package.container import write_package
from appliance.package.reader import PackageReader
from appliance.repository.onnx.firewall import GraphLimits
from appliance.tools.evaluation.jobs import Equivalence, EquivalenceJob
from appliance.tools.evaluation.process import check_equivalence
from appliance.tools.packaging.config_text import packed_config
from appliance.tools.packaging.packing import Labels, lay_out, open_from, promised_before
from appliance.tools.packaging.skeleton import SELF, read_skeleton
from appliance.tools.packaging.source import find_source, plain_name
from appliance.tools.packaging.weights import PAGE_BYTES
from models.generate import MODELS as SAMPLES
from models.generate import Expectation, write_model
from tests.package.onnx_models import MODELS, layers, model, save_outside, tensor, values
from tests.repository.scanning import scan


def ignored(count: int) -> None:
    pass


def lay(path: Path, root: Path, **labels: object) -> Manifest:
    source = find_source(path, None)
    said = Labels(**{"name": source.name, "version": source.version} | labels)  # type: ignore[arg-type]
    return lay_out(source, said, root, ignored)


def saved(name: str, folder: Path, *, outside: bool = False) -> Path:
    path = folder / f"{name}.onnx"
    if outside:
        save_outside(MODELS[name], str(path))
    else:
        onnx.save(MODELS[name], path)
    return path


def packed_bytes(path: Path, root: Path) -> bytes:
    manifest = lay(path, root)
    out = io.BytesIO()
    write_package(out, manifest, None, open_from(root, manifest))
    return out.getvalue()


def compared(source: Path, packed: Path) -> Equivalence:
    return check_equivalence(EquivalenceJob(source=str(source), packed=str(packed)))


@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
@pytest.mark.parametrize("name", sorted(set(MODELS) - {"sparse"}))
def test_the_packed_form_answers_alike(name: str, outside: bool, tmp_path: Path) -> None:
    path = saved(name, tmp_path, outside=outside)
    manifest = lay(path, tmp_path / "out")
    graph = tmp_path / "out" / manifest.name / "1" / "graph.onnx"
    assert compared(path, graph).rounds == 3
    check_tensors(manifest, tmp_path / "out")


def check_tensors(manifest: Manifest, root: Path) -> None:
    """Each tensor is where the manifest says, and the graph file is small."""
    for entry in manifest.tensors:
        data = (root / manifest.name / entry.file).read_bytes()
        assert digest_of(data[entry.offset : entry.offset + entry.length]) == entry.digest
        assert len(data) % PAGE_BYTES == 0
    entry_of_graph = manifest.file("1/graph.onnx")
    assert entry_of_graph is not None
    inline = {"subgraphs": 17_000, "sparse": 5_000}.get(manifest.name, 0)
    assert entry_of_graph.size < 2_000 + inline


def test_a_sparse_initialiser_stays_in_the_graph(tmp_path: Path) -> None:
    manifest = lay(saved("sparse", tmp_path), tmp_path / "out")
    assert [entry.name for entry in manifest.tensors] == ["w"]
    check_tensors(manifest, tmp_path / "out")


def test_what_is_promised_stands_in_the_golden_set(tmp_path: Path) -> None:
    """Where a box reads it: beside the cases of the source, or in a set of its own."""
    promise = LatencyPromise(rows=1, p99_us=5)
    path = saved("layers", tmp_path)
    alone = lay(path, tmp_path / "alone", promise=promise)
    assert alone.promise == promise
    found = read_golden(str(tmp_path / "alone" / "layers" / "1" / "golden" / "set.json"))
    assert (found.cases, found.promise) == ((), promise)

    case = GoldenCase(name="a", inputs=values_of("x"), outputs=values_of("y"))
    before = GoldenSet(cases=(case,), tolerances={}, promise=LatencyPromise(rows=2, p99_us=1490), note="n")
    written = write_golden(str(tmp_path / "golden"), before, bytes(512))
    assert promised_before(find_source(path, None)) == before.promise
    both = lay(path, tmp_path / "both", promise=promise)
    assert both.promise == promise
    assert read_golden(str(tmp_path / "both" / "layers" / "golden" / "set.json")) == replace(
        written, promise=promise
    )
    kept = lay(path, tmp_path / "kept")
    assert kept.promise == before.promise
    said = (tmp_path / "golden" / "set.json").read_bytes()
    assert (tmp_path / "kept" / "layers" / "golden" / "set.json").read_bytes() == said


def test_the_caps_are_those_it_is_told(tmp_path: Path) -> None:
    """Also where the packed graph is read again for the manifest, whose own bound is told then."""
    made = model([helper.make_node("Identity", ["x"], [f"y{index}"]) for index in range(4_100)], [])
    ports = (helper.make_tensor_value_info(f"y{index}", TensorProto.FLOAT, [1, 64]) for index in range(4_100))
    del made.graph.output[:]
    made.graph.output.extend(ports)
    onnx.save(made, tmp_path / "wide.onnx")
    source = find_source(tmp_path / "wide.onnx", None)
    labels = Labels(name="wide", version=1)
    with pytest.raises(ModelInvalid, match="more than 4096 outputs"):
        lay_out(source, labels, tmp_path / "out", ignored)
    raised = RepositoryConfig(firewall=GraphLimits(max_ports=5_000))
    with pytest.raises(PackageInvalid, match="outputs: has 4100 entries; the limit is 1024"):
        lay_out(source, labels, tmp_path / "raised", ignored, raised)


def values_of(name: str) -> tuple[GoldenTensor, ...]:
    """A row of zeros."""
    offset = {"x": 0, "y": 256}[name]
    return (GoldenTensor(name=name, datatype=Datatype.FP32, shape=(1, 64), offset=offset, length=256),)


@pytest.mark.parametrize(
    ("promise", "text"),
    [
        (LatencyPromise(rows=0, p99_us=5), "promise.rows: must be 1 to"),
        (LatencyPromise(rows=1, p99_us=0), "promise.p99_us: must be 1 to"),
        (LatencyPromise(rows=1 << 19, p99_us=5), "the promise is for 524288 rows"),
    ],
)
def test_what_cannot_be_held_to_is_not_promised(promise: LatencyPromise, text: str, tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid) as caught:
        lay(saved("layers", tmp_path), tmp_path / "out", promise=promise)
    assert text in "; ".join(map(str, caught.value.problems))


SERVED = [name for name, sample in SAMPLES.items() if sample.expectation is Expectation.SERVES]


def test_sample_models_can_be_packed(tmp_path: Path) -> None:
    """Each as a model directory, read afterwards as any model directory is."""
    for name in SERVED:
        lay(write_model(name, tmp_path / "models"), tmp_path / "out", name=plain_name(name))
    found = scan(tmp_path / "out", RepositoryConfig())
    before = scan(tmp_path / "models", RepositoryConfig())
    assert not found.problems
    assert [
        (plain_name(each.model.name), each.model.inputs, each.model.outputs, each.model.batching)
        for each in before.servable
    ] == [
        (each.model.name, each.model.inputs, each.model.outputs, each.model.batching)
        for each in found.servable
    ]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_packing_twice_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    """Also from another place and from weights in another file."""
    (tmp_path / "elsewhere").mkdir()
    first = packed_bytes(saved(name, tmp_path), tmp_path / "1")
    assert packed_bytes(saved(name, tmp_path / "elsewhere"), tmp_path / "2") == first
    if name != "sparse":
        outside = tmp_path / "outside"
        outside.mkdir()
        assert packed_bytes(saved(name, outside, outside=True), tmp_path / "3") == first
    assert list(PackageReader(io.BytesIO(first)).blobs())


def test_weights_are_in_the_order_of_use(tmp_path: Path) -> None:
    manifest = lay(saved("layers", tmp_path), tmp_path / "out")
    assert [entry.name for entry in manifest.tensors] == ["w0", "w1", "w2"]
    assert [entry.offset for entry in manifest.tensors] == [0, 16384, 32768]


def test_large_weights_begin_at_a_page_and_small_ones_near(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["c"]),
        helper.make_node("Add", ["c", "d"], ["y"]),
    ]
    tensors = [
        tensor("w", values(300, 300)), tensor("b", values(300, seed=1)), tensor("d", values(300, seed=2)),
    ]  # fmt: skip
    onnx.save(model(nodes, tensors, width=300), tmp_path / "m.onnx")
    manifest = lay(tmp_path / "m.onnx", tmp_path / "out")
    places = {entry.name: (entry.offset, entry.length) for entry in manifest.tensors}
    assert places == {"b": (0, 1200), "w": (4096, 360_000), "d": (364_096, 1200)}


def test_equal_weights_share_their_place(tmp_path: Path) -> None:
    manifest = lay(saved("tied", tmp_path), tmp_path / "out")
    assert [(entry.name, entry.offset) for entry in manifest.tensors] == [("w0", 0), ("w1", 0)]
    weights = manifest.file("1/weights.bin")
    assert weights is not None
    assert weights.size == 16384


def test_one_name_in_two_subgraphs(tmp_path: Path) -> None:
    manifest = lay(saved("subgraphs-equal", tmp_path), tmp_path / "out")
    assert [entry.name for entry in manifest.tensors] == ["w"]
    graph = onnx.load(tmp_path / "out" / manifest.name / "1/graph.onnx", load_external_data=False)
    branches = [attribute.g.initializer[0] for attribute in graph.graph.node[2].attribute]
    assert [branch.data_location for branch in branches] == [TensorProto.EXTERNAL] * 2


def test_a_model_without_weights_has_no_file_of_them(tmp_path: Path) -> None:
    manifest = lay(saved("without-weights", tmp_path), tmp_path / "out")
    assert [entry.path for entry in manifest.files] == ["1/graph.onnx", "config.pbtxt"]


def test_the_skeleton_takes_no_weights_into_memory(tmp_path: Path) -> None:
    path = saved("layers", tmp_path)
    with open(path, "rb") as file:
        skeleton = read_skeleton(file.fileno(), 1024)
    assert len(skeleton) < 1500
    read = onnx.ModelProto.FromString(skeleton)
    whole = path.read_bytes()
    for one, before in zip(read.graph.initializer, layers().graph.initializer, strict=True):
        said = {entry.key: entry.value for entry in one.external_data}
        assert said["location"] == SELF
        start = int(said["offset"])
        assert whole[start : start + int(said["length"])] == before.raw_data


def test_a_directory_of_versions(tmp_path: Path) -> None:
    """The highest one, or the one that is asked for; others are left behind."""
    home = tmp_path / "Sample Model"
    for version in (1, 3):
        (home / str(version)).mkdir(parents=True)
        onnx.save(layers(version), home / str(version) / "model.onnx")
    (home / "config.pbtxt").write_text(
        '# by hand\nname: "Sample Model"  # kept\nversion_policy { specific { versions: [1, 9] } }\n'
        'output [ { name: "y" label_filename: "l.txt" } ]\n'
        'model_warmup [ { name: "w" inputs: { key: "x" value: { data_type: TYPE_FP32 dims: [64]\n'
        '  input_data_file: "x.raw" } } } ]\n'
    )
    (home / "l.txt").write_text("\n".join(map(str, range(64))))
    (home / "warmup").mkdir()
    (home / "warmup" / "x.raw").write_bytes(bytes(256))
    (home / "README.md").write_text("stays behind")
    manifest = lay(home, tmp_path / "out")
    assert (manifest.name, manifest.version, len(manifest.tensors)) == ("sample-model", 3, 3)
    assert [entry.path for entry in manifest.files] == [
        "3/graph.onnx", "3/weights.bin", "config.pbtxt", "l.txt", "warmup/x.raw",
    ]  # fmt: skip
    text = (tmp_path / "out/sample-model/config.pbtxt").read_text()
    assert text.startswith('default_model_filename: "graph.onnx"\n# by hand\nname: "sample-model"  # kept\n')
    assert find_source(home, 1).version == 1
    assert find_source(home / "1", None).version == 1
    assert find_source(home / "1" / "model.onnx", None).version == 1
    with pytest.raises(ModelInvalid, match="has no version 2; it has 1, 3"):
        find_source(home, 2)


def test_a_version_may_be_given_another_number(tmp_path: Path) -> None:
    home = tmp_path / "m"
    (home / "1" / "golden").mkdir(parents=True)
    onnx.save(layers(), home / "1" / "model.onnx")
    (home / "1" / "notes.txt").write_text("hello")
    source = find_source(home, None, ["1/notes.txt"])
    manifest = lay_out(source, Labels(name="m", version=7), tmp_path / "out", ignored)
    assert [entry.path for entry in manifest.files] == [
        "7/graph.onnx", "7/notes.txt", "7/weights.bin", "config.pbtxt",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (None, 'default_model_filename: "g"\nname: "m"\n'),
        (b'name: "x"', 'default_model_filename: "g"\nname: "m"'),
        (b"name : 'x', max_batch_size: 3", 'default_model_filename: "g"\nname: "m", max_batch_size: 3'),
        (b'name: "a" # b\n  "c" # d', 'default_model_filename: "g"\nname: "m" # d'),
        (
            b'\xef\xbb\xbfdefault_model_filename:"a\\"b" # c\nname:"x";',
            'default_model_filename: "g" # c\nname: "m";',
        ),
    ],
)
def test_the_configuration_keeps_its_text(source: bytes | None, wanted: str) -> None:
    assert packed_config(source, "m", "g").decode() == wanted


def test_that_clients_change_along_is_said_in_the_configuration_which_may_not_deny_it(tmp_path: Path) -> None:
    said = packed_config(b'name: "m"', "m", "g", interface_change=True).decode()
    assert said.startswith('parameters { key: "allow_interface_change" value { string_value: "true" } }\n')
    assert packed_config(said.encode(), "m", "g", interface_change=True).count(b"parameters") == 1
    home = tmp_path / "m"
    (home / "1").mkdir(parents=True)
    onnx.save(layers(), home / "1" / "model.onnx")
    denied = packed_config(None, "m", "model.onnx", interface_change=True).decode().replace("true", "false")
    (home / "config.pbtxt").write_text(denied)
    with pytest.raises(PackageInvalid, match="must say allow_interface_change 'true', or nothing of it"):
        lay_out(
            find_source(home, None),
            Labels(name="m", version=1, interface_change=True),
            tmp_path / "out",
            lambda count: None,
        )


def test_names_that_cannot_be_packed_are_told_at_once(tmp_path: Path) -> None:
    home = tmp_path / "m"
    (home / "1").mkdir(parents=True)
    onnx.save(layers(), home / "1" / "model.onnx")
    for name in ("Labels.TXT", "READ ME"):
        (home / name).write_text("a")
    source = find_source(home, None, ["Labels.TXT", "READ ME"])
    with pytest.raises(ModelInvalid) as caught:
        lay_out(source, Labels(name="Bad Name", version=1), tmp_path / "out", ignored)
    assert [problem.file for problem in caught.value.problems] == ["Labels.TXT", "READ ME", "--name"]


def broken_models() -> Iterator[tuple[str, onnx.ModelProto]]:
    training = layers()
    training.training_info.add()
    yield "training graphs", training
    short = layers()
    short.graph.initializer[0].raw_data = short.graph.initializer[0].raw_data[:-1]
    yield "its shape needs", short
    twice = layers()
    twice.graph.initializer.append(twice.graph.initializer[0])
    yield "two initialisers one name", twice
    strange = layers()
    strange.graph.initializer[0].data_type = 99
    yield "unknown type 99", strange
    for says, location in (
        ("which is missing", "nowhere.bin"),
        ("not a path inside", "../x"),
        ("not a path", "/etc/passwd"),
    ):
        far = layers()
        one = far.graph.initializer[0]
        one.ClearField("raw_data")
        one.data_location = TensorProto.EXTERNAL
        one.external_data.add(key="location", value=location)
        yield says, far
    negative = layers()
    negative.graph.initializer[0].dims[0] = -1
    yield "negative dimension", negative


@pytest.mark.parametrize(("says", "made"), list(broken_models()))
def test_models_that_cannot_be_packed(says: str, made: onnx.ModelProto, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(ModelInvalid, match=says):
        lay(tmp_path / "m.onnx", tmp_path / "out")


@pytest.mark.parametrize(
    "content", [b"", b"hello", bytes(100), b"\x3a\xff\xff\xff\xff\xff\x0f", b"\x3a\x02\x2a\x7f"]
)
def test_files_that_are_no_models(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises((ModelInvalid, ArtefactError)):
        lay(tmp_path / "m.onnx", tmp_path / "out")


def test_answers_that_differ_are_noticed(tmp_path: Path) -> None:
    onnx.save(layers(2), tmp_path / "a.onnx")
    onnx.save(layers(3), tmp_path / "b.onnx")
    with pytest.raises(ModelInvalid, match="other bytes"):
        compared(tmp_path / "a.onnx", tmp_path / "b.onnx")
    (tmp_path / "c.onnx").write_bytes(b"junk")
    with pytest.raises(ModelInvalid, match=r"is not loaded.*please report this"):
        compared(tmp_path / "a.onnx", tmp_path / "c.onnx")
    assert "does not load the source" in compared(tmp_path / "c.onnx", tmp_path / "a.onnx").unproven


def test_a_source_that_answers_no_random_request_says_why(tmp_path: Path) -> None:
    """As one whose free dimensions have to be of one size that it does not tell."""
    path = tmp_path / "seven.onnx"
    onnx.save(model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor("w", values(7))], width=-1), path)
    assert re.match(r"the source answers no random request: .*\bAdd\b", compared(path, path).unproven)


@pytest.mark.parametrize(
    ("operator", "domain", "says"),
    [
        (
            "Gelu",
            "",
            r"operator 'Gelu' of the domain 'ai\.onnx' is not known .* in its operator set 17; export",
        ),
        ("Gone", "com.microsoft", r"operator 'Gone' of the domain 'com\.microsoft' is not known .*; export"),
        ("MatMul", "", "has input size 1"),
    ],
)
def test_a_model_that_the_runtime_does_not_load_is_not_taken_for_a_fault_of_packing(
    operator: str, domain: str, says: str, tmp_path: Path
) -> None:
    made = model([helper.make_node(operator, ["x"], ["y"], domain=domain)], [], opset=17)
    if domain:
        made.opset_import.append(helper.make_opsetid(domain, 1))
    onnx.save(made, tmp_path / "m.onnx")
    manifest = lay(tmp_path / "m.onnx", tmp_path / "out")
    with pytest.raises(ModelInvalid, match=says) as caught:
        compared(tmp_path / "m.onnx", tmp_path / "out" / manifest.name / "1" / "graph.onnx")
    assert "report" not in str(caught.value)
    assert "graph.onnx" not in str(caught.value)


@pytest.mark.parametrize("interface_change", [False, True])
@pytest.mark.parametrize("later", ["", '\nname: "m"'])
@pytest.mark.parametrize(
    "before",
    [
        "",
        "version_policy {\n  specific { versions: 1 }\n}\n",
        'default_model_filename:\n  "model.onnx", ',
        "parameters { key: 'k' value { string_value: '' } }\n",
    ],
)
def test_problems_are_told_at_their_place_in_the_persons_file(
    before: str, later: str, interface_change: bool, tmp_path: Path
) -> None:
    home = tmp_path / "m"
    (home / "1").mkdir(parents=True)
    onnx.save(layers(), home / "1" / "model.onnx")
    lines = f'{before}output {{ data_type: TYPE_INT8 name: "y" dims: [ -1, 64 ] }}{later}'.split("\n")
    (home / "config.pbtxt").write_text("\n".join(lines))
    with pytest.raises(ModelInvalid) as caught:
        lay(home, tmp_path / "out", name="other", interface_change=interface_change)
    line = next(number for number, text in enumerate(lines) if "data_type" in text)
    (problem,) = caught.value.problems
    assert problem.file == f"{home}/config.pbtxt:{line + 1}:{lines[line].index('data_type') + 1}"


@pytest.mark.parametrize("name", ["layers", "subgraphs", "typed", "constants", "sparse"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_no_file_raises_anything_else(name: str, data: st.DataObject) -> None:
    """Models come from anywhere: bytes are changed where the graph is, not in the weights."""
    content = bytearray(MODELS[name].SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        near = data.draw(st.sampled_from((0, len(content) - 400)))
        at = min(near + data.draw(st.integers(0, 400)), len(content) - 1)
        content[at] = data.draw(st.integers(0, 255))
    with TemporaryDirectory() as folder:
        (Path(folder) / "m.onnx").write_bytes(bytes(content))
        with suppress(ModelInvalid, ArtefactError, PackageInvalid):
            lay(Path(folder) / "m.onnx", Path(folder) / "out")
