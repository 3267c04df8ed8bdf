"""Every error has its statuses, over gRPC and over HTTP."""

from __future__ import annotations

import pytest

from appliance.domain import errors
from appliance.frontend.statuses import STATUSES, retry_after_ms, statuses_of

EXPECTED = {
    errors.ApplianceError: ("INTERNAL", 500),
    errors.CallerError: ("INVALID_ARGUMENT", 400),
    errors.InvalidRequest: ("INVALID_ARGUMENT", 400),
    errors.UnknownModel: ("NOT_FOUND", 404),
    errors.Unsupported: ("UNIMPLEMENTED", 501),
    errors.Forbidden: ("PERMISSION_DENIED", 403),
    errors.MessageTooLarge: ("RESOURCE_EXHAUSTED", 413),
    errors.Cancelled: ("CANCELLED", 499),
    errors.DeadlineExpired: ("DEADLINE_EXCEEDED", 504),
    errors.CapacityError: ("RESOURCE_EXHAUSTED", 429),
    errors.QueueFull: ("RESOURCE_EXHAUSTED", 429),
    errors.AnswersFull: ("RESOURCE_EXHAUSTED", 503),
    errors.DeadlineUnreachable: ("RESOURCE_EXHAUSTED", 429),
    errors.QuotaExceeded: ("RESOURCE_EXHAUSTED", 429),
    errors.ModelAway: ("RESOURCE_EXHAUSTED", 429),
    errors.NotReady: ("UNAVAILABLE", 503),
    errors.NotServed: ("UNAVAILABLE", 503),
    errors.Stopping: ("UNAVAILABLE", 503),
    errors.OperatorError: ("FAILED_PRECONDITION", 500),
    errors.ConfigInvalid: ("FAILED_PRECONDITION", 500),
    errors.ConfigUnreadable: ("FAILED_PRECONDITION", 500),
    errors.AddressUnavailable: ("FAILED_PRECONDITION", 500),
    errors.StoreUnavailable: ("FAILED_PRECONDITION", 500),
    errors.StoreFull: ("FAILED_PRECONDITION", 500),
    errors.StoreBusy: ("FAILED_PRECONDITION", 500),
    errors.StoreRefused: ("FAILED_PRECONDITION", 500),
    errors.CatalogLost: ("FAILED_PRECONDITION", 500),
    errors.CatalogInvalid: ("FAILED_PRECONDITION", 500),
    errors.CatalogNewer: ("FAILED_PRECONDITION", 500),
    errors.UnknownRegion: ("NOT_FOUND", 404),
    errors.RegionExists: ("ALREADY_EXISTS", 409),
    errors.RegionsFull: ("RESOURCE_EXHAUSTED", 429),
    errors.ArtefactError: ("UNAVAILABLE", 503),
    errors.ModelInvalid: ("UNAVAILABLE", 503),
    errors.PackageInvalid: ("UNAVAILABLE", 503),
    errors.BlobMismatch: ("UNAVAILABLE", 503),
    errors.LoadFailed: ("UNAVAILABLE", 503),
    errors.FileDiffers: ("UNAVAILABLE", 503),
    errors.FormHasNoRoom: ("UNAVAILABLE", 503),
    errors.DeviceHasNoRoom: ("UNAVAILABLE", 503),
    errors.DeviceMissing: ("UNAVAILABLE", 503),
    errors.UnsupportedModel: ("UNAVAILABLE", 503),
    errors.AssessmentFailed: ("UNAVAILABLE", 503),
    errors.WorkerError: ("INTERNAL", 500),
    errors.WorkerDied: ("UNAVAILABLE", 503),
    errors.RunFailed: ("INTERNAL", 500),
    errors.DeviceFull: ("INTERNAL", 500),
    errors.BeyondDeviceLimit: ("INTERNAL", 500),
}


def _subclasses(kind: type[errors.ApplianceError]) -> set[type[errors.ApplianceError]]:
    return {kind}.union(*(_subclasses(inner) for inner in kind.__subclasses__()))


def test_every_error_has_the_statuses_that_are_wanted() -> None:
    ours = {kind for kind in _subclasses(errors.ApplianceError) if kind.__module__ == errors.__name__}
    assert ours == set(EXPECTED)
    for kind, (code, status) in EXPECTED.items():
        found = statuses_of(kind("why"))
        assert (found.grpc.name, found.http) == (code, status), kind


def test_no_row_says_what_its_branch_says() -> None:
    for kind, row in STATUSES.items():
        above = [STATUSES[each] for each in kind.__mro__[1:] if each in STATUSES]
        assert not above or above[0] != row, kind


def test_what_the_caller_must_change_is_4xx_and_what_may_pass_is_not_400() -> None:
    for kind, (_, status) in EXPECTED.items():
        if issubclass(kind, errors.CallerError) and kind not in (errors.DeadlineExpired, errors.Unsupported):
            assert 400 <= status < 500, kind
        if issubclass(kind, (errors.CapacityError, errors.NotReady)):
            assert status in (429, 503), kind


@pytest.mark.parametrize(("wait_ns", "wait_ms"), [(-1, -1), (0, 1), (1, 1), (1_000_000, 1), (2_000_001, 3)])
def test_a_wait_is_told_in_whole_milliseconds(wait_ns: int, wait_ms: int) -> None:
    assert retry_after_ms(errors.QueueFull("full", wait_ns)) == wait_ms
    assert retry_after_ms(errors.NotReady("no")) is None
    assert retry_after_ms(errors.WorkerDied("of it")) == -1, "a client that tries again by itself is held"
