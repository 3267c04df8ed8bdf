"""How far a version is on its way to serving, by what an appliance says of itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from appliance.cli.snapshot import trial_words
from appliance.core.rollout.reasons import Outlook
from appliance.domain.quantity import bytes_text
from appliance.engine.port import NEVER

STEPS: Final[Mapping[str, tuple[float, str]]] = MappingProxyType(
    {
        "waiting": (0.0, "waits for its turn"),
        "reading": (0.02, "reads the weights"),
        "session": (0.5, "makes the session"),
        "warm-up": (0.65, "warm-up"),
        "golden": (0.7, "golden set"),
        "measuring": (0.8, "measures runs"),
        "shadow": (0.85, "shadow"),
        "canary": (0.9, "canary"),
    }
)
"""Where on the way each stage begins, and how a person is told. Reading lasts until the session's begin."""
TRIALS: Final = frozenset({"shadow", "canary"})


@dataclass(frozen=True, slots=True, kw_only=True)
class InProgress:
    """``share`` of the way is behind it; ``text`` says what it is at."""

    share: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """It serves, or is on trial where that was asked for; ``text`` says which, ``remark`` what is odd about it."""

    text: str
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """It will not serve; ``reason`` is the appliance's, or what else came of it."""

    reason: str


Progress = InProgress | Done | Failed


def progress_of(
    document: Mapping[str, Any], name: str, version: int, generation: int, *, trial: bool
) -> Progress:
    """Of version ``version`` in ``/status.json``, which was asked for by the catalog ``generation``. ``trial``: it is
    to be tried beside the one that serves, and not more."""
    store = document["store"]
    if store["generation"] < generation:
        trouble = f": {store['trouble']}" if store["trouble"] else ""
        return InProgress(share=0.0, text=f"the appliance has not seen the catalog yet{trouble}")
    entry = next((e for e in document["models"] if (e["name"], e["version"]) == (name, version)), None)
    if entry is None:
        return Failed(reason="the appliance does not want it; did another change come after this one?")
    reason = entry["reason"]
    if _is_on_its_way(entry):
        return _stage(entry, trial)
    if entry["state"] == "READY":
        if _is_coming(entry):
            return InProgress(share=STEPS["waiting"][0], text=reason)
        untried = entry.get("untried", "")  # an appliance of an earlier release does not say it
        remark = f"went live without the configured trial: {untried}" if untried else ""
        return Failed(reason=reason) if reason else Done(text="is live", remark=remark)
    return Failed(reason=reason or f"it is {entry['state'].lower()}")


def _is_on_its_way(entry: Mapping[str, Any]) -> bool:
    """Whether it loads or is on trial, where it may answer requests already."""
    return entry["state"] == "LOADING" or (entry["trial"] is not None and entry["trial"]["stage"] in TRIALS)


def _is_coming(entry: Mapping[str, Any]) -> bool:
    """Whether what was asked for last may still take the place of what serves."""
    outlook = Outlook(
        entry.get("outlook", Outlook.AS_WANTED)
    )  # an appliance of an earlier release does not say it
    return outlook.is_coming and _waiting(entry) != NEVER


def _waiting(entry: Mapping[str, Any]) -> str:
    return str(entry.get("waiting", ""))


def loading_of(document: Mapping[str, Any], name: str) -> InProgress | None:
    """How far the newest version of the model is that is loading; None when none is."""
    entries = [e for e in document["models"] if e["name"] == name and _is_on_its_way(e)]
    found = _stage(entries[-1], trial=False) if entries else None
    return found if isinstance(found, InProgress) else None


def _stage(entry: Mapping[str, Any], trial: bool) -> Progress:
    found = entry["trial"]
    if found is not None and found["stage"] in TRIALS:
        share, word = STEPS[found["stage"]]
        text = f"{word}: {', '.join(trial_words(found))}"
        return Done(text=f"is on trial ({text})") if trial else InProgress(share=share, text=text)
    loading = entry["loading"]
    if loading is None and _waiting(entry) == NEVER:
        return Failed(reason=entry["reason"])
    if loading is None:
        share, word = STEPS["waiting"]
        return InProgress(share=share, text=entry["reason"] or word)
    share, word = STEPS.get(loading["stage"], STEPS["session"])
    done, total = loading["done_bytes"], loading["total_bytes"]
    if loading["stage"] == "reading" and total:
        share += (STEPS["session"][0] - share) * done / total
        word = f"{word}: {bytes_text(done)} of {bytes_text(total)}"
    return InProgress(share=share, text=word)
