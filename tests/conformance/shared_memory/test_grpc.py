"""System shared memory of clients on this machine, by Triton's own utilities, unmodified, over gRPC and Unix sockets:
by the native front end, which tells whose a connection is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import serialize_byte_tensor

from appliance.frontend.regions.registry import REGIONS_MAX
from tests.appliance_process import ApplianceProcess
from tests.architecture.sources import ROOT
from tests.conformance.shared_memory.rig import (
    MODEL,
    NEIGHBOUR,
    OWN_CONNECTION,
    RESERVED,
    VALUES,
    Make,
    as_user,
    inside,
    path_of,
    refused,
    wanted,
)
from tests.faults.gate import Gate
from tests.fronts import needs_native


@pytest.fixture
def client(native: ApplianceProcess, folder: Path) -> Iterator[Any]:
    with triton.InferenceServerClient(f"unix:{folder}/grpc") as connected:
        yield connected
        connected.unregister_system_shared_memory()


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
    (said,) = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == (f"{said}\n", "")
    assert not client.get_system_shared_memory_status().regions


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
def test_a_region_that_is_unregistered_while_it_is_used_is_used_to_the_end(
    client: Any, make: Make, models: Path
) -> None:
    handle = make(16)
    handle._mpsm_handle.buf[:8] = bytes(range(8))
    client.register_system_shared_memory("r", handle._shm_key, 16)
    tensor = triton.InferInput("x", [1, 4], "UINT8")
    tensor.set_shared_memory("r", 4, 4)
    answers: Queue[tuple[Any, Any]] = Queue()
    with Gate(models / "gate") as gate:
        client.async_infer(
            "gated",
            [tensor],
            lambda result, error: answers.put((result, error)),
            outputs=[wanted("r", 4, 12)],
        )
        gate.reached()
        client.unregister_system_shared_memory("r")
        handle._mpsm_handle.buf[:8] = bytes(8)
        assert refused(lambda: client.infer("gated", [tensor]))[0] == "NOT_FOUND"
    assert answers.get(timeout=30)[1] is None
    assert bytes(handle._mpsm_handle.buf[12:16]) == bytes(range(4, 8)), "neither lost nor read again"


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
def test_a_client_may_forget_its_regions_of_either_kind_before_it_begins(client: Any, make: Make) -> None:
    """As all examples of Triton do, those for system shared memory too."""
    handle = make(64)
    client.register_system_shared_memory("r", handle._shm_key, 64)
    client.unregister_cuda_shared_memory()
    client.unregister_cuda_shared_memory("r")
    assert not client.get_cuda_shared_memory_status().regions
    code, text = refused(lambda: client.get_cuda_shared_memory_status("r"))
    assert (code, "Unable to find cuda shared memory region: 'r'" in text) == ("NOT_FOUND", True)
    assert set(client.get_system_shared_memory_status().regions) == {"r"}, "another kind"


@needs_native
def test_over_tcp_nobody_is_known(native: ApplianceProcess) -> None:
    with triton.InferenceServerClient(native.grpc) as client:
        for ask in (
            lambda: client.register_system_shared_memory("r", "/x", 64),
            client.get_system_shared_memory_status,
            client.unregister_system_shared_memory,
            client.get_cuda_shared_memory_status,
            client.unregister_cuda_shared_memory,
            lambda: client.infer(MODEL, [inside("r", 48)]),
        ):
            code, text = refused(ask)
            assert (code, "connect over a Unix socket" in text) == ("PERMISSION_DENIED", True)


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
