"""System shared memory of clients on this machine, by Triton's own utilities, unmodified, over Unix sockets: gRPC by
the native front end, which tells whose a connection is; HTTP by both."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from appliance.frontend.regions import REGIONS_MAX
from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.architecture.sources import ROOT
from tests.fronts import EVERY_FRONT_END, NATIVE, PYTHON, needs_native

VALUES = np.arange(12, dtype=np.float32).reshape(2, 6)
MODEL = "identity_fp32"
NEIGHBOUR = 2001
STRANGER = 2002
"""Users beside this one, of whom the first may use shared memory as well."""
RESERVED = "triton_python_backend_shm_region_"


def started(sections: Mapping[str, Any], folder: Path, models: Path) -> ApplianceProcess:
    return ApplianceProcess(
        models,
        {
            **sections,
            "grpc": {"addresses": ["127.0.0.1:0", f"unix:{folder}/grpc"], "unix_mode": "0666"},
            "http": {"addresses": ["127.0.0.1:0", f"unix:{folder}/http"], "unix_mode": "0666"},
            "shared_memory": {"users": [str(os.getuid()), str(NEIGHBOUR)]},
        },
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name in (MODEL, "identity_bytes", "add_sub"):
        write_model(name, root)
    shutil.copytree(ROOT / "models" / "digits", root / "digits")
    return root


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where the native front end has its sockets, which every user may open."""
    with TemporaryDirectory(prefix="appliance-test-") as made:
        os.chmod(made, 0o755)
        yield Path(made)


@pytest.fixture(scope="module")
def native(models: Path, folder: Path) -> Iterator[ApplianceProcess]:
    with started(NATIVE, folder, models) as process:
        yield process.wait_ready()


@pytest.fixture
def client(native: ApplianceProcess, folder: Path) -> Iterator[Any]:
    with triton.InferenceServerClient(f"unix:{folder}/grpc") as connected:
        yield connected
        connected.unregister_system_shared_memory()


OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
"""The library shares connections among clients of one address."""
Make = Callable[..., Any]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make a region of the client's; gives its handle, whose key no other test has."""
    made = []

    def region(nbytes: int) -> Any:
        key = f"/appliance-test-{uuid.uuid4().hex}"
        made.append(shm.create_shared_memory_region("made", key, nbytes, create_only=True))
        return made[-1]

    yield region
    for handle in made:
        # One that a test has removed cannot be removed again.
        os.close(os.open(path_of(handle), os.O_CREAT | os.O_RDWR))
        shm.destroy_shared_memory_region(handle)


def path_of(handle: Any) -> str:
    return f"/dev/shm{handle._shm_key}"


def inside(region: str, nbytes: int, offset: int = 0) -> Any:
    tensor = triton.InferInput("x", list(VALUES.shape), "FP32")
    tensor.set_shared_memory(region, nbytes, offset)
    return tensor


def wanted(region: str, nbytes: int, offset: int = 0) -> Any:
    output = triton.InferRequestedOutput("y")
    output.set_shared_memory(region, nbytes, offset)
    return output


def refused(ask: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as failure:
        ask()
    return str(failure.value.status()).removeprefix("StatusCode."), str(failure.value.message())


# --- gRPC


@needs_native
def test_tensors_go_in_and_out(client: Any, make: Make) -> None:
    handle = make(256)
    shm.set_shared_memory_region(handle, [VALUES], 16)
    client.register_system_shared_memory("r", handle._shm_key, 256)
    for _ in range(3):  # nothing of it is a template of the front end's
        answer = client.infer(MODEL, [inside("r", 48, 16)], outputs=[wanted("r", 100, 128)], request_id="7")
        output = answer.get_output("y")
        told = {key: value.string_param or value.int64_param for key, value in output.parameters.items()}
        assert told == {
            "shared_memory_region": "r",
            "shared_memory_offset": 128,
            "shared_memory_byte_size": 48,
        }
        assert answer.get_response().raw_output_contents == [b""]
        assert (shm.get_contents_as_numpy(handle, np.float32, [2, 6], 128) == VALUES).all()
        handle._mpsm_handle.buf[128:176] = bytes(48)
    assert "system_shared_memory" in client.get_server_metadata().extensions


@needs_native
def test_the_example_of_the_reference(client: Any, folder: Path) -> None:
    text = (ROOT / "docs" / "API.md").read_text("utf-8")
    (code,) = re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    code = code.replace("unix:/run/appliance/grpc", f"unix:{folder}/grpc")
    code = code.replace("/frames", f"/appliance-test-{uuid.uuid4().hex}")
    run = [sys.executable, "-W", "ignore", "-c", code]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.startswith("[[")
    assert set(client.get_system_shared_memory_status().regions) == {"frames"}


@needs_native
def test_some_in_the_message_and_some_in_a_region(client: Any, make: Make) -> None:
    handle = make(64)
    metadata = client.get_model_metadata("add_sub")
    shape = [1, *metadata.inputs[0].shape[1:]]
    one, two = np.full(shape, 7, np.int32), np.full(shape, 2, np.int32)
    first, second = (triton.InferInput(each.name, shape, "INT32") for each in metadata.inputs)
    shm.set_shared_memory_region(handle, [one])
    client.register_system_shared_memory("r", handle._shm_key, 64)
    first.set_shared_memory("r", one.nbytes)
    second.set_data_from_numpy(two)
    answer = client.infer("add_sub", [first, second])
    assert sorted(answer.as_numpy(each.name).flat[0] for each in metadata.outputs) == [5, 9]


@needs_native
def test_strings(client: Any, make: Make) -> None:
    words = np.array([[b"one", b"", b"three"]], np.object_)
    raw = serialize_byte_tensor(words)
    handle = make(256)
    shm.set_shared_memory_region(handle, [raw])
    client.register_system_shared_memory("r", handle._shm_key, 256)
    nbytes = len(raw.item())
    tensor = triton.InferInput("x", [1, 3], "BYTES")
    tensor.set_shared_memory("r", nbytes)
    client.infer("identity_bytes", [tensor], outputs=[wanted("r", 128, 128)])
    assert (shm.get_contents_as_numpy(handle, np.object_, [1, 3], 128) == words).all()
    tensor.set_shared_memory("r", nbytes - 2)
    assert "incomplete string" in refused(lambda: client.infer("identity_bytes", [tensor]))[1]
    handle._mpsm_handle.buf[:4] = b"\xff\xff\xff\xff"
    tensor.set_shared_memory("r", nbytes)
    assert refused(lambda: client.infer("identity_bytes", [tensor]))[0] == "INVALID_ARGUMENT"


@needs_native
def test_over_a_stream(client: Any, make: Make) -> None:
    handle = make(128)
    shm.set_shared_memory_region(handle, [VALUES])
    client.register_system_shared_memory("r", handle._shm_key, 128)
    answers: Queue[tuple[Any, Any]] = Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer(MODEL, [inside("r", 48)], outputs=[wanted("r", 64, 64)])
    assert answers.get(timeout=30)[1] is None
    assert (shm.get_contents_as_numpy(handle, np.float32, [2, 6], 64) == VALUES).all()
    client.async_stream_infer(MODEL, [inside("none", 48)])
    assert "Unable to find system shared memory region: 'none'" in str(answers.get(timeout=30)[1])
    client.stop_stream()


@needs_native
def test_status_and_unregistering(client: Any, make: Make) -> None:
    handle = make(128)
    client.register_system_shared_memory("r", handle._shm_key, 64, 32)
    client.register_system_shared_memory("s", handle._shm_key, 128)
    regions = client.get_system_shared_memory_status().regions
    found = regions["r"]
    assert (found.name, found.key, found.offset, found.byte_size) == ("r", handle._shm_key, 32, 64)
    assert set(regions) == {"r", "s"}
    assert set(client.get_system_shared_memory_status("s").regions) == {"s"}
    code, _ = refused(lambda: client.register_system_shared_memory("r", handle._shm_key, 64))
    assert code == "ALREADY_EXISTS"
    client.unregister_system_shared_memory("r")
    code, text = refused(lambda: client.infer(MODEL, [inside("r", 48)]))
    assert (code, "Unable to find system shared memory region: 'r'" in text) == ("NOT_FOUND", True)
    assert refused(lambda: client.get_system_shared_memory_status("r"))[0] == "NOT_FOUND"
    client.unregister_system_shared_memory()
    assert not client.get_system_shared_memory_status().regions


@needs_native
@pytest.mark.parametrize(
    ("key", "nbytes", "offset", "text"),
    [
        ("/none-of-that-name", 64, 0, "create it first"),
        ("/../dev/shm/x", 64, 0, "without slashes"),
        ("..", 64, 0, "without slashes"),
        (f"/{RESERVED}1", 64, 0, "are reserved"),
        ("", 0, 0, "at least 1"),
        ("", 129, 0, "it has 128 bytes, and offset and byte size ask for 129"),
        ("", 64, 65, "ask for 129"),
        ("", 1, (1 << 64) - 1, "ask for 18446744073709551616"),
        ("", (1 << 64) - 1, 2, "max_bytes"),
    ],
)
def test_what_cannot_be_registered(
    client: Any, make: Make, key: str, nbytes: int, offset: int, text: str
) -> None:
    handle = make(128)
    code, said = refused(
        lambda: client.register_system_shared_memory("r", key or handle._shm_key, nbytes, offset)
    )
    assert text in said
    assert code in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")
    assert not client.get_system_shared_memory_status().regions


@needs_native
def test_links_and_files_of_others_are_none(client: Any, make: Make) -> None:
    target, linked = make(128), make(128)
    os.unlink(path_of(linked))
    os.symlink(path_of(target), path_of(linked))
    code, _ = refused(lambda: client.register_system_shared_memory("r", linked._shm_key, 64))
    assert code == "INVALID_ARGUMENT"
    os.unlink(path_of(linked))
    if os.getuid():
        pytest.skip("giving a file to another user takes root")
    os.chown(path_of(target), 1, 1)
    _, text = refused(lambda: client.register_system_shared_memory("r", target._shm_key, 64))
    assert "does not belong to user 0" in text


@needs_native
def test_regions_have_a_bound(client: Any, make: Make) -> None:
    handle = make(128)
    for number in range(REGIONS_MAX):
        client.register_system_shared_memory(str(number), handle._shm_key, 128)
    code, text = refused(lambda: client.register_system_shared_memory("more", handle._shm_key, 128))
    assert (code, "has 64 open" in text) == ("RESOURCE_EXHAUSTED", True)


@needs_native
@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        ((48, 81), (48, 0), "Invalid offset + byte size for shared memory region: 'r'"),
        ((48, (1 << 63) - 1), (48, 0), "Invalid offset + byte size"),
        (((1 << 63) - 1, 8), (48, 0), "Invalid offset + byte size"),
        ((0, 0), (48, 0), "'shared_memory_byte_size' of input 'x' must be given and at least 1"),
        ((48, -1), (48, 0), "must not be negative"),
        ((44, 0), (48, 0), "input byte size mismatch"),
        ((52, 0), (48, 0), "input byte size mismatch"),
        ((48, 0), (47, 0), "should be at least 48 bytes to hold the results"),
        ((48, 0), (48, 81), "Invalid offset + byte size"),
    ],
)
def test_what_cannot_be_used(
    client: Any, make: Make, source: tuple[int, int], target: tuple[int, int], text: str
) -> None:
    handle = make(128)
    client.register_system_shared_memory("r", handle._shm_key, 128)
    code, said = refused(lambda: client.infer(MODEL, [inside("r", *source)], outputs=[wanted("r", *target)]))
    assert (code, text in said) == ("INVALID_ARGUMENT", True), said


@needs_native
def test_a_file_that_shrinks_or_goes_costs_its_request_alone(
    client: Any, make: Make, native: ApplianceProcess
) -> None:
    handle, other = make(8192), make(64)
    client.register_system_shared_memory("r", handle._shm_key, 8192)
    client.register_system_shared_memory("fine", other._shm_key, 64)
    os.truncate(path_of(handle), 4096)
    for ask in (
        lambda: client.infer(MODEL, [inside("r", 48, 4080)]),
        lambda: client.infer(MODEL, [inside("fine", 48)], outputs=[wanted("r", 48, 4080)]),
    ):
        code, text = refused(ask)
        assert (code, "smaller than when it was registered" in text) == ("INVALID_ARGUMENT", True)
    client.infer(MODEL, [inside("r", 48)], outputs=[wanted("fine", 48)])
    os.unlink(path_of(handle))
    client.infer(MODEL, [inside("r", 48)], outputs=[wanted("fine", 48)])
    assert native.status()["arena_used_bytes"] == 0, "what failed gave its memory back"


@needs_native
def test_the_appliance_has_no_segment_that_could_be_registered(native: ApplianceProcess) -> None:
    """CVE-2025-23319, CVE-2025-23320, CVE-2025-23334: the tensors of others were in segments that have names."""
    if os.getuid():
        pytest.skip("what the appliance has mapped is closed to others than root")
    mapped = Path(f"/proc/{native.pid}/maps").read_text("utf-8")
    assert "memfd:appliance-tensors" in mapped
    assert "/dev/shm/" not in mapped


@needs_native
def test_memory_of_devices_is_not_shared(client: Any) -> None:
    code, text = refused(lambda: client.register_cuda_shared_memory("r", b"aGFuZGxl", 0, 8))
    assert (code, "CUDA shared memory of clients is not offered" in text) == ("UNIMPLEMENTED", True)


@needs_native
def test_over_tcp_nobody_is_known(native: ApplianceProcess) -> None:
    with triton.InferenceServerClient(native.grpc) as client:
        for ask in (
            lambda: client.register_system_shared_memory("r", "/x", 64),
            client.get_system_shared_memory_status,
            client.unregister_system_shared_memory,
            lambda: client.infer(MODEL, [inside("r", 48)]),
        ):
            code, text = refused(ask)
            assert (code, "connect over a Unix socket" in text) == ("PERMISSION_DENIED", True)


# --- HTTP


@pytest.fixture(scope="module")
def python(models: Path) -> Iterator[Path]:
    """Where the Python front end has its sockets."""
    with TemporaryDirectory(prefix="appliance-test-") as made:
        os.chmod(made, 0o755)
        with started(PYTHON, Path(made), models) as process:
            process.wait_ready()
            yield Path(made)


@pytest.fixture(params=EVERY_FRONT_END)
def path(request: pytest.FixtureRequest) -> str:
    """Where HTTP is spoken over a Unix socket, by each front end."""
    if request.param == "python":
        return f"{request.getfixturevalue('python')}/http"
    request.getfixturevalue("native")
    return f"{request.getfixturevalue('folder')}/http"


def call(path: str, method: str, target: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
    """One exchange over the Unix socket at ``path``."""
    connection = http.client.HTTPConnection("localhost", timeout=30)
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.connect(path)
        connection.request(method, target, None if body is None else json.dumps(body))
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def parameters(nbytes: int, offset: int = 0) -> dict[str, Any]:
    return {
        "shared_memory_region": "r",
        "shared_memory_byte_size": nbytes,
        "shared_memory_offset": offset,
    }


def asked(source: Mapping[str, Any], target: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 6], "parameters": source}],
        "outputs": [{"name": "y", "parameters": target}],
    }


def test_http_of_both_front_ends(path: str, make: Make) -> None:
    handle = make(256)
    shm.set_shared_memory_region(handle, [VALUES])
    region = "/v2/systemsharedmemory/region/r"
    assert call(path, "POST", f"{region}/register", {"key": handle._shm_key, "byte_size": 256}) == (200, {})
    known = [{"name": "r", "key": handle._shm_key, "offset": 0, "byte_size": 256}]
    assert call(path, "GET", f"{region}/status") == (200, known)
    assert call(path, "GET", "/v2/systemsharedmemory/status") == (200, known)
    assert call(path, "POST", f"{region}/register", {"key": "/x", "byte_size": 8})[0] == 409
    infer = f"/v2/models/{MODEL}/infer"
    for _ in range(3):
        status, answer = call(path, "POST", infer, asked(parameters(48), parameters(128, 128)))
        assert status == 200, answer
        assert answer["outputs"] == [
            {"name": "y", "datatype": "FP32", "shape": [2, 6], "parameters": parameters(48, 128)}
        ]
        assert (shm.get_contents_as_numpy(handle, np.float32, [2, 6], 128) == VALUES).all()
        handle._mpsm_handle.buf[128:176] = bytes(48)
    for source, target in (
        (parameters(48, 250), parameters(48)),
        (parameters(40), parameters(48)),
        (parameters(48), parameters(40)),
        ({**parameters(48), "binary_data_size": 48}, parameters(48)),
        (parameters(48), {**parameters(48), "classification": 1}),
    ):
        assert call(path, "POST", infer, asked(source, target))[0] == 400
    os.truncate(path_of(handle), 16)
    status, answer = call(path, "POST", infer, asked(parameters(48), parameters(48)))
    assert (status, "smaller than when it was registered" in answer["error"]) == (400, True)
    for wrong in (
        {},
        {"key": 1, "byte_size": 1},
        {"key": "/x"},
        {"key": "/x", "byte_size": 1, "offset": "1"},
    ):
        assert call(path, "POST", "/v2/systemsharedmemory/region/s/register", wrong)[0] == 400
    assert call(path, "POST", "/v2/systemsharedmemory/register", {"key": "/x", "byte_size": 1})[0] == 400
    assert call(path, "POST", f"{region}/unregister") == (200, {})
    assert call(path, "GET", f"{region}/status")[0] == 404
    assert call(path, "POST", infer, asked(parameters(48), parameters(48)))[0] == 404
    assert call(path, "POST", "/v2/systemsharedmemory/unregister") == (200, {})
    assert call(path, "GET", "/v2/cudasharedmemory/status")[0] == 501


@contextmanager
def as_user(user: int) -> Iterator[None]:
    """Connections that are made meanwhile are this user's, as the kernel has it."""
    if os.getuid():
        pytest.skip("being another user takes root")
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)


def test_regions_are_their_user_s_alone(path: str, make: Make) -> None:
    handle = make(128)
    region = "/v2/systemsharedmemory/region/r"
    register = {"key": handle._shm_key, "byte_size": 128}
    assert call(path, "POST", f"{region}/register", register)[0] == 200
    with as_user(NEIGHBOUR):
        assert call(path, "GET", "/v2/systemsharedmemory/status") == (200, [])
        assert call(path, "GET", f"{region}/status")[0] == 404
        infer = f"/v2/models/{MODEL}/infer"
        assert call(path, "POST", infer, asked(parameters(48), parameters(48)))[0] == 404
        assert call(path, "POST", f"{region}/unregister")[0] == 200
        assert call(path, "POST", "/v2/systemsharedmemory/unregister")[0] == 200
        status, answer = call(path, "POST", f"{region}/register", register)
        assert (status, f"does not belong to user {NEIGHBOUR}" in answer["error"]) == (400, True)
    with as_user(STRANGER):
        status, answer = call(path, "POST", f"{region}/register", register)
        assert (status, f"is not for user {STRANGER}" in answer["error"]) == (403, True)
    assert call(path, "GET", f"{region}/status")[0] == 200
    assert call(path, "POST", f"{region}/unregister")[0] == 200


@needs_native
def test_so_they_are_over_grpc(client: Any, folder: Path, make: Make) -> None:
    handle = make(128)
    client.register_system_shared_memory("r", handle._shm_key, 128)
    with triton.InferenceServerClient(f"unix:{folder}/grpc", channel_args=[OWN_CONNECTION]) as other:
        with as_user(NEIGHBOUR):
            assert other.is_server_live()
        assert not other.get_system_shared_memory_status().regions
        assert refused(lambda: other.infer(MODEL, [inside("r", 48)]))[0] == "NOT_FOUND"
        other.unregister_system_shared_memory()
        _, text = refused(lambda: other.register_system_shared_memory("r", handle._shm_key, 128))
        assert f"does not belong to user {NEIGHBOUR}" in text
    assert set(client.get_system_shared_memory_status().regions) == {"r"}


def test_over_grpc_the_python_front_end_knows_nobody(python: Path) -> None:
    """Its library does not tell whose a connection is; what to do is said."""
    with triton.InferenceServerClient(f"unix:{python}/grpc") as client:
        for ask in (
            client.get_system_shared_memory_status,
            lambda: client.infer(MODEL, [inside("r", 48)]),
        ):
            code, text = refused(ask)
            assert (code, "of [grpc] with the native front end" in text) == ("PERMISSION_DENIED", True)
