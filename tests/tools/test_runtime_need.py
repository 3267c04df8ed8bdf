"""What a package says that it needs is what ONNX Runtime really asks for: the release that is installed is asked."""

from __future__ import annotations

import tomllib
from pathlib import Path

import onnxruntime
import pytest
from onnx import TensorProto, helper

from appliance.package.conformity import installed_release, runtime_problems
from appliance.tools.packaging.packing import FORMATS, OPSETS, runtime_need
from tests.repository.onnx_files import plain_model, summary

BEYOND = 60
ROOT = Path(__file__).parents[2]


def graph_bytes(opset: int = 17, ir_version: int = 8) -> bytes:
    model = plain_model(dims=[1], element=TensorProto.FLOAT)
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", opset))
    model.ir_version = ir_version
    data: bytes = model.SerializeToString()
    return data


def is_read(data: bytes) -> bool:
    """Whether the installed runtime makes a session of it."""
    try:
        onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 - of many types, and each says no
        return False
    return True


def release(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")[:2]))


@pytest.mark.parametrize(
    ("table", "key", "first"), [(OPSETS, "opset", 7), (FORMATS, "ir_version", 3)], ids=["opsets", "formats"]
)
def test_the_installed_runtime_reads_just_what_the_table_says(
    table: tuple[tuple[str, int], ...], key: str, first: int
) -> None:
    """Where it reads more than the newest row says, that release has brought more: add a row."""
    here = release(installed_release())
    promised = max(highest for minimum, highest in table if release(minimum) <= here)
    read = [number for number in range(first, BEYOND) if is_read(graph_bytes(**{key: number}))]
    assert read == list(range(first, promised + 1))


def test_the_tables_ascend_from_the_oldest_release_that_may_be_installed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for table in (OPSETS, FORMATS):
        assert f"onnxruntime>={table[0][0]}" in extras["cpu"]
        assert [release(row[0]) for row in table] == sorted({release(row[0]) for row in table})
        assert [row[1] for row in table] == sorted({row[1] for row in table})


@pytest.mark.parametrize(
    ("opset", "ir_version", "minimum"),
    [
        (17, 8, "1.20"),
        (22, 10, "1.21"),
        (23, 10, "1.23"),
        (17, 11, "1.23"),
        (24, 11, "1.24"),
        (26, 13, "1.25"),
    ],
)
def test_both_operators_and_format_count(opset: int, ir_version: int, minimum: str) -> None:
    need = runtime_need(summary(graph_bytes(opset, ir_version)))
    assert need.minimum == minimum
    assert [(each.domain, each.version) for each in need.opsets] == [("", opset)]
    older = ".".join(map(str, (1, int(minimum.split(".")[1]) - 1)))
    assert not list(runtime_problems(need, f"{minimum}.0"))
    assert list(runtime_problems(need, f"{older}.9"))


def test_what_is_newer_than_all_that_is_known_needs_the_newest() -> None:
    assert runtime_need(summary(graph_bytes(90, 90))).minimum == OPSETS[-1][0]
