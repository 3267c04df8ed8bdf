"""MLServer with a small custom runtime over ONNX Runtime: its settings files and command line.

`parallel_workers` is 0: the model runs in MLServer's own process, which is faster for small models than its pool.
"""

import json
import shutil
from pathlib import Path

RUNTIME = Path(__file__).with_name("mlserver_runtime.py")


def write_settings(models: Path, folder: Path, ports: tuple[int, int, int]) -> None:
    """MLServer's folder for every model of a model directory; `ports` are gRPC, HTTP and metrics."""
    grpc_port, http_port, metrics_port = ports
    folder.mkdir(parents=True)
    shutil.copyfile(RUNTIME, folder / RUNTIME.name)
    settings = {
        "host": "127.0.0.1",
        "grpc_port": grpc_port,
        "http_port": http_port,
        "metrics_port": metrics_port,
        "parallel_workers": 0,
        "debug": False,
        "grpc_max_message_length": 64 * 1024 * 1024,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    for file in sorted(models.glob("*/1/model.onnx")):
        name = file.parts[-3]
        (folder / name).mkdir()
        shutil.copyfile(file, folder / name / "model.onnx")
        model = {
            "name": name,
            "implementation": "mlserver_runtime.OnnxModel",
            "parameters": {"uri": "./model.onnx"},
        }
        (folder / name / "model-settings.json").write_text(json.dumps(model))


def command(environment: Path, folder: Path) -> list[str]:
    """The server's command line."""
    return [str(environment / "bin" / "mlserver"), "start", str(folder)]
