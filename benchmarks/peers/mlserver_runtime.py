"""MLServer's custom runtime: ONNX Runtime, one thread. It runs in MLServer's environment, never inside the kit."""

import importlib
from typing import TYPE_CHECKING, Any

mlserver: Any = importlib.import_module("mlserver")
codecs: Any = importlib.import_module("mlserver.codecs")
types: Any = importlib.import_module("mlserver.types")
utils: Any = importlib.import_module("mlserver.utils")

if TYPE_CHECKING:
    Base = object
else:
    Base = mlserver.MLModel


class OnnxModel(Base):
    """One ONNX model under MLServer's own protocol handling."""

    if TYPE_CHECKING:  # given by MLServer's base class
        settings: Any
        name: str

    async def load(self) -> bool:
        """Create the session."""
        ort: Any = importlib.import_module("onnxruntime")
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        uri = await utils.get_model_uri(self.settings)
        self._session = ort.InferenceSession(uri, options, providers=["CPUExecutionProvider"])
        self._outputs = [port.name for port in self._session.get_outputs()]
        return True

    async def predict(self, payload: Any) -> Any:
        """Decode, run, encode."""
        feed = {tensor.name: codecs.NumpyCodec.decode_input(tensor) for tensor in payload.inputs}
        results = self._session.run(None, feed)
        outputs = [
            codecs.NumpyCodec.encode_output(name, result)
            for name, result in zip(self._outputs, results, strict=True)
        ]
        return types.InferenceResponse(model_name=self.name, model_version="1", outputs=outputs)
