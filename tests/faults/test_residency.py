"""More models than memory: real processes come and go, and clients see answers or an honest refusal."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import threading
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from models.generators.transformer import SIZES, Size, write_transformer
from tests.conftest import Serve
from tests.faults.clients import FAKE_SECTIONS, Stream, ask, tensor
from tests.faults.fake_models import write_fake
from tests.faults.test_swaps import entry
from tests.fronts import NATIVE, needs_native
from tests.workers.mapped_files import resident_bytes

MIB = 1 << 20
ALONE = {"placement": {"share_below_bytes": 0}}


def residency(document: Any) -> dict[str, str]:
    """How much of each model is in memory."""
    return {entry["name"]: entry["residency"] for entry in document["models"]}


def all_ready(document: Any) -> bool:
    return all(entry["state"] == "READY" for entry in document["models"])


def evictable_models(root: Path, count: int) -> None:
    """Fake models of 64 MiB that evicting their weights gives back."""
    for number in range(count):
        write_fake(root, f"m{number}", evictable_bytes=64 * MIB)


def budget(models: int) -> dict[str, Any]:
    """Memory for so many of those, and for all of them without weights."""
    return {**FAKE_SECTIONS, **ALONE, "residency": {"budget_bytes": (models * 64 + 60) * MIB}}


@pytest.mark.every_front_end
def test_a_model_whose_weights_are_evicted_is_ready_and_answers(serve: Serve, tmp_path: Path) -> None:
    evictable_models(tmp_path, 4)
    daemon = serve(tmp_path, budget(2))
    document = daemon.until("all ready", all_ready)
    forms = residency(document)
    assert sorted(forms.values()).count("resident") == 2
    for name in [name for name, form in forms.items() if form == "weights_evicted"]:
        assert ask(daemon.grpc, name).as_numpy("y").tolist() == [[0, 1, 2, 3]]
    document = daemon.status()
    assert document["residency"]["page_ins"] >= 1
    assert document["residency"]["used_bytes"] <= document["residency"]["budget_bytes"]
    assert len(document["workers"]) == 4, "models without weights keep their processes"


@pytest.mark.every_front_end
def test_models_that_push_each_other_out_answer_everything(serve: Serve, tmp_path: Path) -> None:
    evictable_models(tmp_path, 5)
    daemon = serve(tmp_path, budget(2))
    daemon.until("all ready", all_ready)
    streams = [Stream(daemon.grpc, f"m{number}", threads=1, first=number) for number in range(5)]
    for stream in streams:
        stream.__enter__()
    for stream in streams:
        stream.wait_for(20)
    for stream in streams:
        stream.__exit__(None, None, None)
        assert set(stream.outcomes) == {"OK"}
        assert stream.wrong == 0
    assert daemon.status()["residency"]["evictions"] > 5


@pytest.mark.every_front_end
def test_memory_that_a_model_takes_with_its_runs_is_not_there_for_others(
    serve: Serve, tmp_path: Path
) -> None:
    """What loads took had counted alone: a runtime keeps the memory of the largest batch that it ran."""
    write_fake(tmp_path, "eater", mode="eat_memory", bytes=40 * MIB)
    for name in ("one", "other"):
        write_fake(tmp_path, name, hold_bytes=40 * MIB)
    limit = 200 * MIB
    daemon = serve(tmp_path, {**FAKE_SECTIONS, **ALONE, "residency": {"budget_bytes": limit}})
    before = daemon.until("all ready", all_ready)
    assert set(residency(before).values()) == {"resident"}
    for _ in range(3):
        ask(daemon.grpc, "eater")

    def made_room(document: Any) -> bool:
        return sorted(residency(document).values()) == ["cold", "resident", "resident"]

    crowded = daemon.until("one left", made_room)
    assert residency(crowded)["eater"] == "resident"
    used = [document["residency"]["used_bytes"] for document in (before, crowded)]
    assert used[0] + 60 * MIB < used[1] <= limit
    away = next(name for name, form in residency(crowded).items() if form == "cold")
    assert ask(daemon.grpc, away).as_numpy("y").tolist() == [[0, 1, 2, 3]]
    (process,) = [each["pid"] for each in crowded["workers"] if each["models"] == ["eater/1"]]
    os.kill(process, signal.SIGKILL)
    for name in ("one", "other", "eater"):
        ask(daemon.grpc, name)
    document = daemon.until(
        "what went with the process counts no more", lambda it: set(residency(it).values()) == {"resident"}
    )
    assert document["residency"]["used_bytes"] < limit


@pytest.mark.every_front_end
def test_a_pinned_model_that_takes_all_memory_with_its_runs_keeps_no_other_away(
    serve: Serve, tmp_path: Path
) -> None:
    """What others take was refused for good beside it."""
    write_fake(tmp_path, "eater", mode="eat_memory", bytes=60 * MIB)
    for name in ("one", "other"):
        write_fake(tmp_path, name, hold_bytes=60 * MIB)
    limit = 200 * MIB
    sections = {**FAKE_SECTIONS, **ALONE, "residency": {"budget_bytes": limit, "pins": ["eater"]}}
    daemon = serve(tmp_path, sections)
    daemon.until("all ready", all_ready)
    for _ in range(4):
        ask(daemon.grpc, "eater")
    crowded = daemon.until("one left", lambda it: min(residency(it).values()) == "cold")
    assert residency(crowded)["eater"] == "resident"
    assert crowded["residency"]["used_bytes"] <= limit
    for name in ("one", "other", "one", "one", "one", "one"):
        assert ask(daemon.grpc, name).as_numpy("y").tolist() == [[0, 1, 2, 3]]
    document = daemon.status()["residency"]
    assert document["refused"] == 0
    assert document["loads"] <= 3, "the last that came stays"
    assert document["problems"] == []


def test_a_worker_killed_while_weights_are_evicted_or_paged_in_costs_nobody_an_answer(
    serve: Serve, tmp_path: Path
) -> None:
    evictable_models(tmp_path, 4)
    sections = {**budget(1), "restart": {"quarantine_after": 100}}
    daemon = serve(tmp_path, sections)
    daemon.until("all ready", all_ready)
    with Stream(daemon.grpc, "m0", threads=1) as one, Stream(daemon.grpc, "m1", threads=1) as other:
        for _ in range(6):
            one.wait_for(2)
            document = daemon.status()
            for worker in document["workers"]:
                if (
                    worker["models"]
                    and residency(document)[worker["models"][0].split("/")[0]] == "weights_evicted"
                ):
                    os.kill(worker["pid"], signal.SIGKILL)
            other.wait_for(2)
    assert set(one.outcomes) == set(other.outcomes) == {"OK"}


def test_a_deadline_too_short_for_the_load_is_refused_at_once_and_says_when(
    serve: Serve, tmp_path: Path
) -> None:
    write_fake(tmp_path, "a")
    write_fake(tmp_path, "b")
    sections = {**FAKE_SECTIONS, **ALONE, "residency": {"budget_bytes": 6 * MIB}}
    daemon = serve(tmp_path, sections)
    daemon.until("all ready", all_ready)
    away = next(name for name, form in residency(daemon.status()).items() if form == "cold")
    body = json.dumps(
        {
            "inputs": [{"name": "x", "datatype": "UINT8", "shape": [1, 4], "data": [0, 1, 2, 3]}],
            "parameters": {"timeout": 1_000},
        }
    )
    request = urllib.request.Request(
        f"http://{daemon.http}/v2/models/{away}/infer",
        body.encode(),
        {"Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=30)
    with caught.value as refused:
        assert refused.code == 429
        assert "not in memory" in refused.read().decode()
        assert int(refused.headers["Retry-After-Ms"]) > 1
    document = daemon.until("loaded for who comes back", lambda it: residency(it)[away] == "resident")
    assert document["residency"]["refused"] == 1
    assert ask(daemon.grpc, away).as_numpy("y") is not None


def test_pins_stay(serve: Serve, tmp_path: Path) -> None:
    evictable_models(tmp_path, 4)
    sections = budget(2)
    sections["residency"]["pins"] = ["m0"]
    daemon = serve(tmp_path, sections)
    daemon.until("all ready", all_ready)
    for turn in range(3):
        for number in range(1, 4):
            ask(daemon.grpc, f"m{number}", first=turn)
            assert residency(daemon.status())["m0"] == "resident"


def test_many_cold_models_serve_a_zipf_trace_without_an_error(serve: Serve, tmp_path: Path) -> None:
    count, width = 16, SIZES[1].width
    for number in range(count):
        write_transformer(tmp_path / f"m{number:02}", SIZES[1], seed=number + 1)
    daemon = serve(tmp_path, {**ALONE, "residency": {"budget_bytes": 36 * MIB}})
    document = daemon.until("all ready", all_ready, 60.0)
    assert 0 < list(residency(document).values()).count("resident") < count
    outcomes: Counter[str] = Counter()
    x = np.ones((1, 16, width), dtype=np.float32)

    def run(seed: int) -> None:
        chance, client = random.Random(seed), triton.InferenceServerClient(daemon.grpc)
        feed = triton.InferInput("x", [1, 16, width], "FP32")
        feed.set_data_from_numpy(x)
        for _ in range(15):
            number = min(int(chance.paretovariate(0.8)) - 1, count - 1)
            try:
                answer = client.infer(f"m{number:02}", [feed], client_timeout=60.0).as_numpy("y")
                outcomes["OK" if answer is not None and np.isfinite(answer).all() else "wrong"] += 1
            except InferenceServerException as error:
                outcomes[str(error)] += 1
        client.close()

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dict(outcomes) == {"OK": 45}
    assert daemon.status()["residency"]["loads"] > 0


@pytest.mark.every_front_end
def test_a_large_model_comes_back_with_a_quick_session_and_is_given_the_fast_one(
    serve: Serve, tmp_path: Path
) -> None:
    size = Size(512, 3)
    for name in ("a", "b"):
        write_transformer(tmp_path / name, size)
    daemon = serve(tmp_path, {**ALONE, "residency": {"budget_bytes": 70 * MIB}})
    daemon.until("all ready", all_ready, 60.0)
    feed = triton.InferInput("x", [1, 16, size.width], "FP32")
    feed.set_data_from_numpy(np.full((1, 16, size.width), 0.5, dtype=np.float32))
    client = triton.InferenceServerClient(daemon.grpc)
    answers = []
    for turn in range(4):
        name = "ab"[turn % 2]
        answers.append(client.infer(name, [feed], client_timeout=60.0).as_numpy("y"))
        daemon.until(
            "the fast session, whose weights are copies",
            lambda it, name=name: any(
                worker["models"] == [f"{name}/1"]
                and worker["memory_bytes"] > 30 * MIB
                and resident_bytes(worker["pid"], str(tmp_path)) < MIB
                for worker in it["workers"]
            ),
        )
        answers.append(client.infer(name, [feed], client_timeout=60.0).as_numpy("y"))
    client.close()
    for each in answers[1:]:
        np.testing.assert_allclose(each, answers[0], rtol=1e-4, atol=1e-5)
    assert daemon.status()["residency"]["loads"] >= 3


@needs_native
def test_a_model_that_comes_back_is_served_by_the_front_end_again(serve: Serve, tmp_path: Path) -> None:
    evictable_models(tmp_path, 3)
    daemon = serve(tmp_path, {**budget(1), **NATIVE})
    daemon.until("all ready", all_ready)
    for turn in range(2):
        for name in ("m0", "m1"):
            client = triton.InferenceServerClient(daemon.grpc)
            for _ in range(20):
                client.infer(name, [tensor(turn)])
            client.close()
            wanted = 15 * (turn + 1)
            daemon.until(
                "leased requests",
                lambda it, name=name, wanted=wanted: next(
                    entry["leased"] >= wanted for entry in it["models"] if entry["name"] == name
                ),
            )
    assert daemon.status()["residency"]["page_ins"] >= 2


def test_a_version_whose_weights_are_evicted_is_replaced_like_any_other(serve: Serve, tmp_path: Path) -> None:
    evictable_models(tmp_path, 3)
    daemon = serve(tmp_path, {**budget(1), "swap": {"watch_s": 0.0}})
    document = daemon.until(
        "one in memory, the others without weights",
        lambda it: (
            all_ready(it)
            and sorted(residency(it).values()) == ["resident", "weights_evicted", "weights_evicted"]
        ),
    )
    away = next(name for name, form in residency(document).items() if form == "weights_evicted")
    with Stream(daemon.grpc, away, threads=2) as stream:
        write_fake(tmp_path, away, evictable_bytes=64 * MIB, versions=(2,))
        shutil.rmtree(tmp_path / away / "1")
        daemon.signal(signal.SIGHUP)
        daemon.until(
            "version 2 alone",
            lambda it: (
                [e["version"] for e in it["models"] if e["name"] == away and e["state"] == "READY"] == [2]
            ),
        )
        stream.wait_for(10)
    assert set(stream.outcomes) == {"OK"}


def test_a_load_that_dies_of_memory_costs_its_model_alone_and_not_for_ever(
    serve: Serve, tmp_path: Path
) -> None:
    evictable_models(tmp_path, 1)
    write_transformer(tmp_path / "big", SIZES[10])
    swap = {"watch_s": 0.1, "retry_first_s": 0.5}
    daemon = serve(tmp_path, {**budget(1), "swap": swap, "residency": {"budget_bytes": 70 * MIB}})
    daemon.until("both ready", all_ready)
    client = triton.InferenceServerClient(daemon.grpc)
    feed = triton.InferInput("x", [1, 16, SIZES[10].width], "FP32")
    feed.set_data_from_numpy(np.ones((1, 16, SIZES[10].width), dtype=np.float32))
    ask(daemon.grpc, "m0")
    document = daemon.until("the other out of memory", lambda it: residency(it)["big"] == "cold")
    zygote = parent_of(document["workers"][0]["pid"])
    limits = resource.prlimit(zygote, resource.RLIMIT_DATA)
    resource.prlimit(zygote, resource.RLIMIT_DATA, (data_bytes(zygote) + 16 * MIB, limits[1]))
    with pytest.raises(InferenceServerException):
        client.infer("big", [feed], client_timeout=30.0)
    document = daemon.until("its end", lambda it: entry(it, "big")["state"] == "UNAVAILABLE")
    assert document["residency"]["unloads"] + document["residency"]["evictions"] >= 2, "the other made room"
    assert ask(daemon.grpc, "m0").as_numpy("y").tolist() == [[0, 1, 2, 3]]
    resource.prlimit(zygote, resource.RLIMIT_DATA, limits)
    document = daemon.until("its return without anybody asking", all_ready)
    assert client.infer("big", [feed], client_timeout=30.0).as_numpy("y") is not None
    assert document["swaps"]["retries"] >= 1
    client.close()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def data_bytes(pid: int) -> int:
    """What counts towards RLIMIT_DATA."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmData:")) * 1024
