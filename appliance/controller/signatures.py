"""Whether a released package that comes again, signed by others, takes the place of the one that is there. Pure.

What boxes get is never made worse: a signature that the fleet's root has them trust is not lost. Where the root has
them trust neither package, the one that came last counts, since boxes may have keys of their own.
"""

from __future__ import annotations

from enum import Enum, auto

from appliance.config.store import Unsigned
from appliance.package.trust import Trust


class Succession(Enum):
    """What becomes of a package that comes again: the one that is there says as much, it takes that one's place, or
    it may not: it is signed by nobody whom boxes trust, or it lacks signatures that boxes may go by."""

    KEEP = auto()
    REPLACE = auto()
    UNTRUSTED = auto()
    LACKS = auto()


def succession(old: Trust, new: Trust) -> Succession:
    """What becomes of the package that ``new`` was found of, where the one that is there is ``old``."""
    before, coming = signers(old), signers(new)
    if not is_trusted(old):
        return Succession.REPLACE if is_trusted(new) or not coming < before else Succession.KEEP
    if not is_trusted(new):
        return Succession.UNTRUSTED
    if coming <= before:
        return Succession.KEEP
    return Succession.REPLACE if before < coming else Succession.LACKS


def is_trusted(trust: Trust) -> bool:
    """Whether boxes that go by the fleet's root alone take a package that is signed so."""
    return not trust.problem(Unsigned.REFUSE)


def signers(trust: Trust) -> frozenset[str]:
    """The keys that a package names, trusted or not."""
    return frozenset(verdict.keyid for verdict in trust.verdicts)


def trust_word(trust: Trust) -> str:
    """How a release's signatures are told: ``key KEYID``, ``untrusted KEYID``, ``wrong KEYID``, or ``unsigned``."""
    if is_trusted(trust) or not trust.verdicts:
        return trust.word
    wrong = [verdict.keyid for verdict in trust.verdicts if verdict.right is False]
    return f"wrong {wrong[0]}" if wrong else f"untrusted {trust.verdicts[0].keyid}"
