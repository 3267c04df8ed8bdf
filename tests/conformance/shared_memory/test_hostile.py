"""Hostile clients on this machine: whatever they do to their regions and say of them, others are answered, and nothing
of the appliance is told."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from appliance.frontend.regions.registry import FILES_MAX, REGIONS_MAX
from tests.appliance_process import ApplianceProcess
from tests.conformance.shared_memory.rig import (
    MODEL,
    OWN_CONNECTION,
    RESERVED,
    VALUES,
    Make,
    inside,
    path_of,
    refused,
    wanted,
)
from tests.frontend.regions.rig import locked
from tests.fronts import needs_native

LARGE = np.arange(300_000, dtype=np.float32).reshape(1, -1)
ROUNDS = 60
HUGE = (1 << 64) - 1

pytestmark = needs_native


@pytest.fixture
def client(native: ApplianceProcess, folder: Path) -> Iterator[Any]:
    with triton.InferenceServerClient(f"unix:{folder}/grpc") as connected:
        yield connected
        connected.unregister_system_shared_memory()


class Bystander:
    """Asks the same model over TCP until the block ends, and is answered right each time."""

    def __init__(self, address: str) -> None:
        self.answered = 0
        self.wrong: list[str] = []
        self._address = address
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        tensor = triton.InferInput("x", list(VALUES.shape), "FP32")
        tensor.set_data_from_numpy(VALUES)
        with triton.InferenceServerClient(self._address, channel_args=[OWN_CONNECTION]) as client:
            while not self._enough.is_set():
                try:
                    answer = client.infer(MODEL, [tensor], client_timeout=30).as_numpy("y")
                    if answer is None or (answer != VALUES).any():
                        self.wrong.append("another answer")
                except InferenceServerException as error:
                    self.wrong.append(str(error))
                self.answered += 1

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()


@contextmanager
def again_and_again(act: Any) -> Iterator[None]:
    """Have a thread do that until the block ends."""
    enough = threading.Event()

    def run() -> None:
        while not enough.is_set():
            act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def large(region: str, offset: int = 0) -> Any:
    tensor = triton.InferInput("x", list(LARGE.shape), "FP32")
    tensor.set_shared_memory(region, LARGE.nbytes, offset)
    return tensor


def pids(process: ApplianceProcess) -> list[int]:
    return [worker["pid"] for worker in process.status()["workers"]]


def test_a_file_that_changes_its_size_while_it_is_used_costs_its_owner_alone(
    client: Any, make: Make, native: ApplianceProcess
) -> None:
    """CVE-2025-23333 and kin: what was checked is not what is used. No SIGBUS ends the daemon, or a worker."""
    handle = make(2 * LARGE.nbytes)
    client.register_system_shared_memory("r", handle._shm_key, 2 * LARGE.nbytes)
    workers, outcomes, ended = pids(native), Counter[str](), threading.Event()
    sizes = (0, 4096, LARGE.nbytes - 1, LARGE.nbytes + 4096, 2 * LARGE.nbytes - 1)

    def change() -> None:
        for size in sizes:
            os.truncate(path_of(handle), size)
            os.truncate(path_of(handle), 2 * LARGE.nbytes)
        if outcomes.total() % 2:  # every other request has it easier
            ended.wait()
            ended.clear()

    with Bystander(native.grpc) as bystander, again_and_again(change):
        while min(outcomes["OK"], outcomes["INVALID_ARGUMENT"], bystander.answered) < ROUNDS:
            try:
                client.infer(MODEL, [large("r")], outputs=[wanted("r", LARGE.nbytes, LARGE.nbytes)])
                outcomes["OK"] += 1
            except InferenceServerException as error:
                outcomes[str(error.status()).removeprefix("StatusCode.")] += 1
            ended.set()
    assert set(outcomes) == {"OK", "INVALID_ARGUMENT"}
    assert not bystander.wrong
    assert native.process.poll() is None
    assert pids(native) == workers
    assert native.status()["arena_used_bytes"] == 0
    shm.set_shared_memory_region(handle, [LARGE])
    client.infer(MODEL, [large("r")], outputs=[wanted("r", LARGE.nbytes, LARGE.nbytes)])
    assert (shm.get_contents_as_numpy(handle, np.float32, LARGE.shape, LARGE.nbytes) == LARGE).all()


def test_a_file_that_is_locked_for_ever_holds_up_nobody(
    client: Any, make: Make, native: ApplianceProcess
) -> None:
    handle = make(128)
    shm.set_shared_memory_region(handle, [VALUES])
    client.register_system_shared_memory("r", handle._shm_key, 128)
    with Bystander(native.grpc) as bystander, locked(Path(path_of(handle))):
        client.infer(MODEL, [inside("r", 48)], outputs=[wanted("r", 48, 64)])
        assert (shm.get_contents_as_numpy(handle, np.float32, [2, 6], 64) == VALUES).all()
        client.unregister_system_shared_memory("r")
        assert client.is_server_live()
    assert not bystander.wrong


def test_registering_without_end_takes_no_more_than_a_user_may_have(
    client: Any, make: Make, native: ApplianceProcess
) -> None:
    handle = make(4096)
    files = Path(f"/proc/{native.pid}/fd")
    before = len(list(files.iterdir()))
    for number in range(1000):
        with suppress(InferenceServerException):
            client.register_system_shared_memory(f"{number}", handle._shm_key, 4096)
        if number % 3 == 0:
            client.unregister_system_shared_memory("" if number % 2 else f"{number}")
        if number % 100 == 0:
            assert len(list(files.iterdir())) < before + FILES_MAX + 8
    assert len(client.get_system_shared_memory_status().regions) <= REGIONS_MAX
    client.unregister_system_shared_memory()
    client.register_system_shared_memory("r", handle._shm_key, 4096)


def test_no_error_tells_anything_of_the_appliance_s(
    client: Any, make: Make, native: ApplianceProcess, folder: Path, models: Path
) -> None:
    """CVE-2025-23320: an error had the name of a server's own segment, which could then be registered (CVE-2025-23319,
    CVE-2025-23334)."""
    handle = make(128)
    client.register_system_shared_memory("fine", handle._shm_key, 128)
    odd = triton.InferInput("x", [1, 1 << 30], "FP32")
    odd.set_shared_memory("fine", 128)
    memory = f"/proc/{native.pid}/fd/"
    said = [refused(lambda: client.infer(MODEL, [odd]))[1]]

    def register(key: str) -> object:
        return client.register_system_shared_memory("r", key, 64)

    def use(source: tuple[int, int], target: tuple[int, int] = (48, 0)) -> object:
        return client.infer(MODEL, [inside("fine", *source)], outputs=[wanted("fine", *target)])

    keys = ("/nothing", f"/{RESERVED}1", "../self/maps", memory, "/memfd:appliance-tensors", "a" * 5000)
    said += [refused(partial(register, key))[1] for key in keys]
    places = ((HUGE >> 1, 0), (64, HUGE >> 1), (129, 0), (48, 100))
    said += [refused(partial(use, place))[1] for place in places]
    said += [refused(partial(use, (48, 0), place))[1] for place in places]
    os.truncate(path_of(handle), 0)
    said.append(refused(lambda: client.infer(MODEL, [inside("fine", 48)]))[1])
    for text in said:
        text = text.replace(memory, "").replace("/memfd:appliance-tensors", "")
        for ours in ("memfd", "appliance-", "/proc", str(native.pid), str(folder), str(models)):
            assert ours not in text.replace(handle._shm_key, ""), text


@pytest.mark.parametrize(
    "kind", ["pipe", "folder", "device", "socket", "link to the appliance's memory", "leased"]
)
def test_what_is_no_plain_file_is_none(client: Any, native: ApplianceProcess, kind: str) -> None:
    key = f"/appliance-test-{uuid.uuid4().hex}"
    path = Path(f"/dev/shm{key}")
    with suppress(PermissionError):
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "device":
            os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(path))
        elif kind == "leased":
            path.write_bytes(bytes(64))
        else:
            ours = next(
                each for each in Path(f"/proc/{native.pid}/fd").iterdir() if "memfd" in os.readlink(each)
            )
            path.symlink_to(ours)
    if not os.path.lexists(path):
        pytest.skip("this user may make none")
    lease = os.open(path, os.O_RDONLY) if kind == "leased" else -1
    told = signal.signal(signal.SIGIO, signal.SIG_IGN)  # that somebody would open it
    try:
        if lease >= 0:
            fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        code, _ = refused(lambda: client.register_system_shared_memory("r", key, 1))
        assert code == "INVALID_ARGUMENT"
        assert client.is_server_live()
    finally:
        path.rmdir() if kind == "folder" else path.unlink()
        if lease >= 0:
            os.close(lease)
        signal.signal(signal.SIGIO, told)


def test_outputs_may_lie_where_inputs_do(client: Any, make: Make) -> None:
    """Inputs were copied before; of two outputs the later one is what is left."""
    handle = make(256)
    metadata = client.get_model_metadata("add_sub")
    shape = [1, *metadata.inputs[0].shape[1:]]
    one, two = np.full(shape, 7, np.int32), np.full(shape, 2, np.int32)
    shm.set_shared_memory_region(handle, [one, two])
    client.register_system_shared_memory("r", handle._shm_key, 256)
    inputs, outputs = [], []
    for index, (source, target) in enumerate(zip(metadata.inputs, metadata.outputs, strict=True)):
        inputs.append(triton.InferInput(source.name, shape, "INT32"))
        inputs[-1].set_shared_memory("r", one.nbytes, index * one.nbytes)
        outputs.append(triton.InferRequestedOutput(target.name))
        outputs[-1].set_shared_memory("r", one.nbytes, index * one.nbytes)
    client.infer("add_sub", inputs, outputs=outputs)
    assert (shm.get_contents_as_numpy(handle, np.int32, shape, 0) == one + two).all()
    assert (shm.get_contents_as_numpy(handle, np.int32, shape, one.nbytes) == one - two).all()
    outputs[1].set_shared_memory("r", one.nbytes, 0)
    client.infer("add_sub", inputs, outputs=outputs)


def test_a_client_that_goes_while_its_answer_is_written_leaves_nothing(
    client: Any, make: Make, native: ApplianceProcess
) -> None:
    handle = make(2 * LARGE.nbytes)
    client.register_system_shared_memory("r", handle._shm_key, 2 * LARGE.nbytes)
    for _ in range(ROUNDS):
        with suppress(InferenceServerException):
            client.infer(
                MODEL,
                [large("r")],
                outputs=[wanted("r", LARGE.nbytes, LARGE.nbytes)],
                client_timeout=0.002,
            )
    native.until("nothing is held", lambda status: status["arena_used_bytes"] == 0)
