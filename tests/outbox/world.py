"""An outbox through a long life by seed: a producer, a sender, a receiver, a disk that fails, is full, loses what was
not synced, and gives back something else than was written.

What is checked is conservation: each record that the producer was told is kept is with the receiver, byte for byte, or
a gap that the receiver has accounts for its number.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from random import Random

from appliance.outbox.gap import Gap, Reason
from appliance.outbox.outbox import Outbox, OutboxFull, Policy
from appliance.outbox.reader import OutboxReader
from appliance.outbox.segment import HEADER_BYTES
from tests.store.volatile_disk import VolatileDisk

STEPS = 60
Number = tuple[str, int]


@dataclass(slots=True)
class Seen:
    """What a history came to."""

    kept: int = 0
    held: int = 0
    gaps: int = 0
    refused: int = 0
    failed: int = 0
    crashes: int = 0
    wrong: list[str] = field(default_factory=list)


class World:
    """One history. ``damage``: the disk gives back other bytes than were written, now and then."""

    def __init__(self, seed: int, *, damage: bool = False) -> None:
        self.random = Random(seed)
        self.damage = damage
        self.seen = Seen()
        self.policy = self.random.choice(list(Policy))
        self.limit = self.random.choice([40_000, 200_000])
        self.fault_share = self.random.choice([0.0, 0.01, 0.1])
        self.disk = VolatileDisk()
        self.kept: dict[Number, bytes] = {}
        self.held: dict[Number, bytes] = {}
        self.gaps: list[Gap] = []
        self.told = 0
        self.open()

    def open(self) -> None:
        """Both processes begin."""
        while True:
            try:
                self.outbox = Outbox(
                    self.disk, self.limit, self.policy, lambda: f"{self.random.getrandbits(128):032x}"
                )
                self.reader = OutboxReader(self.disk)
                return
            except OSError:
                self.seen.failed += 1

    def play(self) -> Seen:
        """The whole history, then a time without faults in which all is sent."""
        self.disk.before = self.fail
        for _ in range(STEPS):
            self.random.choice([self.append, self.append, self.append, self.send, self.crash])()
            if self.damage and self.random.random() < 0.05:
                self.harm()
        self.crash(power=self.random.random() < 0.5)
        self.disk.before = lambda operation, path: None
        self.open()
        while self.send():
            pass
        self.check()
        return self.seen

    def fail(self, operation: str, path: str) -> None:
        """The disk, at an operation."""
        if self.random.random() < self.fault_share:
            raise OSError(self.random.choice([errno.ENOSPC, errno.EIO]), operation)

    def append(self) -> None:
        """Some records that nothing else is like."""
        payloads = []
        for _ in range(self.random.randint(1, 20)):
            self.told += 1
            payloads.append(f"{self.told}:".encode() + bytes(self.random.randint(1, 400)))
        try:
            first = self.outbox.append(payloads)
        except OutboxFull:
            self.seen.refused += 1
        except OSError:
            self.seen.failed += 1
        else:
            for index, payload in enumerate(payloads):
                self.kept[self.outbox.epoch, first + index] = payload

    def send(self) -> bool:
        """The sender reads, the receiver keeps, the sender notes it, unless it is killed before."""
        try:
            reading = self.reader.read(self.random.choice([500, 20_000]), 1000)
        except OSError:
            self.seen.failed += 1
            return True
        if reading is None:
            return False
        self.gaps += reading.lost
        for index, payload in enumerate(reading.payloads):
            number = reading.epoch, reading.first + index
            if self.held.setdefault(number, payload) != payload:
                self.seen.wrong.append(f"{number} is two records")
        if self.random.random() < 0.9:
            try:
                self.reader.acknowledge(reading.epoch, reading.end)
            except OSError:
                self.seen.failed += 1
        return True

    def crash(self, power: bool | None = None) -> None:
        """Both are killed, and perhaps the power goes."""
        self.seen.crashes += 1
        power = self.random.random() < 0.5 if power is None else power
        before = self.disk.before
        self.disk.before = lambda operation, path: None
        self.outbox.close()
        if power:
            share = self.random.random()
            self.disk = self.disk.after_power_cut(lambda: self.random.random() < share, self.random)
        else:
            self.disk.before = lambda operation, path: None
        self.disk.before = before
        if self.damage and self.random.random() < 0.1:
            self.harm()
        self.open()

    def harm(self) -> None:
        """Some byte of some segment that is not being written becomes another one."""
        before, self.disk.before = self.disk.before, lambda operation, path: None
        names = [name for name in self.disk.names("") if name.endswith(".segment")]
        self.disk.before = before
        if not names:
            return
        inode = self.disk.inodes[self.disk.inodes[0].names[self.random.choice(names)]]  # type: ignore[index]
        if len(inode.data) > HEADER_BYTES and inode.data == inode.kept:
            at = self.random.randrange(HEADER_BYTES, len(inode.data))
            inode.data = inode.kept = inode.data[:at] + bytes([inode.data[at] ^ 0x55]) + inode.data[at + 1 :]

    def check(self) -> None:
        """Conservation, exactly."""
        self.seen.kept, self.seen.held, self.seen.gaps = len(self.kept), len(self.held), len(self.gaps)
        told = self.gaps if self.damage else [gap for gap in self.gaps if gap.reason is Reason.BOUND]
        covered = {(gap.epoch, number) for gap in told for number in range(gap.first, gap.last + 1)}
        for number, payload in self.kept.items():
            if self.held.get(number, payload) != payload:
                self.seen.wrong.append(f"{number} arrived as something else")
            if number not in self.held and number not in covered:
                self.seen.wrong.append(f"{number} is lost")
        reasons = {gap.reason for gap in self.gaps}
        if self.policy is Policy.REFUSE and Reason.BOUND in reasons and not self.damage:
            self.seen.wrong.append("dropped what must not be dropped")
        if not self.damage and Reason.DAMAGED in reasons:
            self.seen.wrong.append("nothing was damaged")
