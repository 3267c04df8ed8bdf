"""A short run of the codec's fuzzer, and every input that it ever kept."""

from __future__ import annotations

import pytest

from appliance.frontend.grpc.envelope import Envelope, EnvelopeLimits, scan
from tests.fuzz.codec_fuzz import CORPUS, Judge, RuleBroken, run

MESSAGES = 5000


def test_the_corpus_is_read_as_protobuf_reads_it() -> None:
    kept = sorted(CORPUS.iterdir())
    assert kept, f"{CORPUS} is empty"
    judge = Judge()
    for path in kept:
        judge.judge(path.read_bytes())


@pytest.mark.parametrize("seed", range(4))
def test_mutated_messages_break_no_rule(seed: int) -> None:
    judge, number = run(seed, lambda number: number >= MESSAGES)
    assert number == MESSAGES
    assert judge.accepted > MESSAGES // 20
    assert judge.refused > MESSAGES // 20


def test_the_judge_sees_a_codec_that_accepts_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(message: bytes, limits: EnvelopeLimits) -> Envelope:
        return scan(message[: len(message) // 2 * 2], limits)

    monkeypatch.setattr("tests.fuzz.codec_fuzz.scan", careless)
    with pytest.raises(RuleBroken):
        run(1, lambda number: number >= MESSAGES)
