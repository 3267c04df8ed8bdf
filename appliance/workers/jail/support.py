"""What this kernel can keep a process from, and the words for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from appliance.workers.jail import landlock, seccomp


class Support(NamedTuple):
    """``landlock`` is the version of that interface, 0 without; ``filter``: system calls can be filtered."""

    landlock: int
    filter: bool

    @property
    def lacking(self) -> tuple[str, ...]:
        """What a worker cannot be kept from, for people; empty where nothing is lacking."""
        return tuple(self._lacking())

    def _lacking(self) -> Iterator[str]:
        if not self.filter:
            yield "calls: this kernel or architecture has no seccomp filters"
        if not self.landlock:
            yield "files, network, signals: this kernel has no Landlock, or it is switched off"
            return
        had = f"Landlock {self.landlock} of this kernel"
        if not landlock.handles_files(self.landlock):
            yield f"files: {had} lets them be cut; 3 (Linux 6.2) does not"
        if not landlock.handles_network(self.landlock):
            yield f"network: {had} does not know it; 4 (Linux 6.7) does"
        if not landlock.scopes(self.landlock):
            yield f"signals: {had} does not know them, nor abstract sockets; 6 (Linux 6.12) does"

    @property
    def kept_from(self) -> tuple[str, ...]:
        """What a worker is kept from, in one word each: files, network, signals, calls."""
        known = self.landlock
        parts = (
            ("files", known > 0),
            ("network", landlock.handles_network(known) and self.filter),
            ("signals", landlock.scopes(known)),
            ("calls", self.filter),
        )
        return tuple(word for word, held in parts if held)


def kernel_support() -> Support:
    """Ask this kernel."""
    return Support(landlock.version(), seccomp.can_filter())
