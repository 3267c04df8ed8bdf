"""What must be live after an operator's orders, by the words of the people who run boxes: no code of the appliance.

* What is ordered - to go back, to want what has proven itself here, to end a trial - is live, at once and whatever was
  left for it, and still is after any restart.
* Only a version that cannot load at all is not; then the next older proven one stands in.
* What is proposed is live once it has proven itself beside what serves; until then, and if it does not, that stays.
* What is uninstalled answers no longer, unless nothing else can.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Known:
    """A version that is installed. ``proven``: it was live when nothing more was to come."""

    sound: bool
    run_ns: int
    loads: bool = True
    proven: bool = False


class OrderBook:
    """What was asked for, in the order in which it was, and what must follow."""

    def __init__(self) -> None:
        self.installed: dict[int, Known] = {}
        self.wanted = 0
        self.back: list[int] = []
        self.ordered = False
        self.trial = 0
        self.pins: set[int] = set()
        self.live = 0
        self.passing: set[int] = set()
        self.missed = 0
        self.checks = 0
        self.told: list[str] = []
        self._tell("begin")

    def _tell(self, what: str) -> None:
        self.told.append(
            f"{what}: wanted {self.wanted}{' by order' if self.ordered else ''}, back {self.back}"
        )

    # --- orders

    def install(self, number: int, *, want: bool, sound: bool, run_ns: int) -> None:
        """A new version, and perhaps a proposal."""
        self.installed[number] = Known(sound=sound, run_ns=run_ns)
        if want:
            self._change(number, ordered=False)

    def want(self, number: int) -> None:
        """An order, if the version is proven; another one must prove itself."""
        if number != self.wanted:
            self._change(number, ordered=True)

    def roll_back(self, number: int) -> None:
        """One step back, past what failed."""
        assert number in self.back, f"gone back to {number}, of {self.back}"
        passed = self.back[: self.back.index(number)]
        assert not any(self.installed[each].proven and self.installed[each].sound for each in passed), passed
        self.back = self.back[self.back.index(number) + 1 :]
        self.wanted, self.ordered, self.trial = number, True, 0
        self.passing.add(number)
        self.missed = 0
        self._tell("roll back")

    def try_out(self, number: int) -> None:
        """It is tried, and serves nobody that has not drawn it."""
        self.trial = number

    def stop_trial(self) -> None:
        """What is wanted is to stay."""
        self.ordered = self.ordered or bool(self.trial)
        self.trial = 0

    def pin(self, number: int, *, pinned: bool) -> None:
        """It stays installed."""
        (self.pins.add if pinned else self.pins.discard)(number)

    def may_uninstall(self, number: int) -> bool:
        """Whether it is neither pinned nor what is to be served in the place of others."""
        return number not in self.pins and (number != self.wanted or len(self.installed) == 1)

    def uninstall(self, number: int) -> None:
        """It is to answer no more. Where what is wanted cannot be loaded it may have come to stand in meanwhile."""
        gone = self.installed.pop(number)
        if (
            self.wanted in self.installed
            and not self.installed[self.wanted].loads
            and gone.proven
            and gone.loads
        ):
            self.passing.add(number)
        self.back = [each for each in self.back if each != number]
        self.trial = 0 if self.trial == number else self.trial
        if number == self.wanted:
            self.wanted, self.ordered = 0, False
        self._tell(f"uninstall {number}")

    def uninstall_all(self) -> None:
        """Nothing of it is to answer."""
        self.installed.clear()
        self.back, self.wanted, self.ordered, self.trial = [], 0, False, 0

    def damage(self, number: int) -> None:
        """It cannot be loaded any more."""
        self.installed[number].loads = self.installed[number].sound = False

    def _change(self, number: int, *, ordered: bool) -> None:
        before = [each for each in (self.wanted, *self.back) if each not in (0, number)]
        self.wanted, self.back, self.ordered, self.trial = number, before[:16], ordered, 0
        self.passing.add(number)
        self.missed = 0
        self._tell("want")

    # --- what follows

    def check(self, live: int) -> None:
        """``live`` is what serves now that nothing more is to come; 0: nothing."""
        allowed = self._allowed()
        assert live in allowed, f"{live} is live and must be one of {sorted(allowed)}"
        self.checks += 1
        self.live = live
        self.passing.clear()
        self.missed = self.wanted if live != self.wanted else 0
        if live in self.installed and live == self.wanted:
            self.installed[live].proven = self.installed[live].sound

    def _allowed(self) -> set[int]:
        if not self.wanted:
            return {0}
        wanted = self.installed[self.wanted]
        if self.ordered and wanted.proven and wanted.loads:
            return {self.wanted}
        stays = self._stays()
        if wanted.sound and self.wanted != self.missed and not self._is_slower(wanted, stays):
            return {self.wanted}
        return {self.wanted, *stays}

    def _stays(self) -> set[int]:
        """What may serve where the wanted one does not."""
        fit = [number for number, each in self.installed.items() if each.proven and each.loads]
        sure = [at for at, number in enumerate(self.back) if number in fit]
        goes_on = {self.live} if self.live in self.installed or not sure else set()
        others = (
            {self.back[sure[0]]} if sure else {0, *(n for n, each in self.installed.items() if each.loads)}
        )
        # What was wanted for a while may have proven itself meanwhile, or not.
        perhaps = {
            number for number in self.back[: sure[0] if sure else None] if self.installed[number].loads
        }
        return goes_on | others | perhaps | (self.passing & self.installed.keys() if sure else self.passing)

    def _is_slower(self, wanted: Known, stays: set[int]) -> bool:
        return any(each in self.installed and wanted.run_ns > self.installed[each].run_ns for each in stays)
