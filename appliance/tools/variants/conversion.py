"""Variants of an ONNX model with ONNX Runtime's own quantisers and half-precision converter; the only file that knows
them. Needs the ``onnx`` package (the extra ``models``); for tools that make models, never for serving.

Inputs and outputs stay what they were, so that no client sees which variant answers; operators that the converters know
not to bear less precision keep it. What is for TensorRT is symmetric around zero, because TensorRT builds nothing else;
what is for ONNX Runtime is not, because its processor kernels are faster and nearer with zero points.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from appliance.domain.errors import ArtefactError
from appliance.domain.tensor import Datatype
from appliance.runtimes.arrays import decode_strings

Feeds = Mapping[str, NDArray[Any]]
INLINE_BYTES_MAX: Final = 1 << 30
QDQ_OPSET_MIN: Final = 13
STATIC_OPERATORS: Final = ("Conv", "ConvTranspose", "Gemm", "MatMul", "MaxPool", "Relu")
"""Where the time goes. Elementwise operators gain little and lose much, and some of them break with a scale for each
channel."""
FLOAT_OPERATORS: Final = ("FeatureVectorizer", "LinearRegressor", "Normalizer", "Scaler")
"""Operators of ai.onnx.ml whose one output is of FP32, whatever goes in."""
FLOAT8_OPERATORS: Final = ("Conv", "Gemm", "MatMul")
FLOAT8_IR_MIN: Final = 9


def array_of(datatype: Datatype, shape: tuple[int, ...], raw: bytes) -> NDArray[Any]:
    """Raw wire bytes as ONNX Runtime takes them."""
    if datatype is Datatype.BYTES:
        return decode_strings("calibration", memoryview(raw), shape)
    if datatype is Datatype.BF16:
        raise ArtefactError("BF16 inputs cannot calibrate a variant; numpy has no such type")
    kind = "?" if datatype is Datatype.BOOL else f"<{datatype.code}"
    return np.frombuffer(raw, kind).reshape(shape)


def make_variant(
    source: str, method: str, target: str, calibration: Iterable[Feeds], *, for_tensorrt: bool = False
) -> None:
    """Write the variant of the model file ``source`` that ``method`` names to ``target``, ``for_tensorrt`` in a form of
    which it can build an engine, where there are two. Raises ArtefactError."""
    makers = {**_MAKERS, **(_FOR_TENSORRT if for_tensorrt else {})}
    log = logging.getLogger()
    level = log.level
    log.setLevel(logging.ERROR)  # the quantiser advises people on what they did not ask
    try:
        makers[method](source, target, list(calibration))
    except ImportError as error:
        raise ArtefactError(
            f"making variants needs the package '{error.name}': {sys.executable} -m pip install 'onnx>=1.21'"
        ) from error
    except ArtefactError:
        raise
    except Exception as error:
        raise ArtefactError(f"cannot be made of this model: {_first_line(error)}") from error
    finally:
        log.setLevel(level)


def _first_line(error: Exception) -> str:
    """What a library says, and not all of its trace."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:500]


def _half(source: str, target: str, _calibration: list[Feeds]) -> None:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = convert_float_to_float16(_without_shapes(onnx.load(source)), keep_io_types=True)
    if not _has_half(model.graph):
        raise ArtefactError("has nothing that half precision changes: nothing in the model computes in FP32")
    _save(model, target)


def _has_half(graph: Any) -> bool:
    """Whether anything in it, or in what is inside of it, is in half precision: weights, or what is made so."""
    from onnx import TensorProto

    half = TensorProto.FLOAT16
    if any(each.data_type == half for each in graph.initializer):
        return True
    said = [each for node in graph.node for each in node.attribute]
    made = any(each.t.data_type == half or (each.name == "to" and each.i == half) for each in said)
    return made or any(_has_half(inner) for each in said for inner in (each.g, *each.graphs))


def _without_shapes(model: Any) -> Any:
    """The model without the shapes that its exporter noted down for values in between: converters infer them anew, and
    stop where an exporter's note contradicts what they find, as torch's often does."""
    del model.graph.value_info[:]
    return model


def _dynamic(source: str, target: str, _calibration: list[Feeds]) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(_prepared(source), target, weight_type=QuantType.QInt8, per_channel=False)
    _check_quantised(target, "INT8")


def _static(source: str, target: str, calibration: list[Feeds]) -> None:
    from onnxruntime.quantization import QuantType

    _quantise(
        source,
        target,
        calibration,
        "INT8",
        STATIC_OPERATORS,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


def _symmetric(source: str, target: str, calibration: list[Feeds]) -> None:
    """As ``_static``, without zero points, and with biases as they were: TensorRT unpacks no INT32."""
    from onnxruntime.quantization import QuantType

    _quantise(
        source,
        target,
        calibration,
        "INT8",
        STATIC_OPERATORS,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        extra_options={"ActivationSymmetric": True, "QuantizeBias": False},
    )


def _float8(source: str, target: str, calibration: list[Feeds]) -> None:
    """E4M3FN, whose scales the quantiser takes from how values are distributed; its other methods are for integers."""
    import onnx
    from onnxruntime.quantization import CalibrationMethod, QuantType

    _quantise(
        source,
        target,
        calibration,
        "FP8",
        FLOAT8_OPERATORS,
        activation_type=QuantType.QFLOAT8E4M3FN,
        weight_type=QuantType.QFLOAT8E4M3FN,
        calibrate_method=CalibrationMethod.Distribution,
    )
    model = onnx.load(target)
    model.ir_version = max(model.ir_version, FLOAT8_IR_MIN)  # the quantiser leaves the original's
    onnx.save(model, target)


def _quantise(
    source: str, target: str, calibration: list[Feeds], kind: str, operators: tuple[str, ...], **how: Any
) -> None:
    """Static quantisation (QDQ), with scales for each channel of weights, calibrated on the given inputs."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """Gives the calibration inputs once."""

        def __init__(self) -> None:
            self._feeds: Iterator[Feeds] = iter(calibration)

        def get_next(self) -> Feeds | None:
            return next(self._feeds, None)

    prepared = _prepared(source)
    if not any(node.op_type in operators for node in prepared.graph.node):
        raise _nothing_for(kind)
    quantize_static(
        prepared,
        target,
        Reader(),
        op_types_to_quantize=list(operators),
        nodes_to_exclude=_read_by_branches(prepared.graph),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        **how,
    )
    _check_quantised(target, kind)


def _read_by_branches(graph: Any) -> list[str]:
    """The names of each Relu that a graph inside of this one reads. The quantiser leaves a Relu out where the scale
    behind it cuts off what is below zero, but has graphs inside read what comes before that scale."""
    inner = [part for node in graph.node for each in node.attribute for part in (each.g, *each.graphs)]
    read = {name for part in inner for name in _all_read(part)}
    found = [node for node in graph.node if node.op_type == "Relu" and node.output[0] in read]
    for number, node in enumerate(found):
        node.name = node.name or f"read_by_branch_{number}"
    return [node.name for node in found]


def _all_read(graph: Any) -> Iterator[str]:
    """What the nodes of a graph, and of those inside of it, read."""
    for node in graph.node:
        yield from node.input
        for each in node.attribute:
            for part in (each.g, *each.graphs):
                yield from _all_read(part)
    yield from (output.name for output in graph.output)


def _int4(source: str, target: str, _calibration: list[Feeds]) -> None:
    """The runtime's own packing of weights. Its quantiser in Python, which calls the same, needs one more package."""
    from onnxruntime.capi._pybind_state import quantize_matmul_4bits

    from appliance.tools.variants.four_bits import PackedForm, with_four_bits

    model, packed = with_four_bits(_prepared(source), PackedForm(quantize_matmul_4bits))
    if not packed:
        raise ArtefactError(
            "has nothing that can be quantised: no MatMul or Gemm of the model has FP32 weights"
        )
    _save(model, target)


def _standard_int4(source: str, target: str, _calibration: list[Feeds]) -> None:
    """In ONNX's own operators: TensorRT has no others of four bits."""
    from onnx import version_converter

    from appliance.tools.variants.four_bits import (
        STANDARD_BLOCK_ROWS,
        STANDARD_OPSET,
        StandardForm,
        with_four_bits,
    )

    prepared = _prepared(source)
    if _opset(prepared) < STANDARD_OPSET:
        prepared = version_converter.convert_version(prepared, STANDARD_OPSET)
    model, packed = with_four_bits(prepared, StandardForm())
    if not packed:
        raise ArtefactError(
            "has nothing that can be quantised: no MatMul or Gemm of the model has FP32 weights in whole blocks of "
            f"{STANDARD_BLOCK_ROWS} rows, as TensorRT wants them"
        )
    _save(model, target)


def _prepared(source: str) -> Any:
    """The model with shapes inferred and constants folded, as the quantiser wants it; opset 13 at least."""
    import onnx
    from onnxruntime.quantization import quant_pre_process

    whole = _with_sets_once(_without_shapes(onnx.load(source)))
    if whole.ByteSize() > INLINE_BYTES_MAX:
        raise ArtefactError(
            f"has more than {INLINE_BYTES_MAX} bytes, which the quantiser does not take in one file"
        )
    with tempfile.TemporaryDirectory() as folder:
        inline, path = os.path.join(folder, "whole.onnx"), os.path.join(folder, "prepared.onnx")
        onnx.save(_new_enough(whole), inline)
        quant_pre_process(inline, path, skip_symbolic_shape=True)
        return _with_types_of_ml(_with_plain_biases(_without_shapes(onnx.load(path))))


def _new_enough(model: Any) -> Any:
    """The model in the operator set from which on there are scales for each channel, where it is of an older one, as
    many models are that others exported."""
    from onnx import version_converter

    version = _opset(model)
    if version >= QDQ_OPSET_MIN:
        return model
    try:
        return version_converter.convert_version(model, QDQ_OPSET_MIN)
    except Exception as error:
        raise ArtefactError(
            f"the model is of operator set {version}, quantising needs {QDQ_OPSET_MIN}, and the package 'onnx' does "
            f"not convert it: {_first_line(error)}; export it anew"
        ) from error


def _with_plain_biases(model: Any) -> Any:
    """The model with each bias of Gemm that is one row, as MatMul and Add of a row become, in one dimension: the
    quantiser counts on that, and both are the same to Gemm."""
    biases = {node.input[2] for node in model.graph.node if node.op_type == "Gemm" and len(node.input) > 2}
    others = {name for node in model.graph.node if node.op_type != "Gemm" for name in node.input}
    for tensor in model.graph.initializer:
        if tensor.name in biases - others and len(tensor.dims) == 2 and tensor.dims[0] == 1:
            del tensor.dims[0]
    return model


def _with_sets_once(model: Any) -> Any:
    """The model with each set of operators named once: the quantiser takes no other, and converters name some twice."""
    sets = {(each.domain, each.version): each for each in model.opset_import}
    del model.opset_import[:]
    model.opset_import.extend(sets.values())
    return model


def _with_types_of_ml(model: Any) -> Any:
    """The model with the types of what FLOAT_OPERATORS give: nothing infers them, and the quantiser leaves alone what
    follows, or stops there."""
    from onnx import TensorProto, helper

    told = {port.name for port in model.graph.output}
    for node in model.graph.node:
        if node.domain == "ai.onnx.ml" and node.op_type in FLOAT_OPERATORS and node.output[0] not in told:
            model.graph.value_info.append(
                helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)
            )
    return model


def _opset(model: Any) -> int:
    return next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 0)


def _check_quantised(path: str, kind: str) -> None:
    """A graph without anything to quantise comes out as it went in, which is no variant."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    operators = {node.op_type for node in model.graph.node}
    if not any(
        "Quantize" in each or each.endswith("Integer") or each.startswith("QLinear") for each in operators
    ):
        raise _nothing_for(kind)


def _nothing_for(kind: str) -> ArtefactError:
    return ArtefactError(f"has nothing that can be quantised: no operator of the model takes {kind}")


def _save(model: Any, target: str) -> None:
    import onnx

    if model.ByteSize() <= INLINE_BYTES_MAX:
        onnx.save(model, target)
        return
    location = f"{os.path.basename(target)}.data"
    onnx.save(model, target, save_as_external_data=True, all_tensors_to_one_file=True, location=location)


_MAKERS: Final[Mapping[str, Callable[[str, str, list[Feeds]], None]]] = MappingProxyType(
    {"fp16": _half, "int8-dynamic": _dynamic, "int8-static": _static, "fp8": _float8, "int4": _int4}
)
_FOR_TENSORRT: Final[Mapping[str, Callable[[str, str, list[Feeds]], None]]] = MappingProxyType(
    {"int8-static": _symmetric, "int4": _standard_int4}
)
"""The methods whose variants TensorRT takes in another form than ONNX Runtime's is."""
