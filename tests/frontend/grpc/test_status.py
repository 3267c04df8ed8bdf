"""What RPCs end with: the statuses of errors, in words that fit into trailers."""

from __future__ import annotations

import logging

import grpc
import pytest

from appliance.domain import errors
from appliance.frontend.grpc.status import (
    BROKEN,
    PUSHBACK,
    inference_status,
    status_for,
    status_of,
)
from appliance.frontend.statuses import Code

EXPECTED = {
    errors.InvalidRequest: "INVALID_ARGUMENT",
    errors.UnknownModel: "NOT_FOUND",
    errors.Unsupported: "UNIMPLEMENTED",
    errors.Forbidden: "PERMISSION_DENIED",
    errors.MessageTooLarge: "RESOURCE_EXHAUSTED",
    errors.Cancelled: "CANCELLED",
    errors.DeadlineExpired: "DEADLINE_EXCEEDED",
    errors.QueueFull: "RESOURCE_EXHAUSTED",
    errors.DeadlineUnreachable: "RESOURCE_EXHAUSTED",
    errors.NotReady: "UNAVAILABLE",
    errors.Stopping: "UNAVAILABLE",
    errors.WorkerDied: "UNAVAILABLE",
    errors.RunFailed: "INTERNAL",
}


@pytest.mark.parametrize("code", Code, ids=lambda code: code.name)
def test_codes_are_numbered_as_grpc_numbers_them(code: Code) -> None:
    assert getattr(grpc.StatusCode, code.name).value[0] == code.value


@pytest.mark.parametrize(
    ("error", "name"), EXPECTED.items(), ids=lambda value: getattr(value, "__name__", value)
)
def test_the_status_of_an_error(error: type[errors.ApplianceError], name: str) -> None:
    status = status_of(error("why"))
    assert (status.code.name, status.text) == (name, "why")


def test_an_error_without_a_row_of_its_own_takes_that_of_its_branch() -> None:
    class Fresh(errors.WorkerDied):
        """An error that a later part adds."""

    assert status_of(Fresh("why")).code is Code.UNAVAILABLE


@pytest.mark.parametrize(
    ("wait_ns", "milliseconds"), [(0, "1"), (1, "1"), (1_000_000, "1"), (2_000_001, "3"), (-1, "-1")]
)
def test_refusals_tell_when_to_come_back_in_whole_milliseconds(wait_ns: int, milliseconds: str) -> None:
    assert status_of(errors.QueueFull("full", wait_ns)).metadata == ((PUSHBACK, milliseconds),)


def test_a_defect_is_logged_whole_and_then_lets_go_of_what_its_frames_hold(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("made up")

    with pytest.raises(ZeroDivisionError) as raised, caplog.at_level(logging.ERROR):
        broken()
    assert status_for(raised.value, "/a/b") == (Code.INTERNAL, BROKEN, ())
    assert "in broken" in caplog.text
    assert raised.value.__traceback__ is None


@pytest.mark.parametrize("text", ["no file 'a\udcff'", "\ud83d" * 10_000])
def test_texts_can_be_sent_whatever_is_in_them(text: str) -> None:
    status = status_of(errors.LoadFailed(text))
    assert "?" in status.text
    assert status.text.encode()


def test_only_refusals_tell_when_to_come_back() -> None:
    assert status_of(errors.NotReady("no")).metadata == ()


def test_inference_errors_name_the_request() -> None:
    error = errors.InvalidRequest("bad")
    assert inference_status(error, "7").text == "[request id: 7] bad"
    assert inference_status(error, "").text == "[request id: <id_unknown>] bad"


@pytest.mark.parametrize("letter", ["a", "é", "日", "\U0001f600"])
def test_texts_fit_into_the_trailers_that_clients_accept(letter: str) -> None:
    status = inference_status(errors.InvalidRequest("begin " + letter * 100_000 + " end"), letter * 100_000)
    assert len(status.text.encode()) * 3 < 8192
    assert "begin" in status.text
    assert status.text.endswith(" end")
