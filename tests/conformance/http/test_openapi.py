"""The OpenAPI document says what is answered: no path is missing, and each answers with a status and a body as said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from appliance.frontend.http.openapi import OPERATIONS, unversioned
from tests.appliance_process import ApplianceProcess
from tests.conformance.http.exchange import Reply, call
from tests.frontend.http.documented import table_rows

NAMES: Final = {"model": "add_sub", "version": "1", "region": "x"}
HEADINGS: Final = (
    "### Inference",
    "### The server and its models",
    "### Extensions",
    "### Figures and pages",
)
PATH: Final = "/v2/openapi.json"
TENSOR: Final = {"datatype": "INT32", "shape": [1, 16], "data": [1] * 16}
BODIES: Final[Mapping[str, Any]] = {
    "infer": {"inputs": [{"name": name, **TENSOR} for name in ("INPUT0", "INPUT1")]}
}
WRONG: Final[Mapping[str, Any]] = {"infer": {}, "index": {"ready": 3}, "logging": {"log_info": False}}


@pytest.fixture(scope="module")
def document(server: ApplianceProcess) -> Any:
    reply = call(server, "GET", PATH)
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    return reply.document


def _schema(document: Any, operation: Any, reply: Reply) -> Any:
    """What the body of ``reply`` must fit; None where it is no JSON."""
    answer = operation["responses"][str(reply.status)]
    if "$ref" in answer:
        answer = document["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    kind = reply.headers["content-type"].partition(";")[0]
    assert kind in answer["content"], (kind, answer)
    schema = answer["content"][kind].get("schema", {})
    return {**schema, "components": document["components"]} if kind == "application/json" else None


def _fits(document: Any, method: str, path: str, reply: Reply) -> None:
    schema = _schema(document, document["paths"][path][method], reply)
    if schema is not None:
        Draft202012Validator(schema).validate(reply.document)


def _ask(
    server: ApplianceProcess, method: str, path: str, names: Mapping[str, str], bodies: Mapping[str, Any]
) -> Reply:
    body = bodies.get(path.rpartition("/")[2], {}) if method == "post" else None
    return call(server, method.upper(), path.format(**names), body)


def test_it_is_a_document_of_openapi(document: Any) -> None:
    validate(document)
    assert document["openapi"].startswith("3.1")


def test_each_path_answers_as_it_says(server: ApplianceProcess, document: Any) -> None:
    asked = [(method, path) for path, item in document["paths"].items() for method in item]
    assert len(asked) > 35
    worked = 0
    for method, path in asked:
        reply = _ask(server, method, path, NAMES, BODIES)
        _fits(document, method, path, reply)
        if "sharedmemory" in path:
            assert reply.status == 501, "off by default; tests/conformance/shared_memory has it on"
            continue
        worked += reply.status == 200
        assert ("200" in document["paths"][path][method]["responses"]) == (reply.status == 200), (
            method,
            path,
        )
    assert worked > 25


def test_each_refusal_is_listed(server: ApplianceProcess, document: Any) -> None:
    unknown = {**NAMES, "model": "nowhere"}
    for path, item in document["paths"].items():
        for method in item:
            for headers in (
                {"Host": "a.example.com"},
                {"Content-Encoding": "br"} if method == "post" else {},
            ):
                _fits(
                    document, method, path, call(server, method.upper(), path.format(**NAMES), None, headers)
                )
            _fits(document, method, path, _ask(server, method, path, unknown, BODIES))
            _fits(document, method, path, _ask(server, method, path, NAMES, WRONG))


def test_each_path_takes_the_methods_that_are_listed(server: ApplianceProcess, document: Any) -> None:
    for path, item in document["paths"].items():
        reply = call(server, "DELETE", path.format(**NAMES))
        allowed = set(reply.headers["allow"].lower().split(", ")) - {"head"}
        assert (reply.status, allowed) == (405, set(item)), path


def test_every_description_is_of_a_route(document: Any) -> None:
    listed = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert set(OPERATIONS) <= listed


def test_the_reference_has_every_route_and_no_other(document: Any) -> None:
    cells = [row[0].replace("`", "").split() for heading in HEADINGS for row in table_rows("API.md", heading)]
    said = {(cell[0], cell[1]) for cell in cells if cell[0] in ("GET", "POST")}
    listed = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert said == {(method, unversioned(path)) for method, path in listed}


def test_the_reference_has_every_status(document: Any) -> None:
    said = {int(row[0].strip("`")) for row in table_rows("API.md", "### Statuses")}
    assert said == {200, *map(int, document["components"]["responses"])}
