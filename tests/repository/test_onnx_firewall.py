"""The firewall against graphs that are built to hurt, and that it lets real ones through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from onnx import (
    FunctionProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
)

from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import ArtefactError
from appliance.repository.onnx.firewall import REFUSED_OPERATORS, GraphLimits, graph_flaws, reference_flaws
from models.generate import MODELS
from models.generators.package import Expectation
from tests.repository.onnx_files import (
    copying,
    external_tensor,
    model_of,
    part,
    plain_model,
    port,
    summary,
    write_version,
)
from tests.repository.scanning import scan

CONFIG = GraphLimits()
MODELS_HOME = Path(__file__).parents[2] / "models"


def flaws(model: ModelProto | bytes, config: GraphLimits = CONFIG) -> list[str]:
    """What the firewall says of a graph, files aside."""
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return [str(flaw) for flaw in graph_flaws(summary(data), config)]


def of_node(*nodes: NodeProto) -> ModelProto:
    return model_of([port("x", [1])], [port("y", [1])], [*nodes, copying("x", "y")])


# --- what is real passes


@pytest.mark.parametrize(
    "sample",
    [
        each
        for each in MODELS.values()
        if each.expectation is Expectation.SERVES and not each.name.startswith("burn_")
    ],
    ids=lambda sample: sample.name,
)
def test_sample_models_pass(sample: object) -> None:
    assert hasattr(sample, "build")
    assert flaws(sample.build().model) == []


@pytest.mark.parametrize("version", [1, 2])
def test_the_digits_pass(version: int) -> None:
    assert flaws((MODELS_HOME / "digits" / str(version) / "model.onnx").read_bytes()) == []


# --- where something is


def test_a_flaw_says_where_it_is() -> None:
    inner = helper.make_graph([_holding(external_tensor("w", "*/_ORT_MEM_ADDR_/*"))], "inner", [], [])
    model = of_node(copying("x", "z"), helper.make_node("If", ["x"], ["z2"], "pick", then_branch=inner))
    (text,) = flaws(model)
    assert text == (
        "tensor 'w' has its data at an address in memory; export the model with the data in a file "
        "(graph > node 1 'pick' (If) > attribute 'then_branch' > node 0 (Constant) > attribute 'value')"
    )


def test_the_way_is_known_even_when_names_come_last() -> None:
    body = external_tensor("w", "").SerializeToString()
    node = part(5, part(5, body) + part(1, b"value")) + part(4, b"Constant") + part(3, b"late")
    data = plain_model().SerializeToString() + part(7, part(1, node))
    assert flaws(data) == [
        "tensor 'w' has external data without a location (graph > node 0 'late' (Constant) > attribute 'value')"
    ]


def test_a_long_way_is_told_by_its_beginning_and_its_end() -> None:
    graph = helper.make_graph([_holding(external_tensor("w", ""))], "innermost", [], [])
    for level in range(20):
        graph = helper.make_graph([helper.make_node("If", [], [], f"level{level}", body=graph)], "g", [], [])
    model = plain_model()
    model.graph.MergeFrom(graph)
    (text,) = flaws(model)
    assert "(graph > node 1 'level19' (If) > " in text
    assert " > ... > " in text
    assert text.endswith("> node 0 (Constant) > attribute 'value')")
    assert text.count(" > ") == 12


def _holding(tensor: TensorProto) -> NodeProto:
    node = NodeProto(op_type="Constant", output=["c"])
    node.attribute.add(name="value").t.CopyFrom(tensor)
    return node


def test_all_flaws_come_at_once() -> None:
    model = of_node(
        helper.make_node("Odd", ["x"], ["z"], domain="evil"),
        helper.make_node("EPContext", ["x"], ["z2"], domain="com.microsoft"),
        _holding(external_tensor("w", "")),
    )
    model.opset_import.add(domain="evil", version=0)
    assert len(flaws(model)) == 4


def test_the_number_of_flaws_is_bounded() -> None:
    model = plain_model()
    model.graph.initializer.extend(external_tensor(f"w{n}", "") for n in range(500))
    assert len(flaws(model)) == 100


# --- tensors


def _outside(**entries: str) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def _both() -> TensorProto:
    tensor = _outside(location="w.bin")
    tensor.raw_data = bytes(4)
    return tensor


def _half() -> TensorProto:
    tensor = _outside(location="w.bin")
    tensor.data_location = TensorProto.DEFAULT
    return tensor


def _strings() -> TensorProto:
    tensor = _outside(location="w.bin")
    tensor.data_type = TensorProto.STRING
    return tensor


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (_outside(), "external data without a location"),
        (_outside(location=""), "external data without a location"),
        (_outside(location="*/_ORT_MEM_ADDR_/*"), "an address in memory"),
        (_outside(location="*/_ORT_NATIVE_ENDIAN_MEM_ADDR_/*"), "an address in memory"),
        (_outside(location="x/_ORT_MEM_ADDR_/y"), "an address in memory"),
        (_outside(location="a", offset="-1"), "offset '-1' is not a whole number"),
        (_outside(location="a", offset="+1"), "offset '+1' is not a whole number"),
        (_outside(location="a", offset=" 1"), "offset ' 1' is not a whole number"),
        (_outside(location="a", offset="0x10"), "offset '0x10' is not a whole number"),
        (_outside(location="a", offset="١"), "offset '١' is not a whole number"),
        (_outside(location="a", offset=""), "offset '' is not a whole number"),
        (_outside(location="a", offset=str(1 << 63)), "is not a whole number below 2^63"),
        (_outside(location="a", length=str((1 << 64) + 4)), "is not a whole number below 2^63"),
        (_outside(location="a", basepath="/etc"), "unknown key 'basepath'"),
        (_outside(location="a", prepacked_0="x|0;4"), "unknown key 'prepacked_0'"),
        (_both(), "data in the file and outside of it"),
        (_half(), "not marked as external"),
        (_strings(), "holds strings, which cannot lie outside"),
        (TensorProto(name="w", data_type=1, dims=[-1]), "the negative dimension -1"),
        (TensorProto(name="w", data_type=1, dims=[1 << 32, 1 << 31]), "more elements than can be addressed"),
        (TensorProto(name="w", data_type=1, dims=[0, 1 << 62, 4]), "more elements than can be addressed"),
        (TensorProto(name="w", data_type=1, dims=[1] * 33), "more than 32 dimensions"),
        (TensorProto(name="w", data_type=1, dims=[3], raw_data=bytes(8)), "has 8 bytes of data"),
        (TensorProto(name="w" * 5000, data_type=1, dims=[0]), "has a name of 5000 bytes"),
    ],
)  # fmt: skip
def test_tensors_that_are_refused(tensor: TensorProto, text: str) -> None:
    model = plain_model()
    model.graph.initializer.append(tensor)
    (found,) = flaws(model)
    assert text in found
    assert found.endswith("(graph > initializer 0)")


def test_a_tensor_without_end_of_entries_is_refused() -> None:
    tensor = _outside(location="a")
    for number in range(100):
        tensor.external_data.add(key="checksum", value=str(number))
    model = plain_model()
    model.graph.initializer.append(tensor)
    assert any("more than 64 entries" in each for each in flaws(model))


# --- files


def _references(tensor: TensorProto, sizes: dict[str, int]) -> list[str]:
    """What is wrong with a reference when there are files of these names and sizes, and no others."""

    def size_of(location: str) -> int:
        if location not in sizes:
            raise ArtefactError("is not listed")
        return sizes[location]

    model = plain_model()
    model.graph.initializer.append(tensor)
    found = summary(model.SerializeToString())
    assert graph_flaws(found, CONFIG) == ()
    return [flaw.text for flaw in reference_flaws(found, size_of)]


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("/etc/passwd", "not a path inside"),
        ("../3/weights.bin", "not a path inside"),
        ("a/../weights.bin", "not a path inside"),
        ("./weights.bin", "is not listed"),
        ("weights.bin/", "is not listed"),
        ("Weights.bin", "is not listed"),
        ("weights.bin\0.txt", "not a path inside"),
        ("graph.onnx", ""),
        ("weights.bin", ""),
    ],
)
def test_only_listed_names_are_files(location: str, text: str) -> None:
    found = _references(_outside(location=location), {"weights.bin": 4, "graph.onnx": 4})
    assert bool(found) == bool(text)
    assert text in "; ".join(found)


@pytest.mark.parametrize(
    ("offset", "length", "size", "inside"),
    [
        (0, 4, 4, True),
        (0, None, 4, True),
        (0, None, 3, False),
        (1, 4, 4, False),
        (4, 0, 4, False),  # the tensor needs four bytes
        ((1 << 31) - 1, 4, (1 << 31) + 3, True),
        ((1 << 31) - 1, 4, (1 << 31) + 2, False),
        ((1 << 32) - 4, 4, 1 << 32, True),
        ((1 << 32) - 4, 4, (1 << 32) - 1, False),
        ((1 << 63) - 1, 4, 1 << 32, False),
        ((1 << 63) - 4, None, 100, False),
        (0, (1 << 63) - 1, 100, False),
        (0, 8, 100, False),
    ],
)
def test_pieces_lie_inside_their_file(offset: int, length: int | None, size: int, inside: bool) -> None:
    more = {} if length is None else {"length": str(length)}
    found = _references(_outside(location="weights.bin", offset=str(offset), **more), {"weights.bin": size})
    assert (found == []) == inside


def test_four_bit_elements_count_by_halves() -> None:
    tensor = _outside(location="weights.bin", length="2")
    tensor.data_type, tensor.dims[:] = TensorProto.INT4, [3]
    assert _references(tensor, {"weights.bin": 2}) == []
    assert _references(tensor, {"weights.bin": 1}) != []


# --- operators


@pytest.mark.parametrize("operator", sorted(REFUSED_OPERATORS))
def test_doors_to_other_code_are_refused(operator: tuple[str, str]) -> None:
    domain, name = operator
    model = of_node(helper.make_node(name, ["x"], ["z"], domain=domain))
    (text,) = flaws(model, GraphLimits(domains=("", domain)))
    assert f"operator '{domain}:{name}'" in text
    assert "never served" in text
    assert "node 0" in text


@pytest.mark.parametrize(
    ("domain", "allowed"),
    [
        ("", True),
        ("ai.onnx", True),
        ("ai.onnx.ml", True),
        ("com.microsoft", True),
        ("com.microsoft.nchwc", True),
        ("ai.onnx.contrib", False),
        ("ai.onnx.preview.training", False),
        ("org.pytorch.aten", False),
        ("com.microsoft ", False),
        ("AI.ONNX", False),
    ],
)
def test_domains(domain: str, allowed: bool) -> None:
    found = flaws(of_node(helper.make_node("Op", ["x"], ["z"], domain=domain)))
    assert ("which is not allowed" in "".join(found)) != allowed
    assert flaws(of_node(helper.make_node("Op", ["x"], ["z"], domain=domain)), _allowing(domain)) == []


def _allowing(domain: str) -> GraphLimits:
    return GraphLimits(domains=("", domain))


def test_the_standard_domain_may_be_written_out_in_the_setting() -> None:
    assert flaws(plain_model(), GraphLimits(domains=("ai.onnx",))) == []


def _function(name: str, *calls: str, times: int = 1) -> FunctionProto:
    nodes = [NodeProto(op_type=call, domain="own") for call in calls for _ in range(times)]
    return FunctionProto(name=name, domain="own", node=nodes)


def _with_functions(*functions: FunctionProto, call: str = "f0") -> ModelProto:
    model = of_node(helper.make_node(call, ["x"], ["z"], domain="own"))
    model.functions.extend(functions)
    return model


def test_functions_that_the_model_brings_along_need_no_permission() -> None:
    assert flaws(_with_functions(_function("f0", "f1"), _function("f1"))) == []
    (text,) = flaws(_with_functions(_function("f0", "f2"), _function("f1")))
    assert "operator 'f2' is of the domain 'own'" in text
    assert "function 'own:f0' > node 0" in text


@pytest.mark.parametrize("calls", [["f0"], ["f1", "f0"], ["f1", "f2", "f3", "f1"]])
def test_functions_that_call_themselves_are_refused(calls: list[str]) -> None:
    functions = [_function(f"f{number}", call) for number, call in enumerate(calls)]
    (text,) = flaws(_with_functions(*functions))
    assert "calls itself" in text


def test_a_function_in_a_subgraph_of_itself_is_found() -> None:
    inner = helper.make_graph([NodeProto(op_type="f0", domain="own")], "inner", [], [])
    node = helper.make_node("If", ["x"], ["y"], then_branch=inner)
    (text,) = flaws(_with_functions(FunctionProto(name="f0", domain="own", node=[node])))
    assert "calls itself" in text


def test_functions_that_expand_without_end_are_refused() -> None:
    """Ten calls in each of twelve functions: a file of some kilobytes, 10^12 nodes in a runtime that expands them."""
    functions = [_function(f"f{level}", f"f{level + 1}", times=10) for level in range(12)]
    (text,) = flaws(_with_functions(*functions, _function("f12", "f13"), _function("f13")))
    assert "more than 500000 nodes with its functions expanded" in text


def test_a_long_chain_of_functions_is_counted_without_recursion() -> None:
    functions = [_function(f"f{level}", f"f{level + 1}") for level in range(1500)]
    assert flaws(_with_functions(*functions, _function("f1500"))) == []


def test_a_function_that_is_there_twice_is_refused() -> None:
    assert any("is there twice" in each for each in flaws(_with_functions(_function("f0"), _function("f0"))))
    again = _function("f0")
    again.overload = "other"
    assert flaws(_with_functions(_function("f0"), again)) == []


# --- operator sets


@pytest.mark.parametrize("versions", [[("", 17), ("ai.onnx", 18)], [("own", 1), ("own", 2)]])
def test_two_versions_of_one_operator_set_are_refused(versions: list[tuple[str, int]]) -> None:
    model = plain_model()
    del model.opset_import[:]
    for domain, version in versions:
        model.opset_import.add(domain=domain, version=version)
    assert any("asks for two operator sets" in each for each in flaws(model))


@pytest.mark.parametrize("version", [0, -1, 101, (1 << 63) - 1])
def test_operator_sets_have_sensible_versions(version: int) -> None:
    for change in (_opset_of_model, _opset_of_function):
        model = plain_model()
        change(model, version)
        assert any(f"asks for operator set {version} of 'd'" in each for each in flaws(model))


def _opset_of_model(model: ModelProto, version: int) -> None:
    model.opset_import.add(domain="d", version=version)


def _opset_of_function(model: ModelProto, version: int) -> None:
    model.functions.add(name="f", domain="d").opset_import.add(domain="d", version=version)


# --- in a model directory


def _evil(model: ModelProto) -> None:
    model.graph.node.add(op_type="Odd", domain="evil", input=["x"], output=["z"])


def _engine(model: ModelProto) -> None:
    node = model.graph.node.add(op_type="EPContext", domain="com.microsoft", output=["z"])
    node.attribute.append(helper.make_attribute("ep_cache_context", "/etc/passwd"))


@pytest.mark.parametrize("change", [_evil, _engine])
def test_a_model_directory_with_such_a_graph_is_not_served(
    tmp_path: Path, change: Callable[[ModelProto], None]
) -> None:
    model = plain_model()
    change(model)
    write_version(tmp_path, "m", model)
    found = scan(tmp_path, RepositoryConfig())
    assert found.servable == ()
    (problem,) = found.problems
    assert problem.file == "m/1/model.onnx"
    assert "(graph > node 1 (" in problem.text


def test_an_operator_may_be_allowed_by_the_configuration(tmp_path: Path) -> None:
    model = plain_model()
    _evil(model)
    write_version(tmp_path, "m", model)
    allowing = RepositoryConfig(firewall=GraphLimits(domains=("", "evil")))
    assert len(scan(tmp_path, allowing).servable) == 1
