"""What of a device, as the controller tells of it, is not as wanted."""

from __future__ import annotations

from typing import Any


def drift_of(device: dict[str, Any]) -> dict[str, Any]:
    """What differs on a device; empty where nothing does."""
    waiting = [
        {key: model[key] for key in ("name", "wanted", "serving", "phase", "reason")}
        for model in device["models"]
        if model["managed"] and model["wanted"] != model["serving"]
    ]
    by_hand = [
        {key: entry[key] for key in ("model", "what", "version", "who", "since_ms")}
        for entry in device["drift"]
    ]
    problems = list(device["problems"])
    if device["converged"] and device["state"] == "active" and not (waiting or by_hand or problems):
        return {}
    told = {key: device[key] for key in ("name", "state", "seen_ms", "converged")}
    return {**told, "problems": problems, "by_hand": by_hand, "waiting": waiting}
