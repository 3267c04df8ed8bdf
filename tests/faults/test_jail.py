"""A model that takes its worker over reaches nothing but itself: not the box, not the daemon, not the other models."""

from __future__ import annotations

import ast
import os
import re
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from appliance.workers.jail.support import kernel_support
from tests.conftest import Serve
from tests.faults.fake_models import write_fake
from tests.runtimes.hostile import Targets, reached, read_attempts
from tests.runtimes.shared_memory import complement

SMALL = 64 << 10
"""All that shared memory is made of is looked through."""
KEPT_FROM = ["files", "network", "signals", "calls"]
whole_jail = pytest.mark.skipif(bool(kernel_support().lacking), reason=str(kernel_support().lacking))


def try_everything(address: str, daemon: int) -> str:
    """What the hostile model says that it reached."""
    feed = triton.InferInput("x", [1, 4], "UINT8")
    feed.set_data_from_numpy(np.frombuffer(daemon.to_bytes(4, "little"), dtype=np.uint8).reshape(1, 4))
    with triton.InferenceServerClient(address) as client, pytest.raises(InferenceServerException) as caught:
        client.infer("hostile", [feed])
    return str(caught.value)


def echoed(address: str, content: bytes) -> bool:
    """Whether the neighbour answers as it should."""
    feed = triton.InferInput("x", [1, len(content)], "UINT8")
    feed.set_data_from_numpy(np.frombuffer(content, dtype=np.uint8).reshape(1, -1))
    with triton.InferenceServerClient(address) as client:
        return bool(client.infer("neighbour", [feed]).as_numpy("y").tobytes() == content)


@whole_jail
@pytest.mark.every_front_end
@pytest.mark.parametrize("processes", [64, 1])
def test_a_hostile_model_reaches_nothing(serve: Serve, tmp_path: Path, processes: int) -> None:
    """In a process of its own and in one that models share, where it can read the other models and their tensors, as is
    said."""
    tensor = os.urandom(32)
    models, secret = tmp_path / "models", tmp_path / "server.key"
    secret.write_text("a private key")
    write_fake(models, "neighbour", width=len(tensor))
    (models / "neighbour/1/weights").write_text("w")
    abstract = f"appliance-jail-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listening, socket.create_server(("127.0.0.1", 0)) as tcp:
        listening.bind(f"\0{abstract}")
        listening.listen()
        write_fake(
            models,
            "hostile",
            files=f"{secret}:{models}/neighbour/1/weights" if processes > 1 else str(secret),
            directories=f"{tmp_path}:{models}" if processes > 1 else str(tmp_path),
            control=tmp_path / "control",
            abstract=abstract,
            port=tcp.getsockname()[1],
            tensor=complement(tensor if processes > 1 else os.urandom(32)),
        )
        for config in models.glob("*/config.pbtxt"):
            config.write_text(config.read_text().replace('backend: "fake"', 'backend: "hostile"', 1))
        (models / "hostile/1/own").write_text("its own")
        daemon = serve(
            models,
            {
                "repository": {"runtimes": ["hostile"]},
                "placement": {"max_processes": processes},
                "control": {"socket": str(tmp_path / "control")},
                "workers": {"confinement": "required"},
                "arena": {"classes": [[4096, 64], [SMALL, 16]]},
                "grpc": {"max_message_bytes": SMALL},
                "http": {"max_body_bytes": SMALL},
            },
            environment={"APPLIANCE_TEST_SECRET": "x"},
        )
        before = confinement(daemon.status())
        assert all(echoed(daemon.grpc, tensor) for _ in range(3)), (
            "first by the engine, then by the front end"
        )
        said = try_everything(daemon.grpc, daemon.pid)
        found = re.search(r"tried (\d+); own file (.*); reached (\[.*\])", said)
        assert found, said
        assert ast.literal_eval(found[3]) == []
        assert int(found[1]) > 80
        assert found[2] == "read", "its own files are its own"
        assert before
        assert all(each == KEPT_FROM for each in before)
        assert echoed(daemon.grpc, tensor)
        assert secret.read_text() == "a private key"
        assert (models / "hostile/1/own").read_text() == "its own"
        assert not list(tmp_path.rglob("planted"))


def confinement(document: Any) -> list[list[str]]:
    return [worker["confinement"] for worker in document["workers"]]


def test_what_is_tried_would_be_reached_without_a_jail(tmp_path: Path) -> None:
    """Else the count of nothing would say nothing."""
    secret = tmp_path / "server.key"
    secret.write_text("a private key")
    targets = Targets(os.getpid(), str(secret), (str(secret),), (str(tmp_path),), (), 1)
    names, tried = reached(read_attempts(targets))
    assert len(names) > tried / 2
    assert f"read {secret}" in names
