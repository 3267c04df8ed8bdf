"""What is said of versions, in words: rendered from data, and read by people and clients alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from appliance.core.memory import budget
from appliance.core.rollout import reasons
from appliance.core.rollout.reasons import Outlook, Remark, Setback, Verdict, WaitReason
from appliance.domain.device import DeviceName
from appliance.domain.interface import ALLOWED_PARAMETER, BatchChange, InterfaceChange
from appliance.domain.model import OWN_WORKER_PARAMETER
from appliance.domain.moment import moment
from appliance.domain.tensor import TensorSpec
from appliance.engine.port import NEVER

MB: Final = 1_000_000
DEVICE: Final = "device"
"""What a version waits for that has no sound device, in a word."""
CHANGES_SHOWN: Final = 3
NAME_SHOWN: Final = 80
AT_THE_START: Final = "GPUs are found when the appliance starts, and it is not tried again before that"
AS_THEY_ARE: Final = (
    "its files are not tried again as they are before the appliance starts anew or somebody asks"
)
STILL_PREVIOUS: Final = "still serving the previous file; the new one"
"""How it is said that a version serves, but not from the file that was asked for; what the new one does follows."""


class Said(NamedTuple):
    """What there is to say of a version: in words, and to programs (see VersionStatus)."""

    reason: str = ""
    outlook: Outlook = Outlook.AS_WANTED
    waiting: str = ""


def megabytes(size_bytes: int) -> str:
    """For people."""
    return f"{size_bytes / MB:,.1f} MB"


def limit_text(limit: budget.Limit) -> str:
    """The budget, and what cannot be had of it."""
    text = f"residency.budget_bytes is {megabytes(limit.bytes)}"
    if not limit.configured:
        text = f"there is memory for models of {megabytes(limit.bytes)}"
    if limit.kept_bytes:
        text += f", of which residency.pins and versions on trial keep {megabytes(limit.kept_bytes)}"
    return text


def wait_text(waiting: WaitReason) -> str:
    """What a version waits for."""
    match waiting:
        case budget.NeverFits(need_bytes=need, limit=limit):
            return f"can never fit into memory: it needs about {megabytes(need)}, and {limit_text(limit)}"
        case budget.WaitsBesidePins(need_bytes=need, limit=limit):
            return f"waits for memory: it needs about {megabytes(need)}, and {limit_text(limit)}"
        case budget.WaitsForIdle(need_bytes=need):
            return (
                f"waits for memory: it needs about {megabytes(need)}, and what could leave memory is in use"
            )
        case budget.WaitsForOvercommit():
            return "waits for memory: another version is tried above the budget"
        case budget.WaitsForMachine(need_bytes=need, beside_bytes=beside, left_bytes=left, limit=limit):
            return (
                f"waits for memory: it needs about {megabytes(need)} beside the {megabytes(beside)} of the version "
                f"that serves; {limit_text(limit)}, and the machine has {megabytes(left)} left, too little to try it "
                "above the budget"
            )
        case budget.WaitsForDevice(faults=faults):
            return f"waits for a device: {faults_text(faults)}"
        case budget.WaitsForProcess(processes=processes):
            return (
                f"waits for a worker process of its own ({OWN_WORKER_PARAMETER}): all {processes} are taken "
                "(placement.max_processes)"
            )
        case reasons.WaitsForServing():
            return "waits for a version that serves, to be tried beside it"
        case reasons.WaitsForTrialOf(version=version):
            return f"waits for the trial of version {version} to end"
        case reasons.WaitsForWanted():
            return "waits for the trial of the version that is wanted to end"


def waiting_word(waiting: WaitReason | None) -> str:
    """What a version waits for, in a word that programs go by; "" where it waits for nothing."""
    match waiting:
        case None:
            return ""
        case budget.NeverFits():
            return NEVER
        case reasons.WaitsForServing() | reasons.WaitsForTrialOf() | reasons.WaitsForWanted():
            return "trial"
        case budget.WaitsForDevice():
            return DEVICE
        case budget.WaitsForProcess():
            return "process"
        case _:
            return "memory"


def faults_text(faults: Iterable[tuple[DeviceName, str]]) -> str:
    """Why devices take no versions."""
    return "; ".join(f"{device} is drained, as it {fault}" for device, fault in faults)


def beyond_room_text(said_bytes: int, room_bytes: int) -> str:
    """That a session has more of its device than there is for it."""
    return (
        f"its session says that it has {said_bytes} bytes of its GPU, where others left {room_bytes}: it is not "
        "believed, or takes too much; see who has them (nvidia-smi), and give it a worker of its own to know"
    )


def no_room_for_builder_text() -> str:
    """Why the form of a version on a device is not built now."""
    return (
        "its GPU has no room for a worker that builds one beside what versions have there; it is tried again, and "
        "sooner with fewer models on that GPU"
    )


def awaits_shapes_text() -> str:
    """Why no engine is built yet of a version with free dimensions."""
    return (
        "one is built for the shapes that requests have, once these have not grown for ten minutes; tensorrt_free_max "
        "in config.pbtxt would say how large they can be"
    )


def remark_text(remark: Remark | WaitReason) -> str:
    """What there is to remark of a version, in words; the history keeps them."""
    if isinstance(remark, WaitReason):
        return wait_text(remark)
    if isinstance(remark, Verdict):
        return verdict_text(remark)
    match remark:
        case reasons.Failed(why=why):
            return verdict_text(why)
        case reasons.RolledBack(why=why):
            return f"rolled back: {verdict_text(why)}"
        case reasons.Rejected(why=kept, again=again):
            return f"is not tried again: {kept}; {_again_text(again)}"
        case reasons.OutOfTries(tries=tries, again=again):
            return f"was tried {tries} times and did not prove itself; swap.tries allows no more; {_again_text(again)}"
        case reasons.Untried(what=what, version=version):
            return f"its {what.value} are not those of version {version}"
        case reasons.Unheld(version=version):
            return f"the version before it, {version}, has one"
        case reasons.Showed():
            return _showed_text(remark)
        case reasons.ServesAgain():
            return "it serves again"
        case reasons.NoLongerWanted(model=False):
            return "no longer wanted"
        case reasons.NoLongerWanted(at_start=True):
            return "no version of the model was wanted any more when the appliance started"
        case reasons.NoLongerWanted():
            return "no version of the model is wanted any more"
        case reasons.NextTry(at_ms=at_ms):
            return f"nothing else of the model serves; {next_try(at_ms)}"


def verdict_text(verdict: Verdict) -> str:
    """Why a version does not serve, or does no more."""
    match verdict:
        case reasons.LoadRefused(detail=detail, homeless=True):
            return f"{detail}; {AT_THE_START}"
        case reasons.LoadRefused(detail=detail, unsupported=True):
            return f"{detail}; {AS_THEY_ARE}"
        case reasons.LoadRefused(detail=detail):
            return detail
        case reasons.PromiseBroken(rows=rows, p99_ns=p99, promised_ns=promised):
            return f"99 of 100 runs of {rows} rows take up to {_us(p99)}; {_us(promised)} are promised"
        case reasons.TooSlow(run_ns=run, before_ns=before, factor=factor):
            return (
                f"is too slow: a run takes {_us(run)}, and {_us(before)} with the version that it would replace; "
                f"swap.slower_factor allows {factor:g} times that"
            )
        case reasons.EngineSlower():
            return _slower_text(verdict)
        case reasons.CannotBeTried(unlike=True):
            return "cannot be tried: its inputs or outputs are not those of the version that serves"
        case reasons.CannotBeTried():
            return "cannot be tried: the catalog asks for no share of the requests"
        case reasons.AnswersDiffer(differing=differing, compared=compared, last=last):
            return f"answers differently: {differing} of {compared} in the shadow; the last one {last}"
        case reasons.Fails(failed=failed, total=total, before=share, percent=percent):
            return (
                f"fails: {failed} of {total} requests, {share:.1%} with the version before; swap.error_percent "
                f"allows {percent:g} % more"
            )
        case reasons.Slow(run_ns=run, before_ns=before, factor=factor, alike=alike):
            less = "" if alike else ", without its engine"
            return (
                f"is slow: nine of ten runs take up to {_us(run)}, and {_us(before)} with the version before{less}; "
                f"swap.latency_factor allows {factor:g} times that"
            )
        case reasons.Crashed(detail=detail, repeated=repeated):
            return f"quarantined after repeated crashes: {detail}" if repeated else f"crashed: {detail}"
        case reasons.NotCounted(problem=problem):
            return f"its try cannot be counted: {problem}"
        case reasons.WantedAgain(version=version):
            return f"version {version} is wanted again"
        case reasons.Missed(why=why, missed=missed, before=number):
            return f"{verdict_text(why)}; it refused {missed} requests that version {number} would have taken"
        case reasons.InterfaceChanged(changes=changes, version=version, again=again):
            return (
                f"is held back: clients of version {version}, which serves, could not talk to it: "
                f"{_changes_text(changes)}; {_allow_text(again)}"
            )


def _slower_text(slower: reasons.EngineSlower) -> str:
    """What runs took, and how that was measured."""
    how = "measured apart, so that it is built and tried once more when the appliance starts anew"
    if slower.pairs:
        how = f"medians of {slower.pairs} runs of each in turns, of {slower.rows} rows"
    return (
        f"its engine is slower: a run takes {_us(slower.engine_ns)}, and {_us(slower.session_ns)} in the session that "
        f"it has without ({how}), {slower.ratio:.2f} times as long, where {slower.factor:g} times is allowed"
    )


def _again_text(again: reasons.AskAgain) -> str:
    if again.packaged:
        return f"'appliance model want {again.key}' asks for it again"
    name = again.key.rpartition("/")[0]
    return f"change its files, or ask for it again: 'appliance model load {name}', or SIGHUP"


def _allow_text(again: reasons.AskAgain) -> str:
    """What an operator does whose clients change along."""
    if again.packaged:
        return f"'appliance model want {again.key} --allow-interface-change' has it go live all the same"
    return f"the parameter {ALLOWED_PARAMETER} 'true' in its config.pbtxt has it go live all the same"


def _changes_text(changes: tuple[InterfaceChange, ...]) -> str:
    """The first of the changes, and how many there are besides."""
    said = [f"{name} was {was}, is {now}" for name, was, now in map(change_words, changes[:CHANGES_SHOWN])]
    if more := len(changes) - CHANGES_SHOWN:
        said += [f"and {more} more"] if more > 0 else []
    return "; ".join(said)


def change_words(change: InterfaceChange) -> tuple[str, str, str]:
    """What changed, as it was and as it is: a row of a table."""
    if isinstance(change, BatchChange):
        return "largest batch", str(change.was or "as its inputs say"), str(change.now)
    spec = change.was or change.now
    assert spec is not None, "a change of nothing"
    return (
        f"{change.port.value} '{spec.name[:NAME_SHOWN]}'",
        _tensor_text(change.was),
        _tensor_text(change.now),
    )


def _tensor_text(spec: TensorSpec | None) -> str:
    if spec is None:
        return "absent"
    return f"{spec.datatype.wire} [{','.join(map(str, spec.shape))}]{' optional' * spec.optional}"


def _showed_text(showed: reasons.Showed) -> str:
    said = []
    if showed.untried is not None:
        said.append(f"without the configured trial: {remark_text(showed.untried)}")
    if showed.unheld is not None:
        said.append(f"without a golden set: {remark_text(showed.unheld)}")
    if showed.compared:
        said.append(f"{showed.compared} answers compared, {showed.differing} of them different")
    if showed.run_ns is not None:
        said.append(f"a run takes {_us(showed.run_ns)}")
    return ", ".join(said)


def _us(ns: int) -> str:
    return f"{ns / 1_000:,.0f} us"


def setback_text(setback: Setback) -> str:
    """Why the file that was asked for does not serve, behind STILL_PREVIOUS."""
    match setback:
        case reasons.Failed(why=why):
            return f"failed: {verdict_text(why)}"
        case reasons.RolledBack(why=why):
            return f"was rolled back: {verdict_text(why)}"
        case _:
            return remark_text(setback)


def given_by_hand(name: str) -> str:
    """Said of all versions of a model that is served as an operator gave it by hand."""
    return (
        f"loaded by hand with other settings or files, which stay until 'appliance model unload {name}' and 'load "
        f"{name}' take them back, or the appliance starts anew"
    )


def next_try(at_ms: int) -> str:
    """When a version that was given up is tried again; ``at_ms`` is by the wall clock."""
    return f"next try at {moment(at_ms)}"


def with_next_try(reason: str, at_ms: int) -> str:
    """Why a version does not serve, and when it is tried again (0: it is not)."""
    return f"{reason}; {next_try(at_ms)}" if at_ms else reason
