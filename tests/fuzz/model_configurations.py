"""A model's configuration: whatever its config.pbtxt holds, a version is served or told what is wrong with it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

from appliance.config.repository import RepositoryConfig
from appliance.domain.model import ModelVersion
from appliance.frontend.documents import model_config, model_metadata
from appliance.repository.directory import RepositoryScan
from appliance.repository.model_directory import read_model_directory
from appliance.workers.daemon.pending_replies import PendingReplies
from appliance.workers.messages import Load, encode
from tests.fuzz.boundary import Boundary, Judge, RuleBroken, check_text
from tests.fuzz.mutations import NUMBERS, TEXTS, changed_bytes
from tests.repository.onnx_files import plain_model, write_version
from tests.repository.test_model_config import WHOLE

SETTINGS = RepositoryConfig()
UNFORESEEN = "for a reason that nobody foresaw"
"""With what a defect of the reader is told: it costs its own model alone, and is one."""
LABELS = b"zero\none\n\nthree\n"


def judge_scan(found: RepositoryScan | None) -> None:
    """What is served can be told to workers and clients; what is not has a reason that was foreseen."""
    if found is None:
        return
    for problem in found.problems:
        check_text(str(problem))
        if UNFORESEEN in problem.text:
            raise RuleBroken(str(problem))
    for version in found.servable:
        judge_version(version.model)


def judge_version(model: ModelVersion) -> None:
    """It can be sent to a worker, owed by one, and described."""
    encode(Load(1, model))
    PendingReplies(1).owe_load(Load(1, model), 1, 1)
    for document in (model_metadata(model, (model,)), model_config(model)):
        json.dumps(document).encode()


def _words() -> list[str]:
    numbers = [str(number) for number in NUMBERS]
    texts = [json.dumps(text) for text in TEXTS]
    return [
        *numbers,
        *texts,
        "9" * 5000,
        "0x7fffffffffffffff",
        "-0x1",
        "1.5f",
        "TYPE_STRING",
        "true",
        "[]",
        "{}",
        "[[",
        "<>",
    ]


WORDS = _words()
TOKENS = [
    part for line in WHOLE.splitlines() for part in line.replace("{", " { ").replace("}", " } ").split()
]


@st.composite
def tokens(draw: st.DrawFn) -> bytes:
    """The configuration with some of its words replaced, left out or doubled."""
    words = list(TOKENS)
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 4)))):
        at = draw(st.integers(0, len(words) - 1))
        word = draw(st.sampled_from(WORDS) | st.sampled_from(TOKENS))
        how = draw(st.integers(0, 5))
        words[at : at + (how > 0)] = [] if how == 1 else [word] * (200 if how == 2 else 1)
    return " ".join(words).encode(errors="surrogatepass")


PARAMETERS = (
    "run_timeout_ms", "load_timeout_ms", "threads", "memory_limit_bytes", "execution_mode", "optimization_level",
    "warmup", "golden", "TRITON_x", "intra_op_thread_count", "",
)  # fmt: skip


@st.composite
def parameters(draw: st.DrawFn) -> bytes:
    """A parameter with an odd value."""
    key = json.dumps(draw(st.sampled_from(PARAMETERS) | st.sampled_from(TEXTS)))
    value = draw(st.sampled_from(WORDS))
    if not value.startswith('"') and draw(st.booleans()):
        value = json.dumps(value)
    return (WHOLE + f"\nparameters {{ key: {key} value {{ string_value: {value} }} }}\n").encode(
        errors="surrogatepass"
    )


CASES = st.one_of(tokens(), parameters(), changed_bytes([WHOLE.encode()]))


@contextmanager
def opened() -> Iterator[Judge]:
    """A judge of configurations, with the rest of a model's directory."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        root = Path(folder).resolve()
        directory = write_version(root, "m", plain_model())
        (directory / "labels.txt").write_bytes(LABELS)
        yield lambda case: judge_scan(read_model_directory(str(root), "m", SETTINGS, case))


BOUNDARY = Boundary(kept="model_configurations", cases=CASES, opened=opened, examples=400)
