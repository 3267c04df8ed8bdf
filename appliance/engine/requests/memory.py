"""Where the tensors of one request lie: a slot for inputs, with room for the outputs behind them."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.engine.port import Buffer
from appliance.workers.arena import Arena, Slot, aligned


class RequestMemory:
    """``sizes`` are the bytes of each input of the model. Outputs go to ``out_offset``, within ``out_capacity`` bytes;
    ``out_slot`` is a place of their own, for outputs that turned out larger than expected."""

    __slots__ = ("out_capacity", "out_offset", "out_slot", "sizes", "slot")

    def __init__(self) -> None:
        self.sizes: tuple[int, ...] = ()
        self.slot: Slot | None = None
        self.out_slot: Slot | None = None
        self.out_offset = self.out_capacity = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all inputs."""
        return sum(self.sizes)

    def store(self, arena: Arena, tensors: Sequence[Buffer], span: int, outputs: int) -> bool:
        """Copy inputs, which take ``span`` bytes with alignment, into a slot with room for ``outputs`` bytes behind
        them; False when there is no room."""
        slot = arena.allocate(span + outputs)
        if slot is None:
            return False
        self.slot = slot
        view = arena.view(slot.offset, span)
        position = 0
        for tensor, size in zip(tensors, self.sizes, strict=True):
            view[position : position + size] = tensor
            position += aligned(size)
        self.place_outputs(arena, span)
        return True

    def place_outputs(self, arena: Arena, span: int) -> None:
        """Have outputs go behind the inputs, as they were to at first; a place of their own is given back."""
        slot = self.slot
        assert slot is not None
        if self.out_slot is not None:
            arena.free(self.out_slot)
            self.out_slot = None
        self.out_offset, self.out_capacity = slot.offset + span, slot.size - span

    def make_room(self, arena: Arena, nbytes: int) -> bool:
        """Find outputs a place of their own; False when there is no room."""
        self.out_slot = arena.allocate(nbytes)
        if self.out_slot is None:
            return False
        self.out_offset, self.out_capacity = self.out_slot.offset, self.out_slot.size
        return True

    def free(self, arena: Arena) -> None:
        """Give the memory back."""
        for slot in (self.slot, self.out_slot):
            if slot is not None:
                arena.free(slot)
        self.slot = self.out_slot = None
