"""Every error the appliance raises on purpose, branched by who must act on it.

One root, five branches: caller, capacity, operator, artefact, worker. Front ends translate a class into the statuses of
both protocols through one table (``frontend/statuses.py``); nothing below them knows a status code. Texts carry the
words that clients' tests match on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class ApplianceError(Exception):
    """Root of all errors that are part of the product's behaviour."""


# --- the caller must act


class CallerError(ApplianceError):
    """The request is wrong; sending it again unchanged gives the same answer."""


class InvalidRequest(CallerError):
    """Malformed or inconsistent request: names, datatypes, shapes, byte sizes, parameters. ``model`` is the name and
    version it did not fit, ("", 0) when it did not get that far."""

    model: tuple[str, int] = ("", 0)


class UnknownModel(CallerError):
    """No model of that name, or no such version of it."""


class UnknownRegion(CallerError):
    """No region of shared memory of that name that is the caller's."""


class RegionExists(CallerError):
    """The caller has a region of shared memory of that name."""


class Unsupported(CallerError):
    """Part of the protocol that this appliance does not offer or has turned off."""


class Forbidden(CallerError):
    """Allowed only when an operator turned it on."""


class MessageTooLarge(CallerError):
    """A message or body above the configured limit; refused before memory is taken for it."""


class Cancelled(CallerError):
    """The caller went away or cancelled; the answer is not wanted any more."""


class DeadlineExpired(CallerError):
    """The deadline passed while the request was waiting or running."""


# --- the caller may come back later


class CapacityError(ApplianceError):
    """The appliance cannot serve this request in time; ``retry_after_ns`` says when it may (0: unknown;
    negative: not before something else has changed)."""

    def __init__(self, text: str, retry_after_ns: int = 0) -> None:
        super().__init__(text)
        self.retry_after_ns = retry_after_ns


class QueueFull(CapacityError):
    """A queue bound, in requests or bytes, is reached."""


class AnswersFull(CapacityError):
    """Answers that clients have not taken yet hold all the memory there may be for them."""


class DeadlineUnreachable(CapacityError):
    """The request would be answered after its deadline, so it is refused at once."""


class QuotaExceeded(CapacityError):
    """This client asks more than its quota; others are served."""


class RegionsFull(CapacityError):
    """The caller has as many regions of shared memory, or bytes in them, as a user may have."""


class ModelAway(CapacityError):
    """The model is not in memory, and the request does not wait until it is."""


class NotReady(ApplianceError):
    """The model exists but no ready version can take the request now. ``model`` is the name and version that would have
    had to, ("", 0) when that is not known."""

    model: tuple[str, int] = ("", 0)


class NotServed(NotReady):
    """What was asked for is known, and no version of it serves."""


class Stopping(NotReady):
    """The appliance is draining."""


# --- the operator must act


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong in a file: where it is (file, key) and what to do about it."""

    file: str
    key: str
    text: str

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.file, self.key, self.text)))


def system_reason(error: Exception) -> str:
    """What is wrong in the system's words, without the place, which who tells it names."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class WithProblems(Exception):
    """Something with all that is wrong with it."""

    separator = "\n"

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: Sequence[Problem] = tuple(problems)
        super().__init__(self.separator.join(map(str, self.problems)))


class OperatorError(ApplianceError):
    """Wrong configuration or environment."""


class ConfigInvalid(WithProblems, OperatorError):
    """A configuration with all of its problems."""


class ConfigUnreadable(ConfigInvalid):
    """The file of a configuration is not there, or may not be read."""


class AddressUnavailable(OperatorError):
    """A listening address is in use or may not be bound."""


class StoreUnavailable(OperatorError):
    """The disk of the state directory does not do what it must: read-only, failing, gone, not permitted."""


class StoreFull(OperatorError):
    """There is no room for what should be stored, and nothing that may be evicted for it."""


class StoreBusy(OperatorError):
    """Another process writes to the store; ``pid`` is its number, 0 when it did not say."""

    def __init__(self, text: str, pid: int = 0) -> None:
        super().__init__(text)
        self.pid = pid


class StoreRefused(OperatorError):
    """What is asked of the store cannot be done as things are: not installed, still wanted, nothing to go back to."""


class CatalogLost(OperatorError):
    """There is no catalog where blobs or views say that there was one."""


class CatalogInvalid(WithProblems, OperatorError):
    """A catalog that cannot be believed, with all of its problems."""


class CatalogNewer(CatalogInvalid):
    """A catalog that a newer program wrote: nothing is wrong with it."""


# --- the maker of the model must act


class ArtefactError(ApplianceError):
    """A model file or directory that cannot be served."""


class ModelInvalid(WithProblems, ArtefactError):
    """A model directory with all of its problems."""

    separator = "; "


class PackageInvalid(WithProblems, ArtefactError):
    """A model package with all of its problems."""

    separator = "; "


class BlobMismatch(ArtefactError):
    """Bytes that are not what their name, their size or their package says."""


class LoadFailed(ArtefactError):
    """The runtime refused the model; the text is the runtime's reason."""


class FileDiffers(LoadFailed):
    """A file is not what it was when it was stored."""


class FormHasNoRoom(LoadFailed):
    """There is no room on the disk for a packed form; there may be later."""


class DeviceHasNoRoom(LoadFailed):
    """A device has no memory for a session, which somebody else may have for a moment; there may be later."""


class DeviceMissing(LoadFailed):
    """There is no device of the kind that the version asks for, or nothing that drives it."""


class UnsupportedModel(LoadFailed):
    """The model is made of what the installed runtime does not know, so that another try with the same files comes to
    the same. Never raised for what may pass: memory, a disk, a device."""


class AssessmentFailed(LoadFailed):
    """The model loads, and does not answer as its golden set says."""


# --- the appliance itself acts: it retries, restarts, quarantines


class WorkerError(ApplianceError):
    """A worker did not answer as it must."""


class WorkerDied(WorkerError):
    """The worker was killed, hung beyond its bound or answered nonsense while it held the request."""


class RunFailed(WorkerError):
    """The runtime raised while it ran the request; the worker lives on."""


class DeviceFull(RunFailed):
    """A device has no memory for a run, which somebody else may have for a moment."""


class BeyondDeviceLimit(RunFailed):
    """A run takes more of a device than its session is held to, however much is free there."""


def is_of_full_device(problem: Exception) -> bool:
    """Whether a load failed, or what was run in one, as a device had no memory: nothing is known against the model."""
    return isinstance(problem, DeviceHasNoRoom) or isinstance(problem.__cause__ or problem, DeviceFull)
