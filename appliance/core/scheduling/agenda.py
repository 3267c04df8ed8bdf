"""When each group must next be looked at: one time per group, in order, replaced in place."""

from __future__ import annotations

from bisect import bisect_left, insort

from appliance.core.scheduling.group import NEVER, Group


class Agenda:
    """Groups by ``due_ns``. Only this changes a group's ``due_ns``."""

    __slots__ = ("_entries", "first_ns")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, Group]] = []
        self.first_ns = NEVER
        """The earliest time at which a group is due (NEVER: none is)."""

    def first(self) -> Group:
        """The group that is due first; there must be one."""
        return self._entries[0][2]

    def set(self, group: Group, due_ns: int) -> None:
        """``group`` is due at ``due_ns`` and not before (NEVER: not at all)."""
        entries = self._entries
        if group.due_ns < NEVER:
            del entries[bisect_left(entries, (group.due_ns, group.group))]
        group.due_ns = due_ns
        if due_ns < NEVER:
            insort(entries, (due_ns, group.group, group))
        self.first_ns = entries[0][0] if entries else NEVER

    def check_integrity(self, groups: list[Group]) -> None:
        """Assert that exactly the groups that are due at some time are listed, in order."""
        listed = sorted((group.due_ns, group.group) for group in groups if group.due_ns < NEVER)
        assert [entry[:2] for entry in self._entries] == listed, "agenda differs from its groups"
