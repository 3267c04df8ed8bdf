"""The Prometheus client library: what it knows about this process. The only file that imports it.

The families of models and workers are written by ``exposition``, which says why.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Gauge, GCCollector, ProcessCollector, generate_latest

from appliance import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """The ``[metrics]`` section: what ``/metrics`` says."""

    triton_names: bool = field(
        default=False, metadata={"help": "add the nv_inference_* names that Triton dashboards use"}
    )
    stage_histograms: bool = field(
        default=True,
        metadata={"help": "a latency histogram per stage (queue, gather, run, scatter) and version"},
    )


class ProcessMetrics:
    """CPU, memory, descriptors and garbage collection of this process, and what was built. Has a registry of
    its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        build = Gauge(
            "appliance_build_info",
            "What runs here; always 1.",
            ["version", "python"],
            registry=self._registry,
        )
        build.labels(version=__version__, python=platform.python_version()).set(1)

    def text(self) -> str:
        """The families in the text format; some 2 ms, however many models there are."""
        return generate_latest(self._registry).decode()
