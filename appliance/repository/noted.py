"""The parts of a model's configuration that nothing here acts on: read as the public message has them, for clients to
see. What is spelt or typed wrong is a problem, as anywhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from appliance.repository.section import INT64_MAX, Section

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Reader = Callable[[Section, str], Json]
Fields = Mapping[str, Reader]

GRAPH_LEVEL_MIN: Final = -1


def _sizes(section: Section, name: str) -> Json:
    return list[Json](section.integers(name, maximum=INT64_MAX))


def _decimals(section: Section, name: str) -> Json:
    return list[Json](section.decimals(name))


def _level(section: Section, name: str) -> Json:
    return section.integer(name, minimum=GRAPH_LEVEL_MIN)


def _message(fields: Fields) -> Reader:
    def read(section: Section, name: str) -> Json:
        inner = section.section(name)
        return {} if inner is None else read_noted(inner, fields)

    return read


def _messages(fields: Fields) -> Reader:
    return lambda section, name: [read_noted(each, fields) for each in section.sections(name)]


def _mapped(fields: Fields) -> Reader:
    return lambda section, name: {key: read_noted(each, fields) for key, each in section.entries(name)}


def _texts(section: Section, name: str) -> Json:
    return dict(section.texts(name))


def _one_of(*names: str) -> Reader:
    def read(section: Section, name: str) -> Json:
        said = section.name(name)
        if said and said not in names:
            section.problem(name, f"expected one of {', '.join(names)}, found '{said[:40]}'")
        return said or names[0]

    return read


_SHAPES: Final = _mapped({"dim": _sizes})
_PINNED: Final = _message({"enable": Section.flag})
OPTIMIZATION: Final[Fields] = MappingProxyType(
    {
        "graph": _message({"level": _level}),
        "priority": _one_of("PRIORITY_DEFAULT", "PRIORITY_MAX", "PRIORITY_MIN"),
        "cuda": _message(
            {
                "graphs": Section.flag,
                "busy_wait_events": Section.flag,
                "graph_spec": _messages(
                    {
                        "batch_size": Section.integer,
                        "input": _SHAPES,
                        "graph_lower_bound": _message({"batch_size": Section.integer, "input": _SHAPES}),
                    }
                ),
                "output_copy_stream": Section.flag,
            }
        ),
        "input_pinned_memory": _PINNED,
        "output_pinned_memory": _PINNED,
        "gather_kernel_buffer_threshold": Section.integer,
        "eager_batching": Section.flag,
    }
)
NOTED: Final[Fields] = MappingProxyType(
    {
        "metric_tags": _texts,
        "model_metrics": _message(
            {
                "metric_control": _messages(
                    {
                        "metric_identifier": _message({"family": Section.text}),
                        "histogram_options": _message({"buckets": _decimals}),
                    }
                )
            }
        ),
        "response_cache": _message({"enable": Section.flag}),
    }
)


def read_noted(section: Section, fields: Fields) -> dict[str, Json]:
    """What ``section`` says of ``fields``, which are all that it may have."""
    found = noted_in(section, fields)
    section.close()
    return found


def noted_in(section: Section, fields: Fields) -> dict[str, Json]:
    """What ``section``, which may have others, says of ``fields``."""
    return {name: read(section, name) for name, read in fields.items() if section.has(name)}
