"""The parameters in a model's ``config.pbtxt``: which have an effect, what their values may be, and where they do
nothing. All others are kept for clients to see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType
from typing import Final

from appliance.domain.device_wish import WISH_PARAMETERS, wish_problem
from appliance.domain.flag import flag_problem
from appliance.domain.interface import ALLOWED_PARAMETER, allowance_problem
from appliance.domain.model import OWN_WORKER_PARAMETER, RUN_TIMEOUT_PARAMETER, run_timeout_problem
from appliance.domain.session_options import (
    ENGINE_REFIT,
    INTRA_OP,
    LARGEST,
    OF_ENGINES,
    ON_GPU_ALONE,
    option_problem,
)
from appliance.repository.section import NO_EFFECT, Section

ENGINE_BACKEND: Final = "tensorrt"
SIMILAR: Final = 0.75
"""Above which a parameter is taken for one of those that was misspelt: Triton has many that are none."""
PROBLEM_OF: Final[Mapping[str, Callable[[str], str]]] = MappingProxyType(
    {
        RUN_TIMEOUT_PARAMETER: run_timeout_problem,
        ALLOWED_PARAMETER: allowance_problem,
        **{key: partial(flag_problem, key) for key in (OWN_WORKER_PARAMETER, ENGINE_REFIT)},
        **{key: partial(option_problem, key) for key in LARGEST},
        **{key: partial(wish_problem, key) for key in WISH_PARAMETERS},
    }
)
"""The parameters that have an effect, each with what says what is wrong with a value: "" when nothing is."""


def judge_parameters(
    entries: Iterable[tuple[str, Section]], parameters: Mapping[str, str], *, on_cpu: bool, backend: str
) -> None:
    """Tell what is wrong with parameters, and which have no effect where the model runs. One of which ``parameters``
    have nothing could not be read, which was told."""
    for key, inner in entries:
        if key not in parameters:
            continue
        said, problem_of = parameters[key], PROBLEM_OF.get(key)
        if problem_of is not None and (wrong := problem_of(said)):
            inner.problem("string_value", wrong)
        inner.close()
        if problem_of is None:
            near = get_close_matches(key, sorted(PROBLEM_OF), n=1, cutoff=SIMILAR)
            inner.note(f"{NO_EFFECT}; did you mean '{near[0]}'?" if near else NO_EFFECT)
        elif on_cpu and key in ON_GPU_ALONE | WISH_PARAMETERS:
            inner.note(f"{NO_EFFECT}: the model runs on the processor")
        elif backend != ENGINE_BACKEND and key in OF_ENGINES:
            inner.note(f'{NO_EFFECT}: it is for models with backend: "{ENGINE_BACKEND}"')
        elif key == INTRA_OP and said == "0":
            inner.note("0 leaves it to the setting workers.threads")
