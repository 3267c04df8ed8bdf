"""What becomes of packed forms on the disk by what a worker says of them.

Workers themselves cannot write there, but at the place where one is built. What was said has been checked: it concerns
a form of the version that was being loaded or built, and no other.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from appliance.domain.errors import ArtefactError
from appliance.domain.model import ModelVersion
from appliance.domain.side_by_side import slowest
from appliance.workers.forms import (
    BUILDING,
    FORM_FILE,
    discard_site,
    drop_form,
    is_directory,
    place_form,
    prove_form,
    refuse_form,
    site_size,
)
from appliance.workers.jail.access import longest_file
from appliance.workers.messages import Build, Load
from appliance.workers.port import FormBuilt, FormJudged, FormVerdict
from appliance.workers.seal import seal_form, seal_problem, sealed_documents

LOOK_S: Final = 0.5
BUILDING_COPIES: Final = 3
"""A form is written twice, and has a document."""
BUILDING_FILES_MAX: Final = 16


def for_worker(version: ModelVersion) -> ModelVersion:
    """The version without what only front ends need, which may be large, and with what is known here of its forms;
    without those where engines are not opened, which leaves them on the disk as they are."""
    forms = "" if seal_problem(version.runtime) else version.forms
    return replace(version, labels={}, forms=forms, sealed=sealed_documents(version))


def mark_form(asked: object, judged: FormJudged, *, shared: bool = False) -> FormJudged:
    """Leave the mark of a verdict on a form of the version that was ``asked`` to be loaded or built; gives the verdict
    as it was taken. A worker that is or was ``shared`` by several models refuses none for good: it may be another model
    that speaks."""
    assert isinstance(asked, Load | Build)
    if shared and judged.verdict is FormVerdict.REFUSED:
        judged = judged._replace(verdict=FormVerdict.DROPPED)
    version = asked.version
    path = os.path.join(version.forms, judged.name)
    if not version.forms or not is_directory(path):
        return judged
    if judged.verdict is FormVerdict.PROVEN:
        prove_form(path)
    elif judged.verdict is FormVerdict.DROPPED:
        drop_form(path, judged.reason, for_good=not shared)
    else:
        refuse_form(path, judged.reason)
    return judged


def watch_site(
    loop: asyncio.AbstractEventLoop,
    version: ModelVersion,
    builds: Callable[[], bool],
    stop: Callable[[str], None],
) -> None:
    """Have a builder stopped that writes more than building takes, for as long as it ``builds``: nothing else keeps it
    from filling the disk."""

    def judge(looked: asyncio.Future[str]) -> None:
        if builds() and (problem := looked.result()):
            stop(problem)
        elif builds():
            loop.call_later(LOOK_S, look)

    def look() -> None:
        loop.run_in_executor(None, site_problem, version).add_done_callback(judge)

    loop.call_later(LOOK_S, look)


def site_problem(version: ModelVersion) -> str:
    """What is too much of what lies where a form of the version is built, for people; "" when nothing is."""
    files, nbytes = site_size(version.forms, version.digest)
    most = BUILDING_COPIES * longest_file(version)
    if files <= BUILDING_FILES_MAX and nbytes <= most:
        return ""
    return f"more than {BUILDING_FILES_MAX} files, or {most} bytes, for a packed form"


def after_builder(
    loop: asyncio.AbstractEventLoop,
    version: ModelVersion | None,
    built: FormBuilt | None,
    then: Callable[[FormBuilt | None], None],
) -> None:
    """Take up beside the loop what a worker that has ended built of ``version``, unless that is None; ``then`` gets
    what came of it."""
    if version is None:
        then(None)
    else:
        taken_up = loop.run_in_executor(None, take_up_form, version, built)
        taken_up.add_done_callback(lambda done: then(done.result()))


def take_up_form(version: ModelVersion, built: FormBuilt | None) -> FormBuilt | None:
    """Put a form that was built into its place, or remove what is left of one that was not; gives what came of it. Its
    builder has ended. Removing large files takes a while: not for the event loop."""
    if built is not None and built.failure is None and (problem := seal_problem(version.runtime)):
        built = built._replace(name="", nbytes=0, failure=f"{version.key}: {problem}")
    if built is not None and built.failure is None:
        try:
            new = os.path.isfile(os.path.join(version.forms, f"{BUILDING}{built.name}", FORM_FILE))
            nbytes = place_form(version.forms, built.name, longest_file(version))
            # What was there before has its seal, or is to have none. An engine that is to be refused has none at any
            # moment: should the daemon end before it is, nothing opens it.
            if new and slowest(built.compared) is None:
                seal_form(version, built.name)
            return built._replace(nbytes=nbytes)
        except (OSError, ArtefactError) as error:
            reason = f"{version.key}: its packed form could not be put into its place: {error}"
            built = built._replace(name="", nbytes=0, failure=reason)
    discard_site(version.forms, version.digest)
    return built
