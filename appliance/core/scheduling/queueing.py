"""What enters and leaves the queue of a group, with every sum that is kept of it."""

from __future__ import annotations

from bisect import bisect_left, insort

from appliance.core.scheduling.group import LEVEL_DELAYED, NEVER, BatchKey, Group, QueuedRequest


def enqueue(group: Group, entry: QueuedRequest) -> None:
    """Put ``entry`` into its batch key's queue and all sums."""
    batch_key = entry.batch_key
    model = batch_key.model
    level, deadline_ns = order = entry.level, entry.deadline_ns
    key = (level, deadline_ns, entry.sequence, entry)
    if not batch_key.queued_rows:
        group.partial_ns += batch_key.plan_ns
    batch_key.queue.insert(key)
    batch_key.queued_rows += entry.rows
    batch_key.uneven += entry.uneven
    if batch_key.queue.keys[0][2] == entry.sequence:
        set_head(group, batch_key)
    group.queued += 1
    model.queued += 1
    if entry.charge_ns:
        group.charges.add(level, deadline_ns, entry.charge_ns)
    promises = group.promises
    own_ns = entry.own_ns + entry.waste_ns
    if own_ns > promises.own_ns_max:
        promises.own_ns_max = own_ns
    if order > promises.latest:
        promises.latest = order
    if not model.plain:
        model.queued_at[level] = model.queued_at.get(level, 0) + 1
        if entry.delay_at_ns:
            group.delays.insert((0, entry.delay_at_ns, entry.sequence, entry))


def remove(group: Group, entry: QueuedRequest) -> None:
    """Take one entry out of the middle of its queue."""
    batch_key = entry.batch_key
    batch_key.queue.remove(entry.level, entry.deadline_ns, entry.sequence)
    batch_key.queued_rows -= entry.rows
    batch_key.uneven -= entry.uneven
    if entry.charge_ns:
        group.charges.add(entry.level, entry.deadline_ns, -entry.charge_ns)
    group.queued -= 1
    batch_key.model.queued -= 1
    if not batch_key.model.plain:
        _uncount(group, entry)
    head = batch_key.head
    assert head is not None
    if head[2] == entry.sequence:
        set_head(group, batch_key)
    _left(group, batch_key)


def take(group: Group, batch_key: BatchKey, entries: list[QueuedRequest]) -> None:
    """Take ``entries``, the first ones of ``batch_key``'s queue, out of it."""
    batch_key.queue.take(len(entries))
    model = batch_key.model
    book = group.charges.add
    count = len(entries)
    for entry in entries:
        batch_key.queued_rows -= entry.rows
        batch_key.uneven -= entry.uneven
        if entry.charge_ns:
            book(entry.level, entry.deadline_ns, -entry.charge_ns)
    group.queued -= count
    model.queued -= count
    if not model.plain:
        for entry in entries:
            _uncount(group, entry)
    set_head(group, batch_key)
    _left(group, batch_key)


def set_head(group: Group, batch_key: BatchKey) -> None:
    """Make ``heads`` hold the present first key of ``batch_key``."""
    heads = group.heads
    if batch_key.head is not None:
        del heads[bisect_left(heads, batch_key.head)]
    if batch_key.queue:
        level, deadline_ns, sequence, _ = batch_key.queue.first()
        batch_key.head = (level, deadline_ns, sequence, batch_key)
        insort(heads, batch_key.head)
    else:
        batch_key.head = None


def delay_due(group: Group, now_ns: int) -> None:
    """Put those behind all others whose queue time-out says so by now."""
    while group.delays and group.delays.first()[1] <= now_ns:
        entry = group.delays.first()[3]
        remove(group, entry)
        entry.level = LEVEL_DELAYED
        entry.delay_at_ns = 0
        enqueue(group, entry)


def next_due(group: Group) -> int:
    """When the first deadline or queue time-out of what is queued passes."""
    due_ns = group.delays.first()[1] if group.delays else NEVER
    for head in group.heads:
        key = head[3].queue.seek(0)
        while key is not None:
            due_ns = min(due_ns, key[1])
            key = head[3].queue.seek(key[0] + 1)
    return due_ns


def _uncount(group: Group, entry: QueuedRequest) -> None:
    queued_at = entry.batch_key.model.queued_at
    queued_at[entry.level] -= 1
    if not queued_at[entry.level]:
        del queued_at[entry.level]  # levels are as many as clients name
    if entry.delay_at_ns:
        group.delays.remove(0, entry.delay_at_ns, entry.sequence)


def _left(group: Group, batch_key: BatchKey) -> None:
    """Something left the queue of ``batch_key``: drop what was known only for it."""
    if not batch_key.queued_rows:
        group.partial_ns -= batch_key.plan_ns
    if not group.queued:
        group.promises.clear()
