"""Every error has its status, and tells the client what to do."""

from __future__ import annotations

import json
from http import HTTPStatus

import pytest

from appliance.domain import errors
from appliance.frontend.http.status import HttpRefusal, error_headers, error_response, status_of


def test_a_refinement_of_an_error_has_the_status_of_what_it_refines() -> None:
    class Narrower(errors.QueueFull):
        pass

    assert status_of(Narrower("full")) == HTTPStatus.TOO_MANY_REQUESTS


@pytest.mark.parametrize(
    ("retry_after_ns", "seconds", "milliseconds"),
    [(0, "1", "1"), (1, "1", "1"), (2_500_000, "1", "3"), (1_000_000_001, "2", "1001")],
)
def test_overload_says_when_to_come_back(retry_after_ns: int, seconds: str, milliseconds: str) -> None:
    headers = error_headers(errors.QueueFull("Exceeds maximum queue size", retry_after_ns))
    assert headers == {"Retry-After": seconds, "Retry-After-Ms": milliseconds}


def test_the_answer_is_the_protocols_error_object() -> None:
    response = error_response(errors.UnknownModel("Request for unknown model: '\"\u20ac' is not found"))
    assert response.status == 404
    assert response.content_type == "application/json"
    assert isinstance(response.body, bytes)
    assert json.loads(response.body) == {"error": "Request for unknown model: '\"\u20ac' is not found"}


def test_a_refusal_by_http_itself_brings_its_own_status_and_headers() -> None:
    refusal = HttpRefusal(HTTPStatus.METHOD_NOT_ALLOWED, "no", {"Allow": "GET"})
    response = error_response(refusal, "[request id: 7] no")
    assert (response.status, response.headers["Allow"]) == (405, "GET")
    assert b"[request id: 7] no" in bytes(response.body or b"")  # type: ignore[arg-type]


def test_what_cannot_be_served_before_something_changes_invites_nobody_back() -> None:
    assert error_headers(errors.ModelAway("it does not fit", -1)) == {}
