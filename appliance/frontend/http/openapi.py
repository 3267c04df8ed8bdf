"""The HTTP side as an OpenAPI document: what there is at each path, made once of the table of routes.

Pure. What a route is for stands here by its path without the version of a model, which every such path takes as well.
A route that is not described is a defect and fails where the document is made, which is at start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from appliance import __version__
from appliance.domain.model import VersionState
from appliance.domain.protocol import SERVER_NAME
from appliance.domain.tensor import Datatype
from appliance.frontend.http.infer_request import HEAD_LENGTH_HEADER
from appliance.telemetry.status_document import Json

Schema = dict[str, Json]

JSON: Final = "application/json"
BINARY: Final = "application/octet-stream"
TEXT: Final = "text/plain"
HTML: Final = "text/html"
OPENAPI: Final = "3.1.0"
ERROR: Final = "Error"

REASONS: Final[Mapping[int, str]] = {
    400: "The request is malformed or does not fit the model: it is wrong as it is.",
    403: "Not for the network, or the request may be that of a web page: a foreign Host, Origin or Sec-Fetch-Site.",
    404: "There is no such path, model, version or region of shared memory.",
    405: "Another method; Allow has those that are taken.",
    408: "The head or the body did not arrive in time.",
    409: "The client has a region of shared memory of that name.",
    413: "The body is larger than its limit.",
    415: "A Content-Type or Content-Encoding that is not taken.",
    429: "No room, or no time before the deadline, or over the client's quota. Retry-After-Ms says when to come back.",
    431: "The request line or a header is too long.",
    500: "The runtime failed, or the appliance did; its log says more.",
    501: "Part of the protocol that is not offered here.",
    503: "Nothing ready to answer: loading, unavailable, stopping, a worker died, or too many connections.",
    504: "The deadline passed while the request waited or ran.",
    505: "Another HTTP than 1.0 and 1.1.",
}
"""What each status but 200 means, alike at every path."""
ANY: Final = (400, 403, 405, 408, 431, 500, 503, 505)
WITH_BODY: Final = (413, 415, 429)


class Operation(NamedTuple):
    """What is at a path: the schema of its answer by name, "" for text that is no JSON; ``statuses`` beside those that
    every path has, without 200 where ``refuses`` says that it is never given."""

    summary: str
    answer: str
    statuses: tuple[int, ...] = ()
    body: str = ""
    media: str = JSON
    refuses: bool = False


OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    ("GET", "/"): Operation("The page of all models, for people.", "", media=HTML),
    ("GET", "/models/{model}"): Operation("The page of one model, for people.", "", (404,), media=HTML),
    ("GET", "/status.json"): Operation("What the appliance is doing (docs/STATUS.md).", "Status"),
    ("GET", "/metrics"): Operation("Metrics for Prometheus (docs/METRICS.md).", "", media=TEXT),
    ("GET", "/v2"): Operation("Name, version and extensions of the server.", "Server"),
    ("GET", "/v2/openapi.json"): Operation("This document.", "OpenApi"),
    ("GET", "/v2/health/live"): Operation("200 as long as the process answers.", "Live"),
    ("GET", "/v2/health/ready"): Operation("200 when requests are welcome, else 503.", "Ready"),
    ("GET", "/v2/models/stats"): Operation("Counts and times of all versions.", "Statistics"),
    ("GET", "/v2/models/{model}"): Operation("Inputs, outputs and ready versions.", "Model", (404,)),
    ("GET", "/v2/models/{model}/ready"): Operation("200 when it can be asked.", "ModelReady", (404,)),
    ("GET", "/v2/models/{model}/config"): Operation("The configuration in force.", "ModelConfig", (404,)),
    ("GET", "/v2/models/{model}/stats"): Operation("Counts and times of its versions.", "Statistics", (404,)),
    ("POST", "/v2/models/{model}/infer"): Operation(
        "Run a request; tensors are JSON, or binary behind it.", "InferAnswer", (404, 501, 504), "InferRequest"
    ),
    ("POST", "/v2/repository/index"): Operation("Every version, its state and why.", "Index", (), "IndexRequest"),
    ("POST", "/v2/repository/models/{model}/load"): Operation(
        "Refused: only the control socket loads.", "", body="Ignored", refuses=True
    ),
    ("POST", "/v2/repository/models/{model}/unload"): Operation(
        "Refused: only the control socket unloads.", "", body="Ignored", refuses=True
    ),
    ("GET", "/v2/logging"): Operation("The settings of the log.", "Settings"),
    ("POST", "/v2/logging"): Operation("The same; a change is refused.", "Settings", (), "Settings"),
    ("GET", "/v2/trace/setting"): Operation("What is traced.", "Settings"),
    ("POST", "/v2/trace/setting"): Operation("The same; changes are not offered.", "Settings", (501,), "Settings"),
    ("GET", "/v2/models/{model}/trace/setting"): Operation("What is traced.", "Settings", (404,)),
    ("POST", "/v2/models/{model}/trace/setting"): Operation(
        "The same; changes are not offered.", "Settings", (404, 501), "Settings"
    ),
}  # fmt: skip
REGIONS: Final[Mapping[str, Operation]] = {
    "status": Operation("The client's regions of shared memory.", "Regions", (404, 501)),
    "register": Operation("Open a region for the client.", "Empty", (409, 501), "Region"),
    "unregister": Operation("Forget a region of the client's, or all.", "Empty", (501,), "Ignored"),
}
"""What is done with system shared memory, by the end of the path."""
DEVICE_REGIONS: Final[Mapping[str, Operation]] = {
    "status": Operation("None: the memory of devices is not shared.", "Regions", (404, 501)),
    "register": Operation("Not offered: send tensors in the message.", "", (501,), refuses=True),
    "unregister": Operation("Nothing to forget.", "Empty", (501,), "Ignored"),
}
"""The same of CUDA's."""


def openapi_document(routes: Iterable[tuple[str, str]]) -> bytes:
    """The document of ``routes``, which are pairs of method and path."""
    paths: dict[str, dict[str, Json]] = {}
    for method, path in routes:
        paths.setdefault(path, {})[method.lower()] = _operation(method, path)
    document: Schema = {
        "openapi": OPENAPI,
        "info": {
            "title": SERVER_NAME,
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "The Open Inference Protocol (KServe v2) over HTTP/1.1, with the extensions of Triton that "
            "/v2 lists. What takes GET takes HEAD as well. docs/API.md says more.",
        },
        "paths": dict[str, Json](paths),
        "components": {
            "schemas": dict[str, Json](SCHEMAS),
            "responses": {str(status): _error(status) for status in REASONS},
        },
    }
    return json.dumps(document, separators=(",", ":")).encode()


def unversioned(path: str) -> str:
    """``path`` without the version of a model."""
    return path.replace("/versions/{version}", "")


def _operation(method: str, path: str) -> Json:
    described = _described(method, path)
    found: Schema = {"summary": described.summary, "operationId": _identifier(method, path)}
    if names := re.findall(r"\{(\w+)\}", path):
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if described.body:
        found["requestBody"] = {
            "required": described.body == "InferRequest",
            "content": _content(described.body),
        }
    statuses = {*ANY, *described.statuses, *(WITH_BODY if method == "POST" else ())}
    answers: Schema = {} if described.refuses else {"200": _answer(described)}
    found["responses"] = answers | {
        str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)
    }
    return found


def _described(method: str, path: str) -> Operation:
    if "systemsharedmemory" in path:
        return REGIONS[path.rpartition("/")[2]]
    if "cudasharedmemory" in path:
        return DEVICE_REGIONS[path.rpartition("/")[2]]
    return OPERATIONS[method, unversioned(path)]


def _answer(described: Operation) -> Json:
    if not described.answer:
        return {"description": "Text.", "content": {described.media: {"schema": {"type": "string"}}}}
    answer: Schema = {"description": "As asked.", "content": _content(described.answer)}
    if described.answer == "InferAnswer":
        answer["headers"] = {
            HEAD_LENGTH_HEADER: {
                "description": "Bytes of JSON, where binary tensors follow.",
                "schema": {"type": "integer", "minimum": 1},
            }
        }
    return answer


def _content(schema: str) -> Json:
    content: Schema = {JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    if schema.startswith("Infer"):
        content[BINARY] = {}
    return content


def _error(status: int) -> Json:
    return {"description": REASONS[status], "content": _content(ERROR)}


def _identifier(method: str, path: str) -> str:
    return re.sub(r"\W+", "_", f"{method.lower()}{path}").strip("_")


def _object(
    required: Mapping[str, Json], optional: Mapping[str, Json] | None = None, more: bool = False
) -> Schema:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list[Json](required),
        "additionalProperties": more,
    }  # fmt: skip


def _list(items: Json) -> Schema:
    return {"type": "array", "items": items}


TEXT_VALUE: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
DATATYPE: Final[Schema] = {"type": "string", "enum": [datatype.wire for datatype in Datatype]}
SHAPE: Final = _list({"type": "integer"})
TENSOR: Final = _object({"name": TEXT_VALUE, "datatype": DATATYPE, "shape": SHAPE})
PARAMETERS: Final[Schema] = {
    "type": "object",
    "additionalProperties": {"type": ["boolean", "number", "string"]},
}
DATA: Final = _list({})
DURATION: Final = _object({"count": COUNT, "ns": COUNT})
STAGES: Final = ("compute_input", "compute_infer", "compute_output")
SETTING: Final[Schema] = {"type": ["boolean", "integer", "string", "array", "null"]}

SCHEMAS: Final[Mapping[str, Schema]] = {
    ERROR: _object({"error": TEXT_VALUE}),
    "Ignored": {"type": "object"},
    "Empty": _object({}),
    "Region": _object({"key": TEXT_VALUE, "byte_size": COUNT}, {"offset": COUNT}, more=True),
    "Regions": _list(_object({"name": TEXT_VALUE, "key": TEXT_VALUE, "offset": COUNT, "byte_size": COUNT})),
    "OpenApi": _object({"openapi": TEXT_VALUE, "info": {}, "paths": {}, "components": {}}),
    "Server": _object({"name": TEXT_VALUE, "version": TEXT_VALUE, "extensions": _list(TEXT_VALUE)}),
    "Live": _object({"live": {"const": True}}),
    "Ready": _object({"ready": {"const": True}}),
    "ModelReady": _object({"name": TEXT_VALUE, "ready": {"const": True}}),
    "Model": _object(
        {
            "name": TEXT_VALUE,
            "versions": _list({"type": "string", "pattern": "^[0-9]+$"}),
            "platform": TEXT_VALUE,
            "inputs": _list(TENSOR),
            "outputs": _list(TENSOR),
        }
    ),
    "ModelConfig": _object(
        {
            "name": TEXT_VALUE,
            "platform": TEXT_VALUE,
            "backend": TEXT_VALUE,
            "max_batch_size": COUNT,
            "input": _list({"type": "object"}),
            "output": _list({"type": "object"}),
        },
        more=True,
    ),
    "Statistics": _object(
        {
            "model_stats": _list(
                _object(
                    {
                        "name": TEXT_VALUE,
                        "version": TEXT_VALUE,
                        "last_inference": COUNT,
                        "inference_count": COUNT,
                        "execution_count": COUNT,
                        "inference_stats": _object(
                            dict.fromkeys(
                                ("success", "fail", "queue", *STAGES, "cache_hit", "cache_miss"), DURATION
                            )
                        ),
                        "batch_stats": _list(
                            _object({"batch_size": COUNT, **dict.fromkeys(STAGES, DURATION)})
                        ),
                        "memory_usage": DATA,
                    }
                )
            )
        }
    ),
    "InferRequest": _object(
        {
            "inputs": _list(
                _object(
                    {"name": TEXT_VALUE, "datatype": DATATYPE, "shape": SHAPE},
                    {"data": DATA, "parameters": PARAMETERS},
                )
            )
        },
        {
            "id": TEXT_VALUE,
            "parameters": PARAMETERS,
            "outputs": _list(_object({"name": TEXT_VALUE}, {"parameters": PARAMETERS})),
        },
        more=True,
    ),
    "InferAnswer": _object(
        {
            "model_name": TEXT_VALUE,
            "model_version": TEXT_VALUE,
            "outputs": _list(
                _object(
                    {"name": TEXT_VALUE, "datatype": DATATYPE, "shape": SHAPE},
                    {"data": DATA, "parameters": PARAMETERS},
                )
            ),
        },
        {"id": TEXT_VALUE},
    ),
    "IndexRequest": _object({}, {"ready": FLAG}, more=True),
    "Index": _list(
        _object(
            {
                "name": TEXT_VALUE,
                "version": TEXT_VALUE,
                "state": {"enum": [state.value for state in VersionState]},
                "reason": TEXT_VALUE,
            }
        )
    ),
    "Settings": {"type": "object", "additionalProperties": SETTING},
    "Status": _object(
        {
            "format": COUNT,
            "server": _object(
                {
                    "name": TEXT_VALUE,
                    "version": TEXT_VALUE,
                    "front_end": TEXT_VALUE,
                    "pid": COUNT,
                    "addresses": _object({each: _list(TEXT_VALUE) for each in ("grpc", "http", "metrics")}),
                }
            ),
            "accepting": FLAG,
            "now_ns": COUNT,
            "workers": _list({"type": "object"}),
            "models": _list({"type": "object"}),
        },
        more=True,
    ),
}
