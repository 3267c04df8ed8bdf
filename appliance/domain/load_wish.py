"""How a version is to be loaded, as the rollout asks for it and a worker does it."""

from __future__ import annotations

from typing import Final, NamedTuple


class LoadWish(NamedTuple):
    """How a version is to be loaded.

    ``background``: beside what the worker does, in a thread that gets the processor and the disk when nothing else
    wants them (SCHED_IDLE, idle I/O class); no request waits for it. A worker that holds other models loads at the
    normal processor class all the same, because a thread that starves while it holds the interpreter would stall them.
    ``urgent``: in the normal classes even so, because a person waits for it, perhaps on a box that has nothing idle.
    ``assess``: run the golden set, if the version has one, then measure how long runs take; what fails refuses the
    version. ``quick``: the sooner first answer instead of the fastest runs: weights mapped as they are, no warm-ups and
    no seeds; of no effect on weights inside the model file. ``tell``: say on the way how far it is, for people.
    ``probe``: see whether rows that run together are answered as each is alone, which nobody said of the version.
    ``room_bytes`` is what its session may take of a device with memory of its own; 0: what there is.

    Weights are held against their digests, where they have any, beside the loading.
    """

    background: bool = False
    urgent: bool = False
    assess: bool = False
    quick: bool = False
    tell: bool = False
    room_bytes: int = 0
    probe: bool = False

    @property
    def yields(self) -> bool:
        """Whether it gets processor and disk when nothing else wants them."""
        return self.background and not self.urgent

    @property
    def early(self) -> bool:
        """Whether it counts as loaded while its weights are still being read: it runs, and answers when they are all
        there and verified, which WeightsPagedIn tells. Not where it is to be seen running before."""
        return self.quick and not self.background and not self.assess


PLAIN_LOAD: Final = LoadWish()
"""Now, at full speed, for good."""
