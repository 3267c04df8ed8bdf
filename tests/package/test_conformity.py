"""What a package needs of the runtime, held against the one that is here."""

from __future__ import annotations

import pytest

from appliance.domain.manifest import RuntimeNeed
from appliance.package.conformity import runtime_problems


@pytest.mark.parametrize(
    ("minimum", "installed", "suffices"),
    [
        ("1.20", "1.20.0", True),
        ("1.20.1", "1.20", False),
        ("1.20", "1.3.2", False),
        ("1.9", "1.20", True),
        ("2", "1.99.9", False),
        ("1.20", "1.22.0+cu12", True),
        ("1.20", "1.21.0rc1", True),
        ("1.20", "", True),
    ],
)
def test_releases_are_compared_as_numbers(minimum: str, installed: str, suffices: bool) -> None:
    need = RuntimeNeed(name="onnxruntime", minimum=minimum, opsets=())
    problems = [str(problem) for problem in runtime_problems(need, installed)]
    assert (not problems) == suffices
    assert all(f"is {minimum}; onnxruntime is {installed} here" in problem for problem in problems)


def test_another_runtime_is_refused() -> None:
    (problem,) = runtime_problems(RuntimeNeed(name="other", minimum="1", opsets=()), "1.20")
    assert str(problem) == "manifest.json: runtime.name: is 'other'; models run in onnxruntime here"
