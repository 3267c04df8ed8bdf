"""The inference protocol, the same over gRPC and HTTP: what the server calls itself, and what parameters mean.

Pure. The front ends turn their own form of a parameter (protobuf, JSON) into a plain mapping first. Keys without a
meaning here pass through untouched, except those that start with ``triton_``, which the protocol reserves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from appliance.domain.classification import CLASSES_MAX
from appliance.domain.errors import InvalidRequest
from appliance.domain.inference import Parameter

SERVER_NAME: Final = "appliance"
SYSTEM_SHARED_MEMORY: Final = "system_shared_memory"
"""The extension that is offered where an operator turned it on."""
EXTENSIONS: Final = (
    "classification",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
    "binary_tensor_data",
    "parameters",
    "logging",
    "trace",
)
ADDRESSES: Final = "/appliance.Addresses/Get"
"""The RPC that tells, as JSON and for whoever came to the wrong port, where the server listens."""
EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"
FINAL_RESPONSE = "triton_final_response"

_RESERVED = "triton_"
REGION: Final = "shared_memory_region"
REGION_BYTES: Final = "shared_memory_byte_size"
REGION_OFFSET: Final = "shared_memory_offset"
REGION_NAME_BYTES_MAX: Final = 255


class RequestMeaning(NamedTuple):
    """The parameters of a request that mean something: ``priority`` (1 is the most urgent, 0 the model's default),
    ``timeout_us`` (0: none), and whether a stream wants an empty last response per request."""

    priority: int = 0
    timeout_us: int = 0
    empty_final_response: bool = False


def request_meaning(parameters: Mapping[str, Parameter]) -> RequestMeaning:
    """Read the parameters of a request; raises InvalidRequest naming the key that is wrong."""
    if not parameters:
        return RequestMeaning()
    for key in parameters:
        if key.startswith(_RESERVED) and key != EMPTY_FINAL_RESPONSE:
            raise InvalidRequest(
                f"parameter '{key}' is not known; keys that start with '{_RESERVED}' are reserved and only "
                f"'{EMPTY_FINAL_RESPONSE}' is offered"
            )
    _refuse_sequences(parameters)
    return RequestMeaning(
        priority=_natural(parameters, "priority"),
        timeout_us=_natural(parameters, "timeout"),
        empty_final_response=_flag(parameters, EMPTY_FINAL_RESPONSE),
    )


class RegionPart(NamedTuple):
    """Where a tensor is in shared memory: the name of the region, where the tensor begins in that, and its bytes."""

    region: str
    offset: int
    nbytes: int

    def parameters(self) -> dict[str, Parameter]:
        """The same as parameters of a tensor."""
        return {REGION: self.region, REGION_OFFSET: self.offset, REGION_BYTES: self.nbytes}


def asks_for_region(parameters: Mapping[str, Parameter]) -> bool:
    """Whether a tensor with these parameters is in shared memory."""
    return REGION in parameters or REGION_BYTES in parameters or REGION_OFFSET in parameters


def region_part(kind: str, name: str, parameters: Mapping[str, Parameter]) -> RegionPart:
    """Where the ``kind`` ("input", "output") of this ``name`` is. Raises InvalidRequest naming the key that is
    wrong."""
    where = f" of {kind} '{name}'"
    region = parameters.get(REGION)
    if not isinstance(region, str) or len(region) > REGION_NAME_BYTES_MAX:
        raise InvalidRequest(f"parameter '{REGION}'{where} must be the name of a region")
    nbytes = _natural(parameters, REGION_BYTES, where)
    if not nbytes:
        raise InvalidRequest(f"parameter '{REGION_BYTES}'{where} must be given and at least 1")
    if "classification" in parameters:
        raise InvalidRequest(
            f"{kind} '{name}' asks for 'classification' and for shared memory; classes come in the message alone"
        )
    return RegionPart(region, _natural(parameters, REGION_OFFSET, where), nbytes)


def output_classification(name: str, parameters: Mapping[str, Parameter]) -> int:
    """How many top classes an output is asked for (0: the tensor itself). Raises InvalidRequest."""
    if not parameters:
        return 0
    classes = _natural(parameters, "classification", f" of output '{name}'")
    if classes == 0 and "classification" in parameters:
        raise InvalidRequest(f"parameter 'classification' of output '{name}' must be at least 1, got 0")
    if classes > CLASSES_MAX:
        raise InvalidRequest(f"parameter 'classification' of output '{name}' must be at most {CLASSES_MAX}")
    return classes


def _natural(parameters: Mapping[str, Parameter], key: str, where: str = "") -> int:
    value = parameters.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"parameter '{key}'{where} must be an integer, got {value!r}")
    if value < 0:
        raise InvalidRequest(f"parameter '{key}'{where} must not be negative, got {value}")
    return value


def _flag(parameters: Mapping[str, Parameter], key: str) -> bool:
    value = parameters.get(key, False)
    if not isinstance(value, bool):
        raise InvalidRequest(f"parameter '{key}' must be a boolean, got {value!r}")
    return value


def _refuse_sequences(parameters: Mapping[str, Parameter]) -> None:
    sequence = parameters.get("sequence_id", 0)
    if isinstance(sequence, (bool, float)):
        raise InvalidRequest(f"parameter 'sequence_id' must be an integer or a string, got {sequence!r}")
    if sequence not in (0, ""):
        raise InvalidRequest(
            f"sequence_id {sequence!r} is given, but no model here keeps state between requests; send it without"
        )
    for key in ("sequence_start", "sequence_end"):
        _flag(parameters, key)
