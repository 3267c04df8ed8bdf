"""Demand that what serves here answers: every model that is ready, a request of zeros, until all did or time is up.

The boot gate of an image: a version that was just installed is kept only where this ends well. A box whose models were
all taken away has nothing to ask; then it is enough that its daemon takes requests.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from appliance.cli import endpoint
from appliance.cli.arguments import configuration_at
from appliance.cli.endpoint import endpoint_of
from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.infer import build_inputs, wanted_classes
from appliance.cli.numbers import seconds
from appliance.cli.oip_client import OipClient, Question
from appliance.cli.snapshot import Snapshot, parse
from appliance.cli.status_source import StatusSource
from appliance.cli.tls import GRPC
from appliance.domain.errors import OperatorError
from appliance.image import note
from appliance.image.machine import look

PAUSE_S = 0.5
ANSWER_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    endpoint.add_arguments(parser)
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="a model that has to be among them, as one that answered before an upgrade; may be repeated",
    )
    parser.add_argument(
        "--within",
        type=seconds(1, 3600),
        default=180.0,
        metavar="S",
        help="seconds to wait at most (default 180)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Ask until there is a right answer or no time. What is typed or configured wrong does not get right meanwhile."""
    endpoint_of(arguments, GRPC)
    end = time.monotonic() + arguments.within
    while True:
        try:
            answered = ask(arguments)
            _tell(arguments, "")
            print(f"answered: {', '.join(answered) or 'no model is installed; the daemon takes requests'}")
            return Exit.OK
        except CommandFailed as failure:
            if time.monotonic() + PAUSE_S > end:
                text = f"no answer within {arguments.within:g} s: {failure}"
                _tell(arguments, text)
                raise CommandFailed(text, Exit.REFUSED) from failure
        time.sleep(PAUSE_S)


def _tell(arguments: argparse.Namespace, text: str) -> None:
    """Have the fleet know why this version of the image did not pass ("": it did), where this is an image and a
    configuration says where the box keeps what it has."""
    try:
        version = look().version
    except OperatorError:
        return
    state = configuration_at(arguments.config).state_dir
    try:
        if not state:
            return
        if text:
            note.leave(Path(state), f"version {version} of the image did not pass its start: {text}")
        else:
            note.remove(Path(state))
    except OSError as error:
        print(f"'{state}': {error.strerror}", flush=True)


def ask(arguments: argparse.Namespace) -> list[str]:
    """The models that answered, which are all of those that are there. Raises CommandFailed."""
    source = StatusSource(arguments)
    names = ready_models(parse(source.fetch(), source.url), arguments.model)
    with OipClient(endpoint_of(arguments, GRPC), ANSWER_S) as client:
        for name in names:
            signature = client.signature(name, "")
            inputs = build_inputs(name, signature.inputs, (), zero_fill=True)
            classes = wanted_classes(signature, (), None)
            client.ask(Question(model=name, version="", inputs=inputs, classes=classes, priority=1))
    return names


def ready_models(snapshot: Snapshot, needed: Sequence[str] = ()) -> list[str]:
    """The models of which a version is ready. Raises CommandFailed while one is still coming, one of the ``needed``
    ones is not ready, or requests are not taken."""
    if not snapshot.accepting:
        raise CommandFailed("requests are not taken yet", Exit.REFUSED)
    ready = {model.name for model in snapshot.models if model.state == "READY"}
    waiting = sorted({model.name for model in snapshot.models if model.state == "LOADING"} - ready)
    if waiting:
        raise CommandFailed(f"being loaded: {', '.join(waiting)}", Exit.REFUSED)
    if missing := sorted(set(needed) - ready):
        raise CommandFailed(f"not ready: {', '.join(missing)}", Exit.REFUSED)
    if snapshot.models and not ready:
        raise CommandFailed("none of the models is ready", Exit.REFUSED)
    return sorted(ready)
