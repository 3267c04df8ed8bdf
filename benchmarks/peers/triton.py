"""Triton with its Python backend running ONNX Runtime: the model repository and the command line.

The server is the one inside the nvidia-pytriton wheel. Its dynamic batching is on, with no delay, which is the
configuration that suits it best here.
"""

import shutil
import sys
import sysconfig
from pathlib import Path

from benchmarks.payload import port_names

BACKEND_MODEL = Path(__file__).with_name("triton_model.py")
CONFIG_TYPES = {"FP32": "TYPE_FP32", "FP64": "TYPE_FP64", "INT64": "TYPE_INT64", "INT32": "TYPE_INT32"}


def triton_files(install: Path) -> tuple[Path, Path, Path]:
    """The server binary, the backend folder and the Python stub inside an installed wheel."""
    server = install / "pytriton" / "tritonserver"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = server / "python_backend_stubs" / python / "triton_python_backend_stub"
    return server / "bin" / "tritonserver", server / "backends", stub


def python_library_folder() -> Path | None:
    """Where libpythonX.Y.so lies, which the stub links; None when this Python was built without it."""
    library = sysconfig.get_config_var("INSTSONAME")
    folder = Path(str(sysconfig.get_config_var("LIBDIR")))
    return folder if library and (folder / library).exists() and ".so" in library else None


def write_repository(models: Path, repository: Path) -> None:
    """A Triton repository that serves every model of a model directory through the Python backend."""
    for file in sorted(models.glob("*/1/model.onnx")):
        target = repository / file.parts[-3]
        (target / "1").mkdir(parents=True)
        shutil.copyfile(file, target / "1" / "model.onnx")
        shutil.copyfile(BACKEND_MODEL, target / "1" / "model.py")
        (target / "config.pbtxt").write_text(model_config(target.name, file))


def model_config(name: str, file: Path) -> str:
    """The configuration of a model that the Python backend serves."""
    inputs, outputs = port_names(file)
    lines = [f'name: "{name}"', 'backend: "python"', "max_batch_size: 32", "dynamic_batching { }"]
    for key, ports in (("input", inputs), ("output", outputs)):
        for port, datatype, shape in ports:
            dims = ", ".join(str(size) for size in shape[1:])
            lines.append(
                f'{key} [ {{ name: "{port}" data_type: {CONFIG_TYPES[datatype]} dims: [ {dims} ] }} ]'
            )
    lines.append("instance_group [ { count: 1 kind: KIND_CPU } ]")
    return "\n".join(lines) + "\n"


def command(install: Path, repository: Path, ports: tuple[int, int, int]) -> list[str]:
    """The server's command line; `ports` are gRPC, HTTP and metrics."""
    binary, backends, _ = triton_files(install)
    grpc_port, http_port, metrics_port = ports
    return [
        str(binary),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        "--disable-auto-complete-config",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={grpc_port}",
        "--http-address=127.0.0.1",
        f"--http-port={http_port}",
        "--metrics-address=127.0.0.1",
        f"--metrics-port={metrics_port}",
    ]
