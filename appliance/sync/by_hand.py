"""What a person brought: answers of the controller and streams that a command left while the agent runs."""

from __future__ import annotations

from collections.abc import Collection

from appliance.fleet.documents import DesiredState, Transfer
from appliance.sync.box import Box
from appliance.sync.carried import Carried
from appliance.sync.contact import take_answer
from appliance.sync.inbox import deliveries, remove
from appliance.sync.outboxes import acknowledge


def is_waiting(box: Box) -> bool:
    """Whether something was brought. Raises OSError."""
    return any(True for _ in deliveries(box.folder)) or bool(Carried(box.folder).ready(_ways(box.desired)))


def take(box: Box) -> int:
    """Take it in: first what is wanted, then the streams for that, while nothing is fetched. Gives how many answers
    there were. Raises OSError; what is not taken then is at the next time."""
    count = 0
    for name, delivery in deliveries(box.folder):
        take_answer(box, delivery.polled)
        for each in delivery.acknowledged:
            acknowledge(box.settings.state, each)
        remove(box.folder, name)
        count += 1
    Carried(box.folder).hand_over(_ways(box.desired))
    return count


def _ways(desired: DesiredState | None) -> Collection[Transfer]:
    if desired is None:
        return ()
    versions = [version for model in desired.models for version in model.versions()]
    return [way for version in versions for way in version.transfers]
