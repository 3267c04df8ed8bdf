"""What becomes of packed forms on the disk by what a worker says of them.

Workers themselves cannot write there, but at the place where one is built. What was said has been checked: it concerns
a form of the version that was being loaded or built, and no other.
"""

from __future__ import annotations

import os

from appliance.workers.forms import discard_site, drop_form, place_form, prove_form, refuse_form
from appliance.workers.messages import Build, Load
from appliance.workers.port import FormBuilt, FormJudged, FormVerdict


def mark_form(asked: object, judged: FormJudged) -> None:
    """Leave the mark of a verdict on a form of the version that was ``asked`` to be loaded or built."""
    assert isinstance(asked, Load | Build)
    version = asked.version
    if not version.forms:
        return
    path = os.path.join(version.forms, judged.name)
    if not os.path.isdir(path):
        return
    if judged.verdict is FormVerdict.PROVEN:
        prove_form(path)
    elif judged.verdict is FormVerdict.DROPPED:
        drop_form(path, judged.reason)
    else:
        refuse_form(path, judged.reason)


def take_up_form(asked: object, built: FormBuilt) -> FormBuilt:
    """Put a form that was built into its place, or remove what is left of one that was not; gives what came of it."""
    assert isinstance(asked, Build)
    version = asked.version
    if built.failure:
        discard_site(version.forms, version.digest)
        return built
    try:
        place_form(version.forms, built.name)
    except OSError as problem:
        discard_site(version.forms, version.digest)
        reason = f"{version.key}: its packed form could not be put into its place: {problem.strerror}"
        return built._replace(name="", nbytes=0, failure=reason)
    return built
