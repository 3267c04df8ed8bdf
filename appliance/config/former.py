"""Settings that were, by their keys: what is wrong with a file that still has one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


def _renamed(new: str) -> str:
    return f"is called '{new}' now"


def _gone(why: str) -> str:
    return f"is no setting any more: {why}; remove it"


_FRONT_END: Final = _gone("frontend.kind chooses one front end for gRPC and HTTP, auto, native or python")
_TRIAL: Final = _renamed("swap.trial_requests")
_HANG: Final = _gone("a run on trial hangs when it takes ten times as long as any before and a second more")
_SIMILAR: Final = _gone("numbers in mirrored answers may differ by 0.001 and by 1 %")
_BACKOFF: Final = _gone("the pause after failed loads goes from a second to a minute")
_GRAPH: Final = _gone("the bound is far above what models have")

FORMER: Final[Mapping[str, str]] = MappingProxyType(
    {
        "arena.kept_bytes": _gone(
            "an eighth of arena.memory_limit_bytes, or 32 MiB, of idle large slots stays resident"
        ),
        "engine.grant_limit": _renamed("engine.lease_limit"),
        "engine.grant_slots": _renamed("engine.lease_slots"),
        "engine.shapes_per_model": _gone("the run times of 64 shapes are remembered per version"),
        "engine.share_processor": _gone("workers run where the kernel has them"),
        "grpc.door": _FRONT_END,
        "grpc.keepalive_timeout_s": _gone("a connection has 20 s to answer a ping"),
        "grpc.max_control_frames_per_10s": _gone("10,000 are beyond what any client sends"),
        "grpc.max_head_bytes": _gone("4 MiB; large tensors belong into raw_input_contents"),
        "grpc.max_resets_per_10s": _gone("a connection may cancel 20,000 unanswered RPCs in ten seconds"),
        "grpc.max_tensors": _gone("a request may name 1,024 inputs and as many outputs"),
        "http.compress_min_bytes": _gone("answers from 1 KiB on are compressed for clients that ask"),
        "http.max_header_bytes": _gone("a request line or a header may have 16 KiB"),
        "http.native": _FRONT_END,
        "http.max_json_bytes": _gone("4 MiB; large tensors belong into binary tensor data"),
        "http.max_headers": _gone("a request may have 100 headers"),
        "log.library_lines_per_s": _gone("libraries have 20 lines in a second"),
        "log.queue_lines": _gone("10,000 lines may wait to be written"),
        "quotas.max_clients": _gone("4,096 clients are told apart beside those that are named"),
        "repository.firewall.max_depth": _GRAPH,
        "repository.firewall.max_functions": _GRAPH,
        "repository.firewall.max_graph_bytes": _gone("2 GiB is what protobuf can hold"),
        "repository.firewall.max_name_bytes": _GRAPH,
        "repository.firewall.max_operators": _GRAPH,
        "repository.firewall.max_opset": _GRAPH,
        "repository.firewall.max_ports": _GRAPH,
        "repository.max_config_bytes": _gone("a config.pbtxt may have 1 MiB"),
        "repository.max_instances": _gone("a version may have 64 worker processes"),
        "repository.max_label_bytes": _gone("a label file may have 4 MiB"),
        "repository.max_models": _gone("a repository may hold 10,000 models"),
        "repository.max_versions": _gone("a model may have 1,000 version directories"),
        "residency.backoff_ns": _BACKOFF,
        "residency.backoff_ns_max": _BACKOFF,
        "residency.early_bytes": _gone("models of 32 MiB and more answer while their fast session is made"),
        "residency.evict_weights": _gone("weights leave memory before sessions do, where that is possible"),
        "residency.hold_factor": _gone("a model stays for at least as long as it took to load"),
        "residency.hollow": _gone("weights leave memory before sessions do, where that is possible"),
        "residency.loads_at_once": _gone("two models load at the same time while requests wait"),
        "residency.retry_ns": _gone("a load that finds no room looks again each 5 ms"),
        "residency.waiting_bytes_max": _gone("256 MiB of inputs may wait for models to be loaded"),
        "residency.verify": _gone("weights that come back to memory are always held against their digests"),
        "scheduling.margin_ns": _gone("a millisecond is kept free before each deadline"),
        "scheduling.plan_tolerance": _gone("the planned batch costs at most 5 % more per row than the best"),
        "scheduling.prefetch_ns": _gone("a full batch is sent 3 ms before its worker is free"),
        "scheduling.probe_after_refusals": _gone("after 8 refusals in a row one request is tried anyway"),
        "scheduling.quantile": _gone("plans use the 0.9 quantile of the learned service time"),
        "store.refetch_bytes_per_s": _gone("1 MB/s is assumed where nobody measured it"),
        "supervisor.crash_window_s": _gone("crashes older than ten minutes are forgiven"),
        "supervisor.quarantine_after": _renamed("restart.quarantine_after"),
        "supervisor.restart_delay_ms": _renamed("restart.restart_delay_ms"),
        "supervisor.restart_delay_max_ms": _gone("the longest wait before a restart is 30 s"),
        "supervisor.stable_after_s": _gone("a worker that lived for 10 s restarts at once"),
        "swap.canary_requests": _TRIAL,
        "swap.crashes": _gone("the first crash on trial ends a version"),
        "swap.differing_percent": _gone("1 % of the mirrored answers may differ"),
        "swap.hang_factor": _HANG,
        "swap.hang_slack_ms": _HANG,
        "swap.latency_slack_us": _gone("runs may take a millisecond longer beside swap.latency_factor"),
        "swap.loads": _gone("two versions load in the background at a time"),
        "swap.patience_s": _gone("a stage of a trial ends after ten minutes; then what was seen is enough"),
        "swap.retry_max_s": _gone("the longest pause before a version is tried again is a day"),
        "swap.shadow_bytes": _gone("64 KiB of each mirrored answer are compared"),
        "swap.shadow_in_flight": _gone("four mirrored requests run at a time"),
        "swap.shadow_requests": _TRIAL,
        "swap.tolerance_absolute": _SIMILAR,
        "swap.tolerance_relative": _SIMILAR,
        "trace.queue_lines": _gone("1,000 traces may wait to be written"),
    }
)
