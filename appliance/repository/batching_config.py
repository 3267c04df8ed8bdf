"""What ``dynamic_batching`` of a ``config.pbtxt`` says: which sizes of batches are worth a wait, how long one waits for
them, and the queues of its levels of priority."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from appliance.domain.model import Batching, QueuePolicy, TimeoutAction
from appliance.repository.section import INT64_MAX, Section

PRIORITY_LEVELS_MAX: Final = (1 << 30) - 1
"""Below the level of requests that are served after all others."""
PREFERRED_MAX: Final = 64
"""Preferred sizes: each decision of the scheduler looks at all."""
TIME_US_MAX: Final = INT64_MAX // 2_000
"""A time from now on is counted in nanoseconds of 63 bits, after 146 years of running as well."""

_ACTIONS: Final = MappingProxyType({action.name: action for action in TimeoutAction})


def read_batching(section: Section) -> Batching:
    """The batching that ``dynamic_batching { ... }`` describes. Whether the preferred sizes fit the largest
    batch is for the caller, who knows it."""
    levels = section.integer("priority_levels", maximum=PRIORITY_LEVELS_MAX)
    section.refuse({"preserve_ordering": "is not offered: answers go back as they finish; remove it"})
    default_policy = section.section("default_queue_policy")
    batching = Batching(
        preferred_batch_size=section.integers("preferred_batch_size", minimum=1, most=PREFERRED_MAX),
        max_queue_delay_us=section.integer("max_queue_delay_microseconds", maximum=TIME_US_MAX),
        priority_levels=levels,
        default_priority_level=_default_level(section, levels),
        default_queue_policy=_queue_policy(default_policy) if default_policy else QueuePolicy(),
        priority_queue_policy=_level_policies(section, levels),
    )
    section.close()
    return batching


def _default_level(section: Section, levels: int) -> int:
    level = section.integer("default_priority_level", maximum=PRIORITY_LEVELS_MAX)
    if levels and not 1 <= level <= levels:
        section.problem(
            "default_priority_level", f"must be 1 to {levels}, the priority_levels; found {level}"
        )
        return 1
    if level and not levels:
        section.problem("default_priority_level", "needs priority_levels, which is not set")
        return 0
    return level


def _level_policies(section: Section, levels: int) -> dict[int, QueuePolicy]:
    policies: dict[int, QueuePolicy] = {}
    for level, inner in section.numbered_entries("priority_queue_policy", maximum=INT64_MAX):
        policies[level] = _queue_policy(inner)
        if not 1 <= level <= levels:
            known = f"the priority levels are 1 to {levels}" if levels else "priority_levels is not set"
            inner.problem("", f"there is no priority level {level}; {known}")
    return policies


def _queue_policy(section: Section) -> QueuePolicy:
    """A request's own time-out counts unless the file says otherwise: one deadline, the earliest."""
    plain = QueuePolicy()
    policy = QueuePolicy(
        timeout_action=section.choice("timeout_action", _ACTIONS) or plain.timeout_action,
        default_timeout_us=section.integer("default_timeout_microseconds", maximum=TIME_US_MAX),
        allow_timeout_override=section.flag("allow_timeout_override", default=plain.allow_timeout_override),
        max_queue_size=section.integer("max_queue_size", maximum=(1 << 32) - 1),
    )
    section.close()
    return policy
