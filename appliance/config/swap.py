"""The ``[swap]`` section of the configuration: what a version has to prove before, while and after it takes
over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

HEADER_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")


def header_problems(name: str) -> Iterator[str]:
    """What keeps ``name`` from being the name of a header in gRPC and HTTP alike."""
    if not set(name) <= HEADER_CHARACTERS:
        yield f"'{name}' is not the name of a header in lower case; use letters, digits, '-', '_' and '.'"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapConfig:
    """How versions replace one another. Shares are of the requests that name no version."""

    tries: int = field(
        default=3,
        metadata={"min": 1, "help": "times that an unproven version is tried, across restarts, then no more"},
    )
    retry_first_s: float = field(
        default=600.0,
        metadata={"min": 0, "unit": "s", "help": "a version that was given up is left alone so long; where nothing "
                  "else of its model serves it is tried again then, and the pause doubles with each such try; 0: it is "
                  "left alone until somebody asks"},
    )  # fmt: skip
    slower_factor: float = field(
        default=3.0,
        metadata={"min": 0, "help": "a version is refused whose median run takes so many times that of the one "
                  "it replaces; 0: never"},
    )  # fmt: skip
    shadow_percent: float = field(
        default=0.0,
        metadata={"min": 0, "max": 100, "unit": "%", "help": "requests that a new version answers as well, "
                  "unseen, for comparison; 0: none"},
    )  # fmt: skip
    canary_percent: float = field(
        default=0.0,
        metadata={"min": 0, "max": 100, "unit": "%", "help": "requests, or clients where canary_header is set, "
                  "that a new version serves before the others; 0: none"},
    )  # fmt: skip
    canary_header: str = field(
        default="",
        metadata={
            "help": "header whose value says which client it is; empty: the share is of requests",
            "check": header_problems,
        },
    )
    stage_s: float = field(
        default=5.0,
        metadata={"min": 0, "unit": "s", "help": "shortest time in the shadow and as canary, and before runs are "
                  "found slow"},
    )  # fmt: skip
    trial_requests: int = field(
        default=100,
        metadata={
            "min": 1,
            "help": "answers to compare, or requests to serve, before a new version goes on",
        },
    )
    error_percent: float = field(
        default=1.0,
        metadata={"min": 0, "max": 100, "unit": "%", "help": "requests that may fail beyond the share of those "
                  "that failed before"},
    )  # fmt: skip
    latency_factor: float = field(
        default=2.0,
        metadata={"min": 0, "help": "runs may take so many times as long as before, at the 90th percentile; "
                  "0: any time"},
    )  # fmt: skip
    packed_forms: bool = field(
        default=True, metadata={"help": "build packed forms of proven versions and change over to them"}
    )
    watch_s: float = field(
        default=30.0,
        metadata={"min": 0, "unit": "s", "help": "how long the version before stays loaded, to go back to"},
    )
