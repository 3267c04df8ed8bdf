"""A model's ``config.pbtxt`` as values: what it says, before it meets the graph.

Rules kept here: every field of the public ModelConfig is either read, or refused with a reason, or accepted
with a note that it has no effect (``IGNORED``: hints that change no answer); anything else is unknown and a
problem. None stands for "not said", which the graph then decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final, NamedTuple

from appliance.config.repository import RepositoryConfig
from appliance.domain.model import RUN_TIMEOUT_PARAMETER, Batching, VersionChoice, VersionPolicy
from appliance.repository.batching_config import read_batching
from appliance.repository.findings import Findings, Place
from appliance.repository.instance_config import ONE_INSTANCE, Instances, read_instances
from appliance.repository.pbtxt import Message
from appliance.repository.section import INT64_MAX, Section
from appliance.repository.tensor_config import TensorConfig, read_input, read_output
from appliance.repository.warmup_config import WARMUPS_MAX, WarmupConfig, read_warmup

ONNX_RUNTIME: Final = "onnx"
ONNX_BACKEND: Final = "onnxruntime"
ONNX_PLATFORM: Final = "onnxruntime_onnx"
MODEL_FILE: Final = "model.onnx"
VERSIONS_MAX: Final = 1_000
"""Version directories of one model: all are listed on every look, and a handful is kept."""
LATEST: Final = VersionPolicy()

IGNORED: Final = ("metric_tags", "model_metrics", "response_cache")
IGNORED_OPTIMIZATION: Final = (
    "graph",
    "priority",
    "cuda",
    "input_pinned_memory",
    "output_pinned_memory",
    "gather_kernel_buffer_threshold",
    "eager_batching",
)
_REFUSED: Final = MappingProxyType(
    {
        "sequence_batching": "is not offered: models are stateless here; remove it",
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


ONNX: Final = Kind(ONNX_PLATFORM, ONNX_BACKEND, ONNX_RUNTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A configuration as written; the defaults are those of a model without one. ``max_batch_size`` and
    ``inputs`` and ``outputs`` are None when nothing is said of them."""

    written: bool = False
    kind: Kind = ONNX
    model_file: str = MODEL_FILE
    max_batch_size: int | None = None
    batch_place: Place
    inputs: tuple[TensorConfig, ...] | None = None
    inputs_place: Place
    outputs: tuple[TensorConfig, ...] | None = None
    outputs_place: Place
    batching: Batching | None = None
    preferred_place: Place
    policy: VersionPolicy = LATEST
    policy_place: Place
    instances: Instances = ONE_INSTANCE
    warmups: tuple[WarmupConfig, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)


def no_config(file: str) -> ModelConfig:
    """What holds for a model whose ``file`` is not there: all of it is up to the graph."""
    place = Place(file=file)
    return ModelConfig(
        batch_place=place,
        inputs_place=place,
        outputs_place=place,
        preferred_place=place,
        policy_place=place,
    )


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
        section.problem("name", f"is '{name}', but the directory is called '{model_name}'; make them equal")
    _read_unused(section)
    batching = section.section("dynamic_batching")
    preferred_place = (
        batching.place("preferred_batch_size") if batching else section.place("dynamic_batching")
    )
    config = ModelConfig(
        written=True,
        kind=_read_kind(section, settings),
        model_file=_read_model_file(section, model_file),
        max_batch_size=section.integer("max_batch_size") if section.has("max_batch_size") else None,
        batch_place=section.place("max_batch_size"),
        inputs=tuple(map(read_input, section.sections("input"))) if section.has("input") else None,
        inputs_place=section.place("input"),
        outputs=tuple(map(read_output, section.sections("output"))) if section.has("output") else None,
        outputs_place=section.place("output"),
        batching=read_batching(batching) if batching else None,
        preferred_place=preferred_place,
        policy=_read_policy(section, VERSIONS_MAX),
        policy_place=section.place("version_policy"),
        instances=read_instances(section, settings),
        warmups=_read_warmups(section),
        parameters=_read_parameters(section),
    )
    section.close()
    return config


def _read_unused(section: Section) -> None:
    section.refuse(_REFUSED)
    section.ignore(IGNORED, "is accepted, but has no effect here")
    optimization = section.section("optimization")
    if optimization:
        optimization.ignore(IGNORED_OPTIMIZATION, "is accepted, but has no effect here")
        optimization.refuse(
            {"execution_accelerators": "is not offered: the device is chosen by instance_group's kind alone"}
        )
        optimization.close()
    transactions = section.section("model_transaction_policy")
    if transactions:
        transactions.refuse({"decoupled": "is not offered: every request has one response; remove it"})
        transactions.close()


def _read_kind(section: Section, settings: RepositoryConfig) -> Kind:
    """Platform and backend, which must agree and be enabled."""
    platform, backend = section.text("platform"), section.text("backend")
    if platform not in ("", ONNX_PLATFORM):
        section.problem("platform", f"'{platform}' is not offered; leave it out or say '{ONNX_PLATFORM}'")
        return ONNX
    if platform and backend not in ("", ONNX_BACKEND):
        section.problem("backend", f"'{backend}' contradicts the platform '{platform}'")
        return ONNX
    kind = ONNX if backend in ("", ONNX_BACKEND) else Kind("", backend, backend)
    if kind.runtime not in settings.runtimes or backend == ONNX_RUNTIME:
        enabled = (ONNX_BACKEND if runtime == ONNX_RUNTIME else runtime for runtime in settings.runtimes)
        section.problem(
            "backend", f"'{backend or ONNX_BACKEND}' is not enabled; enabled are: {', '.join(enabled)}"
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


def _read_policy(section: Section, versions_max: int) -> VersionPolicy:
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
        numbers = specific.integers("versions", minimum=1, maximum=INT64_MAX)
        if len(numbers) > versions_max:
            specific.problem("versions", f"names {len(numbers)} versions; the limit is {versions_max}")
        elif numbers:
            policy = VersionPolicy(choice=VersionChoice.SPECIFIC, numbers=numbers)
        else:
            specific.problem("versions", "names no version")
    for choice in (latest, every, specific, inner):
        if choice:
            choice.close()
    return policy


def _read_warmups(section: Section) -> tuple[WarmupConfig, ...]:
    found = section.sections("model_warmup")
    if len(found) > WARMUPS_MAX:
        section.problem("model_warmup", f"is given {len(found)} times; at most {WARMUPS_MAX} are read")
    return tuple(map(read_warmup, found[:WARMUPS_MAX]))


def _read_parameters(section: Section) -> Mapping[str, str]:
    parameters: dict[str, str] = {}
    for key, inner in section.entries("parameters"):
        parameters[key] = inner.text("string_value")
        inner.close()
        if key != RUN_TIMEOUT_PARAMETER:
            inner.note(f"is accepted and shown to clients, but has no effect; {RUN_TIMEOUT_PARAMETER} has")
    return parameters


def wanted_versions(policy: VersionPolicy, present: Iterable[int]) -> tuple[int, ...]:
    """The version numbers that ``policy`` asks for, ascending."""
    ordered = sorted(set(present))
    if policy.choice is VersionChoice.SPECIFIC:
        return tuple(sorted(set(policy.numbers)))
    if policy.choice is VersionChoice.ALL:
        return tuple(ordered)
    return tuple(ordered[-policy.count :])
