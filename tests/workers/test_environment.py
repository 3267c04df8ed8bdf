"""What workers get of the daemon's environment."""

from __future__ import annotations

import pytest

from appliance.domain.device import cuda
from appliance.workers.daemon.zygote_client import environment_of_workers
from appliance.workers.port import ModelRefused
from appliance.workers.settings import WorkerTerms
from tests.workers.bench import ACCESS, Bench, fake


def test_gpus_are_counted_as_the_driver_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    monkeypatch.setenv("CUDA_CACHE_PATH", "/cache")
    environment = environment_of_workers()
    assert "CUDA_VISIBLE_DEVICES" not in environment
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environment["CUDA_CACHE_PATH"] == "/cache"


def test_a_worker_sees_the_device_that_it_is_for_and_no_other(shared_bench: Bench) -> None:
    terms = WorkerTerms(visible={cuda(1): "MIG-b"})
    for device, told in ((cuda(1), "cuda:0 b'MIG-b'"), (cuda(2), "cuda:2 None")):
        settings = terms.settings(0, device)._replace(access=ACCESS).serving([], shared=True, device=device)
        ended = shared_bench.try_load(shared_bench.start(settings), fake("tell_device"))
        assert isinstance(ended, ModelRefused)
        assert ended.reason == told
