"""The ``[metrics]`` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field


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
