"""Of what is wrong with a model so much is kept as a person reads, however much there is."""

from __future__ import annotations

from pathlib import Path

from onnx import FunctionProto, TensorProto

from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import Problem
from appliance.repository.directory import REASON_CHARACTERS_MAX
from appliance.repository.findings import (
    NAMES_MAX,
    PROBLEMS_MAX,
    TEXT_CHARACTERS_MAX,
    Findings,
    Place,
    shown_names,
)
from appliance.repository.onnx.graph import OPSETS_IN_ALL_MAX
from appliance.repository.onnx.summary import FLAWS_MAX
from appliance.repository.warmup_config import WARMUPS_MAX
from tests.repository.conftest import ReadModel
from tests.repository.onnx_files import copying, model_of, plain_model, port, write_version
from tests.repository.outcomes import only_problem
from tests.repository.scanning import scan

PLACE = Place(file="m/config.pbtxt:1:2", key="k")


def test_the_first_problems_are_kept_each_once_and_the_others_counted() -> None:
    findings = Findings([Problem(file="m", key="", text="before")], room=2)
    for text in ("a", "a", "b", "a", "c", "d"):
        findings.problem(PLACE, text)
    assert [problem.text for problem in findings.problems] == [
        "before",
        "a",
        "b",
        "and 2 more problems; only the first are told",
    ]
    assert findings.problems[-1].file == "m/config.pbtxt"


def test_a_problem_is_told_even_where_there_is_no_room_left() -> None:
    findings = Findings(room=-3)
    findings.problem(PLACE, "a")
    assert [problem.text for problem in findings.problems] == ["a"]
    assert findings.full


def test_long_texts_are_cut() -> None:
    findings = Findings()
    findings.problem(Place(file="f" * 10_000, key="k" * 10_000), "t" * 10_000)
    findings.note(PLACE, "t" * 10_000)
    (problem,) = findings.problems
    assert max(len(problem.file), len(problem.key), len(problem.text)) == TEXT_CHARACTERS_MAX
    assert len(findings.notes[0].text) == TEXT_CHARACTERS_MAX


def test_of_many_names_the_first_are_shown() -> None:
    assert shown_names([], 0) == "none"
    assert shown_names(["a", "b"], 2) == "'a', 'b'"
    many = shown_names(("n" * 1_000 for _ in range(100)), 100)
    assert many.count("'n") == NAMES_MAX
    assert many.endswith(", 80 more")
    assert len(many) < TEXT_CHARACTERS_MAX


def test_a_config_of_nothing_but_mistakes_is_told_in_part(read_model: ReadModel) -> None:
    strange = "".join(f'input {{ name: "n{n}" }} ' for n in range(5 * PROBLEMS_MAX))
    notes = "".join(f'parameters {{ key: "{n}" value {{ }} }} ' for n in range(5 * PROBLEMS_MAX))
    found = read_model(strange + notes)
    assert len(found.problems) == len(found.notes) == PROBLEMS_MAX + 1
    assert "and 801 more problems" in found.problems[-1].text  # the graph's own input is missing, too
    assert "and 800 more notes" in found.notes[-1].text


def test_the_problems_of_all_versions_of_a_model_are_told_in_part(tmp_path: Path) -> None:
    ports = [port(f"i{n}", ["b", 4], TensorProto.COMPLEX64) for n in range(60)]
    graph = model_of(ports, [port("y", ["b", 4])], [copying("i0", "y")])
    for number in range(1, 11):
        home = write_version(tmp_path, "m", graph, number)
    (home / "config.pbtxt").write_text("version_policy { all { } }")
    found = scan(tmp_path, RepositoryConfig())
    assert [entry.version for entry in found.broken] == [str(number) for number in range(1, 11)]
    assert all(entry.problems for entry in found.broken)
    assert len(found.problems) < PROBLEMS_MAX + 20
    assert all(len(entry.reason) <= REASON_CHARACTERS_MAX + 3 for entry in found.broken)


def test_names_of_ports_are_bounded_as_all_names_of_a_graph(read_model: ReadModel) -> None:
    name = "n" * 5_000
    graph = model_of([port(name, ["b", 4])], [port("y", ["b", 4])])
    found = read_model('input { name: "other" }', graph=graph)
    assert any(
        "has a name of 5000 bytes; at most 4096 are allowed" in problem.text for problem in found.problems
    )
    assert all(len(problem.text) <= TEXT_CHARACTERS_MAX for problem in found.problems)


def test_more_versions_than_a_model_may_have_cannot_be_asked_for(read_model: ReadModel) -> None:
    numbers = ", ".join(map(str, range(1, 5_000)))
    found = read_model(f"version_policy {{ specific {{ versions: [ {numbers} ] }} }}")
    problem = only_problem(found)
    assert (problem.key, problem.text) == (
        "version_policy.specific.versions",
        "has 4999 values; at most 1000 are read",
    )
    assert len(found.broken) == 1


def test_more_warm_ups_than_anybody_waits_for_are_refused(read_model: ReadModel) -> None:
    warm = 'inputs { key: "x" value { dims: 4 zero_data: true data_type: TYPE_FP32 } }'
    found = read_model("".join(f'model_warmup {{ name: "{n}" {warm} }}' for n in range(WARMUPS_MAX + 1)))
    assert only_problem(found).text == f"has {WARMUPS_MAX + 1} values; at most {WARMUPS_MAX} are read"


def test_functions_that_ask_for_operator_sets_without_end_are_told_in_part(read_model: ReadModel) -> None:
    graph = plain_model()
    function = FunctionProto(name="f", domain="d")
    for domain in range(900):
        function.opset_import.add(domain=f"d{domain}", version=0)
    data = graph.SerializeToString()
    for number in range(2 + OPSETS_IN_ALL_MAX // 900):
        function.name = f"f{number}"
        data += b"\xca\x01" + _varint(function.ByteSize()) + function.SerializeToString()
    problems = read_model(graph=data).problems
    assert len(problems) <= FLAWS_MAX + 1
    assert f"has more than {OPSETS_IN_ALL_MAX} operator sets in all" in problems[0].text
    assert f"the first {FLAWS_MAX} are told" in problems[-1].text


def _varint(number: int) -> bytes:
    low = number & 0x7F
    return bytes([low]) if number < 0x80 else bytes([low | 0x80]) + _varint(number >> 7)
