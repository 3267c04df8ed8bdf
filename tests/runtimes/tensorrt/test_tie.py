"""What an engine is tied to. There is no driver here: the other process says so."""

from __future__ import annotations

import json

from appliance.runtimes.tensorrt.tie import Driver, find_driver, read_driver, tie_of

DRIVER = Driver(release="580.159", devices=("NVIDIA H200 GPU-1",))


def test_it_changes_with_all_that_an_engine_depends_on() -> None:
    ties = [
        tie_of("TensorRT 11.4", DRIVER),
        tie_of("TensorRT 11.5", DRIVER),
        tie_of("TensorRT 11.4", Driver(release="590", devices=DRIVER.devices)),
        tie_of("TensorRT 11.4", Driver(release="580.159", devices=("NVIDIA H200 GPU-2",))),
        tie_of("TensorRT 11.4", Driver(release="580.159", devices=(*DRIVER.devices, "NVIDIA L4 GPU-3"))),
    ]
    assert len(set(ties)) == len(ties)
    assert ties[0] == "TensorRT 11.4, driver 580.159, NVIDIA H200 GPU-1"


def test_what_another_process_says_is_read_or_told_as_a_problem() -> None:
    said = {"release": "580.159", "devices": ["NVIDIA H200 GPU-1"], "problem": ""}
    assert read_driver(json.dumps(said), 0) == DRIVER
    for nonsense in ("", "{}", "[]", '{"release": 1, "devices": 2, "problem": 3}'):
        found = read_driver(nonsense, -11)
        assert not found.devices
        assert "ended with status -11" in found.problem


def test_the_driver_is_asked_in_another_process() -> None:
    found = find_driver()
    assert bool(found.devices) is not bool(found.problem)
    assert found.release or found.problem
