"""What workers get of the daemon's environment."""

from __future__ import annotations

import pytest

from appliance.workers.daemon.zygote_client import environment_of_workers


def test_gpus_are_counted_as_the_driver_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    monkeypatch.setenv("CUDA_CACHE_PATH", "/cache")
    environment = environment_of_workers()
    assert "CUDA_VISIBLE_DEVICES" not in environment
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environment["CUDA_CACHE_PATH"] == "/cache"
