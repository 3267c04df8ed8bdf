"""A model's ``config.pbtxt`` as values: what it says, before it meets the graph.

Rules kept here: every field of the public ModelConfig is either read, or refused with a reason, or accepted
with a note that it has no effect (hints that change no answer; clients see them); anything else is unknown and a
problem. None stands for "not said", which the graph then decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final, NamedTuple

from appliance.config.repository import RepositoryConfig
from appliance.domain.device import DeviceKind
from appliance.domain.device_wish import gpu_wish
from appliance.domain.model import Batching, VersionChoice, VersionPolicy
from appliance.repository.batching_config import read_batching
from appliance.repository.findings import Findings, Place
from appliance.repository.instance_config import ONE_INSTANCE, Instances, read_instances
from appliance.repository.noted import NOTED, OPTIMIZATION, Json, noted_in, read_noted
from appliance.repository.onnx.foreign import backend_advice
from appliance.repository.parameters import judge_parameters
from appliance.repository.pbtxt import Message
from appliance.repository.section import INT64_MAX, NO_EFFECT, Section
from appliance.repository.tensor_config import TensorConfig, read_input, read_output
from appliance.repository.warmup_config import WARMUPS_MAX, WarmupConfig, read_warmup
from appliance.runtimes.runtime import READ_ONNX, known_runtimes

ONNX_RUNTIME: Final = "onnx"
ONNX_BACKEND: Final = "onnxruntime"
ONNX_PLATFORM: Final = "onnxruntime_onnx"
MODEL_FILE: Final = "model.onnx"
VERSIONS_MAX: Final = 1_000
"""Version directories of one model: all are listed on every look, and a handful is kept."""
LATEST: Final = VersionPolicy()
ROWS_MAX: Final = 1 << 20
"""Of a batch, as of one whose model does not say."""
GRAPH_LEVELS: Final = (-1, 0, 1, 2)
"""Basic optimisations, all, all but those of layout, none."""
ACCELERATORS: Final = (
    "is not offered: remove it; the model then runs on the processor, or on the GPU where instance_group has "
    'kind: KIND_GPU, there by TensorRT with backend: "tensorrt" (docs/TENSORRT.md)'
)
_REFUSED: Final = MappingProxyType(
    {
        "sequence_batching": "is not offered: models are stateless here; remove it, and list the inputs of the "
        "graph that it fed (control_input, state) as 'input', for clients to send",
        "ensemble_scheduling": "is not offered: serve the models one by one, or as one graph",
        "batch_input": "is not offered; remove it",
        "batch_output": "is not offered; remove it",
        "model_repository_agents": "is not offered: no plug-in runs while a model is read; remove it",
        "model_operations": "is not offered: no library is loaded for a model; remove it",
        "cc_model_filenames": "is not offered: name the file with default_model_filename",
        "runtime": "is not offered; name the backend with 'backend'",
    }
)


class Kind(NamedTuple):
    """What runs a model: the names that clients see, and our runtime."""

    platform: str
    backend: str
    runtime: str

    @property
    def reads_onnx(self) -> bool:
        """Whether a model is an ONNX file, whose graph is read and judged here."""
        return self.runtime in READ_ONNX


ONNX: Final = Kind(ONNX_PLATFORM, ONNX_BACKEND, ONNX_RUNTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A configuration as written, and the ``section`` that says where; the defaults are those of a model without one.
    ``max_batch_size`` and ``inputs`` and ``outputs`` are None when nothing is said of them."""

    section: Section
    kind: Kind = ONNX
    model_file: str = MODEL_FILE
    max_batch_size: int | None = None
    inputs: tuple[TensorConfig, ...] | None = None
    outputs: tuple[TensorConfig, ...] | None = None
    batching: Batching | None = None
    preferred_place: Place
    policy: VersionPolicy = LATEST
    instances: Instances = ONE_INSTANCE
    warmups: tuple[WarmupConfig, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    noted: Mapping[str, Json] = field(default_factory=dict)
    graph_level: int = 0
    cuda_graphs: bool = True

    @property
    def shown(self) -> str:
        """What is shown to clients alone, as JSON."""
        groups: list[Json] = list(self.instances.groups)
        return json.dumps({**self.noted, **({"instance_group": groups} if groups else {})}, sort_keys=True)


def no_config(file: str) -> ModelConfig:
    """What holds for a model whose ``file`` is not there: all of it is up to the graph."""
    nothing = Message(fields=(), line=1, column=1)
    section = Section(nothing, file=file, key="", findings=Findings())
    return ModelConfig(section=section, preferred_place=section.place())


def model_file_of(tree: Message) -> str:
    """The file that the configuration ``tree`` names, right or wrong; MODEL_FILE when it names none."""
    section = Section(tree, file="", key="", findings=Findings())
    return section.text("default_model_filename") or MODEL_FILE


def read_model_config(
    tree: Message,
    *,
    file: str,
    model_name: str,
    settings: RepositoryConfig,
    findings: Findings,
    model_file: str = MODEL_FILE,
) -> ModelConfig:
    """The configuration in ``tree``; what is wrong with it goes to ``findings`` and its default is used
    instead. ``model_file`` counts where it names none."""
    section = Section(tree, file=file, key="", findings=findings)
    if (name := section.text("name")) not in ("", model_name):
        section.problem("name", f"is '{name}', which is not what the directory is called; make them equal")
    noted = _read_noted(section)
    entries = section.entries("parameters")
    given = [(key, inner.only_text("string_value")) for key, inner in entries]
    parameters = {key: said for key, said in given if said is not None}
    instances = read_instances(section, settings, gpu_wish(parameters))
    kind = _read_kind(section, settings)
    on_cpu = instances.device.kind is DeviceKind.CPU
    judge_parameters(entries, parameters, on_cpu=on_cpu, backend=kind.backend)
    batching = section.section("dynamic_batching")
    preferred_place = (
        batching.place("preferred_batch_size") if batching else section.place("dynamic_batching")
    )
    config = ModelConfig(
        section=section,
        kind=kind,
        model_file=_read_model_file(section, model_file),
        max_batch_size=section.integer("max_batch_size", maximum=ROWS_MAX)
        if section.has("max_batch_size")
        else None,
        inputs=tuple(map(read_input, section.sections("input"))) if section.has("input") else None,
        outputs=tuple(map(read_output, section.sections("output"))) if section.has("output") else None,
        batching=read_batching(batching) if batching else None,
        preferred_place=preferred_place,
        policy=_read_policy(section),
        instances=instances,
        warmups=tuple(map(read_warmup, section.sections("model_warmup", most=WARMUPS_MAX))),
        parameters=parameters,
        noted=noted,
        graph_level=_read_graph_level(section),
        cuda_graphs=_read_cuda_graphs(section),
    )
    section.close()
    return config


def _read_noted(section: Section) -> dict[str, Json]:
    """What is shown to clients alone; what is refused is refused."""
    section.refuse(_REFUSED)
    section.ignore(("metric_tags", "model_metrics"), NO_EFFECT)
    noted = noted_in(section, NOTED)
    if noted.get("response_cache") == {"enable": True}:
        section.ignore(
            ("response_cache",), "is accepted, but nothing is cached: each answer is of its own run"
        )
    optimization = section.section("optimization")
    if optimization:
        optimization.refuse({"execution_accelerators": ACCELERATORS})
        optimization.ignore((name for name in OPTIMIZATION if name not in ("graph", "cuda")), NO_EFFECT)
        noted["optimization"] = read_noted(optimization, OPTIMIZATION)
    transactions = section.section("model_transaction_policy")
    if transactions:
        transactions.refuse({"decoupled": "is not offered: every request has one response; remove it"})
        transactions.close()
    return noted


def _read_cuda_graphs(section: Section) -> bool:
    optimization = section.section("optimization")
    cuda = optimization.section("cuda") if optimization else None
    if not cuda:
        return True
    cuda.ignore(("busy_wait_events", "graph_spec", "output_copy_stream"), NO_EFFECT)
    return cuda.flag("graphs", default=True)


def _read_graph_level(section: Section) -> int:
    optimization = section.section("optimization")
    graph = optimization.section("graph") if optimization else None
    level = graph.integer("level", minimum=GRAPH_LEVELS[0]) if graph else 0
    if graph and level not in GRAPH_LEVELS:
        graph.note(f"level {level} is none of -1, 1 and 2: all optimisations are on")
    return level if level in GRAPH_LEVELS else 0


def _read_kind(section: Section, settings: RepositoryConfig) -> Kind:
    """Platform and backend, which must agree and be enabled."""
    platform, backend = section.text("platform"), section.text("backend")
    if platform not in ("", ONNX_PLATFORM):
        advice = backend_advice(platform) or f"leave it out or say '{ONNX_PLATFORM}'"
        section.problem("platform", f"'{platform}' is not offered: {advice}")
        return ONNX
    if platform and backend not in ("", ONNX_BACKEND):
        section.problem("backend", f"'{backend}' contradicts the platform '{platform}'")
        return ONNX
    kind = ONNX if backend in ("", ONNX_BACKEND) else Kind("", backend, backend)
    if kind.runtime not in settings.runtimes or backend == ONNX_RUNTIME:
        enabled = (ONNX_BACKEND if runtime == ONNX_RUNTIME else runtime for runtime in settings.runtimes)
        advice = backend_advice(backend) or f"enabled are: {', '.join(enabled)}"
        if backend in known_runtimes() and backend != ONNX_RUNTIME:
            advice = "a package for it is installed: add it to the setting repository.runtimes"
        if backend in READ_ONNX and backend != ONNX_RUNTIME:
            advice = f"add it to the setting repository.runtimes (docs/{backend.upper()}.md)"
        section.problem(
            "backend",
            f"'{backend or ONNX_BACKEND}' is not enabled; {advice}",
        )
        return ONNX
    return kind


def _read_model_file(section: Section, default: str) -> str:
    name = section.text("default_model_filename") or default
    if PurePosixPath(name).name != name or "\0" in name:
        section.problem(
            "default_model_filename", f"'{name}' is not the plain name of a file in the version directory"
        )
        return MODEL_FILE
    return name


def _read_policy(section: Section) -> VersionPolicy:
    inner = section.section("version_policy")
    if inner is None:
        return LATEST
    latest, every, specific = (inner.section(name) for name in ("latest", "all", "specific"))
    policy = LATEST
    if sum(choice is not None for choice in (latest, every, specific)) != 1:
        inner.problem("", "needs exactly one of latest { }, all { }, specific { }")
    elif latest:
        policy = VersionPolicy(count=latest.integer("num_versions", default=1, minimum=1))
    elif every:
        policy = VersionPolicy(choice=VersionChoice.ALL)
    elif specific:
        numbers = specific.integers("versions", minimum=1, maximum=INT64_MAX, most=VERSIONS_MAX)
        if numbers:
            policy = VersionPolicy(choice=VersionChoice.SPECIFIC, numbers=numbers)
        elif not specific.has("versions"):
            specific.problem("versions", "names no version")
    for choice in (latest, every, specific, inner):
        if choice:
            choice.close()
    return policy


def wanted_versions(policy: VersionPolicy, present: Iterable[int]) -> tuple[int, ...]:
    """The version numbers that ``policy`` asks for, ascending."""
    ordered = sorted(set(present))
    if policy.choice is VersionChoice.SPECIFIC:
        return tuple(sorted(set(policy.numbers)))
    if policy.choice is VersionChoice.ALL:
        return tuple(ordered)
    return tuple(ordered[-policy.count :])
