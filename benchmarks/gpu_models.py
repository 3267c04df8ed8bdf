"""Models for ``benchmarks.gpu``, made with random weights: what they compute with is of the right size and no more."""

from __future__ import annotations

from typing import Any

import numpy as np

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Width and number of bottleneck blocks (He et al., Deep Residual Learning for Image Recognition, 2015, table 1)."""
PICTURE = (3, 224, 224)
OPSET = 17


class _Writer:
    """Nodes and weights of a graph as it grows."""

    def __init__(self, dtype: Any) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._dtype = dtype
        self._random = np.random.default_rng(1)

    def add(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        from onnx import helper

        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def weight(self, *shape: int, scale: float) -> str:
        from onnx import numpy_helper

        name = f"w{len(self.weights)}"
        values = (self._random.standard_normal(shape) * scale).astype(self._dtype)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def convolution(
        self, x: str, into: int, out: int, size: int, stride: int = 1, *, relu: bool = True
    ) -> str:
        kernel = self.weight(out, into, size, size, scale=(2 / (into * size * size)) ** 0.5 * 0.7)
        pads = [size // 2] * 4
        y = self.add(
            "Conv", [x, kernel, self.weight(out, scale=0.01)], pads=pads, strides=[stride] * 2,
            kernel_shape=[size] * 2,
        )  # fmt: skip
        return self.add("Relu", [y]) if relu else y


def resnet50(dtype: Any = np.float32) -> bytes:
    """ResNet-50 over pictures of UINT8 [n, 3, 224, 224], which it brings to ``dtype`` itself; 1,000 values of FP32 a
    row. Its batch normalisations are in the convolutions, as they are in what exporters write for inference."""
    from onnx import TensorProto, helper, numpy_helper

    writer = _Writer(dtype)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x = writer.add("Cast", ["image"], to=element)
    writer.weights.append(numpy_helper.from_array(np.array(1 / 255, dtype), "scale"))
    x = writer.add("Mul", [x, "scale"])
    x = writer.convolution(x, 3, 64, 7, 2)
    x = writer.add("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for number, (width, blocks) in enumerate(STAGES):
        for block in range(blocks):
            stride = 2 if number and not block else 1
            y = writer.convolution(x, channels, width, 1)
            y = writer.convolution(y, width, width, 3, stride)
            y = writer.convolution(y, width, width * 4, 1, relu=False)
            if not block:
                x = writer.convolution(x, channels, width * 4, 1, stride, relu=False)
            x = writer.add("Relu", [writer.add("Add", [x, y])])
            channels = width * 4
    x = writer.add("GlobalAveragePool", [x])
    x = writer.add("Flatten", [x])
    x = writer.add(
        "Gemm",
        [x, writer.weight(channels, 1000, scale=channels**-0.5), writer.weight(1000, scale=0.01)],
    )

    writer.nodes.append(helper.make_node("Cast", [x], ["scores"], to=TensorProto.FLOAT))
    graph = helper.make_graph(
        writer.nodes,
        "resnet50",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["n", *PICTURE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 1000])],
        writer.weights,
    )
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8
    ).SerializeToString()
    return made


def large(nbytes: int) -> tuple[bytes, np.ndarray[Any, Any]]:
    """A product with one weight of so many bytes, for measuring how fast weights come: the graph, whose weight lies in
    ``weights.bin`` beside it, and that weight."""
    from onnx import TensorProto, helper, numpy_helper

    columns = 4096
    weight = np.random.default_rng(3).random((nbytes // 4 // columns, columns), np.float32)
    tensor = numpy_helper.from_array(weight[:1], "w")
    tensor.ClearField("raw_data")
    tensor.dims[0] = weight.shape[0]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", str(weight.nbytes))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", weight.shape[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", columns])],
        [tensor],
    )
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8
    ).SerializeToString()
    return made, weight
