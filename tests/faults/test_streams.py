"""Streams that carry more than there is memory for: their clients are held back, and everything is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.grpc.stub import Stub
from tests.conftest import Serve
from tests.faults.clients import FAKE_SECTIONS
from tests.faults.fake_models import write_fake
from tests.faults.leased import message, until_empty
from tests.fronts import PYTHON, Sections

WIDE = 600 << 10
ARENA = 16 << 20
LARGEST = 4 << 20
COUNT = 60
SMALL = {
    **FAKE_SECTIONS,
    "arena": {"memory_limit_bytes": ARENA},
    "http": {"max_body_bytes": LARGEST},
}


@pytest.mark.every_front_end
@pytest.mark.parametrize("window", [64 << 20, 2 << 20], ids=["memory", "window"])
def test_a_stream_that_is_larger_than_the_arena_is_answered_message_by_message(
    serve: Serve, front_end: Sections, tmp_path: Path, window: int
) -> None:
    """What holds it back is the memory that there is, or its window, whichever is less."""
    assert COUNT * WIDE > 2 * ARENA
    write_fake(tmp_path, "wide", width=WIDE, mode="delay", delay_ms=2, batched=False)
    sections: dict[str, Any] = {
        **SMALL,
        "grpc": {"max_message_bytes": LARGEST, "stream_window_bytes": window},
    }
    if front_end is not PYTHON:
        sections["engine"] = {"lease_slots": [[4096, 16], [2 << 20, 2]]}
    daemon = serve(tmp_path, sections)
    with Stub(daemon.grpc) as stub:
        asked = (message("wide", width=WIDE, request_id=str(number), first=number) for number in range(COUNT))
        answers = {answer.infer_response.id: answer for answer in stub.stream(asked, timeout_s=60.0)}
    assert not [answer.error_message for answer in answers.values() if answer.error_message]
    assert sorted(answers, key=int) == [str(number) for number in range(COUNT)]
    firsts = {
        request_id: answer.infer_response.raw_output_contents[0][0] for request_id, answer in answers.items()
    }
    assert all(first == int(request_id) for request_id, first in firsts.items())
    until_empty(daemon)
