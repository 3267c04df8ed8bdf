"""Whether a released package that comes again, signed by others, takes the place of the one that is there. Pure.

What boxes get is never made worse: a signature that the fleet's root has them trust is not lost, and only what is known
to be right comes beside it. Where the root has them trust neither package, the one that came last counts, since boxes
may have keys of their own.
"""

from __future__ import annotations

from enum import Enum, auto

from appliance.config.store import Unsigned
from appliance.package.trust import Trust


class Succession(Enum):
    """What becomes of a package that comes again: the one that is there says as much, it takes that one's place, or
    it may not: it is signed by nobody whom boxes trust, it has more signatures of which not all are known to be right,
    or it lacks signatures that boxes may go by."""

    KEEP = auto()
    REPLACE = auto()
    UNTRUSTED = auto()
    UNVERIFIED = auto()
    LACKS = auto()


def succession(old: Trust, new: Trust) -> Succession:
    """What becomes of the package that ``new`` was found of, where the one that is there is ``old``. A key that is
    named is no signature: those are compared, byte for byte, and what is added must be right."""
    if not is_trusted(old):
        return _over_untrusted(old, new)
    if not new.keyids:
        return Succession.UNTRUSTED
    if unverified(old, new):
        return Succession.UNVERIFIED
    if {keyid for keyid, _ in new.signatures - old.signatures} <= set(old.keyids):
        return (
            Succession.KEEP
        )  # some schemes never make the same signature twice: another one of a key adds nothing
    return Succession.REPLACE if old.signatures < new.signatures else Succession.LACKS


def _over_untrusted(old: Trust, new: Trust) -> Succession:
    """The same, where boxes that go by the root refuse the one that is there."""
    if is_trusted(new):
        return Succession.REPLACE
    if new.signatures <= old.signatures:
        return Succession.KEEP
    return (
        Succession.UNVERIFIED if set(_keys_of_wrong(new)) & set(unverified(old, new)) else Succession.REPLACE
    )


def unverified(old: Trust, new: Trust) -> tuple[str, ...]:
    """The keys of those signatures that ``new`` has and ``old`` has not, and that are not known to be right."""
    added = {keyid for keyid, _ in new.signatures - old.signatures}
    return tuple(each.keyid for each in new.verdicts if each.keyid in added and not each.right)


def lacking(old: Trust, new: Trust) -> tuple[str, ...]:
    """The keys of those signatures that ``old`` has and ``new`` has not."""
    return tuple(sorted(keyid for keyid, _ in old.signatures - new.signatures))


def may_mend(word: str, new: Trust) -> bool:
    """Whether the package of ``new`` takes the place of one that cannot be read any more, of which ``word`` was told:
    what a trusted key had signed is not lost to what none has."""
    return is_trusted(new) or not word.startswith("key ")


def is_trusted(trust: Trust) -> bool:
    """Whether boxes that go by the fleet's root alone take a package that is signed so."""
    return not trust.problem(Unsigned.REFUSE)


def trust_word(trust: Trust) -> str:
    """How a release's signatures are told: ``key KEYID``, ``untrusted KEYID``, ``wrong KEYID``, or ``unsigned``."""
    if is_trusted(trust) or not trust.verdicts:
        return trust.word
    wrong = _keys_of_wrong(trust)
    return f"wrong {wrong[0]}" if wrong else f"untrusted {trust.verdicts[0].keyid}"


def _keys_of_wrong(trust: Trust) -> list[str]:
    """The trusted keys whose signatures are wrong."""
    return [verdict.keyid for verdict in trust.verdicts if verdict.right is False]
