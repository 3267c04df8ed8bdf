"""The Prometheus client library: what it knows about this process. The only file that imports it.

The families of models and workers are written by ``exposition``, which says why.
"""

from __future__ import annotations

import platform

from prometheus_client import CollectorRegistry, Gauge, GCCollector, ProcessCollector, generate_latest
from prometheus_client.openmetrics import exposition

from appliance import __version__
from appliance.telemetry.metrics.exposition import OPENMETRICS_END


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

    def text(self, *, openmetrics: bool = False) -> str:
        """The families in the text format, or as OpenMetrics without the end; some 2 ms, however many models there
        are."""
        if openmetrics:
            text: bytes = exposition.generate_latest(self._registry)  # type: ignore[no-untyped-call]
            return text.decode().removesuffix(OPENMETRICS_END)
        return generate_latest(self._registry).decode()
