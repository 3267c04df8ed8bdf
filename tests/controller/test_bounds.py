"""Boxes at the controller that want more than they may have."""

from __future__ import annotations

from appliance.fleet import messages
from appliance.fleet.messages import Poll, Renewal, Renewed
from tests.controller.conftest import Box, Served, code, csr


def test_a_revoked_box_gets_nothing_not_even_by_a_token_made_before(served: Served) -> None:
    box = Box(served, "box-a").enrol(served.token())
    token = served.token(device="box-a")
    served.done("POST", "/api/v1/devices/box-a/revoke")
    for path, message in ((messages.POLL, Poll()), (messages.RENEW, Renewal(request=csr(box.key)))):
        assert code(box.post(path, message)) == (403, "revoked")
    assert code(Box(served).try_enrol(token)) == (403, "bad-token")


def test_a_box_that_floods_is_held_even_with_certificate_after_certificate(served: Served) -> None:
    box, answers = Box(served, "box-a").enrol(served.token()), []
    for number in range(200):
        if number % 50 == 49:
            status, data = box.post(messages.RENEW, Renewal(request=csr(box.key)))
            if status == 200:
                box.hold(messages.decode(data, Renewed).certificate)
        answers.append(box.post(messages.POLL, Poll(root=1, timestamp=1, snapshot=1, targets=1)))
        if answers[-1][0] == 429:
            break
    refusal = messages.decode(answers[-1][1], messages.Refusal)
    assert (answers[-1][0], refusal.code, refusal.retry_after_s > 0) == (429, "too-often", True)
    assert Box(served, "box-b").enrol(served.token()).poll().document


def test_a_body_beyond_its_bound_is_refused_unread(served: Served) -> None:
    box = Box(served, "box-a").enrol(served.token())
    headers = {"Content-Type": messages.CONTENT_TYPE, "Content-Length": str(1 << 40)}
    assert code(box.request("POST", messages.POLL, b"", headers)) == (413, "too-large")
    chunked = (b"x" * (1 << 16) for _ in range(17))
    headers = {"Content-Type": messages.CONTENT_TYPE}
    assert code(box.request("POST", messages.TELEMETRY, chunked, headers)) == (413, "too-large")
