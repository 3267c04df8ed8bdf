"""Who signed a package, and whether that suffices here.

Signatures are DSSE (Dead Simple Signing Envelope): over the type of the manifest and its bytes, any number of them,
each naming its key. A signature by a key that is not trusted here says nothing, good or bad; one by a trusted key must
be right. Expiry and revocation are not looked at, since a box may have neither clock nor link: a key is withdrawn by
taking it from the configuration.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import Error as LibraryError
from securesystemslib.signer import Signature, Signer

from appliance.config.store import Unsigned
from appliance.domain.errors import OperatorError, PackageInvalid, Problem
from appliance.package.container import SIGNATURE_NAME
from appliance.package.keys import PublicKey

PAYLOAD_TYPE: Final = "application/vnd.edge-appliance.manifest+json;version=1"
SIGNATURES_MAX: Final = 32
KEYID_CHARACTERS_MAX: Final = 256
SIGNATURE_CHARACTERS_MAX: Final = 32 << 10
"""In hexadecimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One signature: its key, where that key comes from ("": not trusted here), and whether it is right (None: cannot
    be told without the key)."""

    keyid: str
    label: str
    scheme: str
    right: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What is known about who signed a package."""

    verdicts: tuple[Verdict, ...] = ()
    signatures: frozenset[tuple[str, str]] = frozenset()
    """What the verdicts are of: the id of each key, and its signature in hexadecimal."""

    @property
    def keyids(self) -> tuple[str, ...]:
        """The trusted keys that signed it."""
        return tuple(verdict.keyid for verdict in self.verdicts if verdict.right)

    @property
    def word(self) -> str:
        """What the catalog keeps of it: ``key KEYID`` or ``unsigned``."""
        return f"key {self.keyids[0]}" if self.keyids else "unsigned"

    def problem(self, unsigned: Unsigned) -> str:
        """Why the package may not be installed; "" when it may."""
        wrong = [verdict for verdict in self.verdicts if verdict.right is False]
        if wrong:
            return f"the signature of the trusted key {wrong[0].keyid} ({wrong[0].label}) is wrong"
        if self.keyids or unsigned is Unsigned.ALLOW:
            return ""
        if not self.verdicts:
            return "is not signed; sign it with a trusted key, or set packages.unsigned to 'allow'"
        names = ", ".join(verdict.keyid[:16] for verdict in self.verdicts[:4])
        return f"is signed by no trusted key (by {names}); add its public key to packages.trusted_keys"


def vouched(
    manifest: bytes, signatures: bytes | None, keys: Sequence[PublicKey], unsigned: Unsigned, file: str
) -> str:
    """The word about who signed the package in ``file``. Raises PackageInvalid where that does not suffice here."""
    trust = judge(manifest, signatures, keys)
    if problem := trust.problem(unsigned):
        raise PackageInvalid([Problem(file=file, key="", text=problem)])
    return trust.word


def sign(
    manifest_bytes: bytes, signers: Sequence[Signer], before: bytes | None = None, kind: str = PAYLOAD_TYPE
) -> bytes:
    """The envelope with a signature of each of ``signers``, and those that the envelope ``before`` has; ``kind`` is the
    type of what is signed. Raises OperatorError when a signer cannot, PackageInvalid when ``before`` is of other
    bytes."""
    envelope = Envelope(manifest_bytes, kind, {}) if before is None else _read(manifest_bytes, before, kind)
    for signer in signers:
        try:
            envelope.sign(signer)
        except (ValueError, LibraryError, RuntimeError) as error:
            raise OperatorError(f"the key cannot sign: {str(error) or type(error).__name__}") from error
    envelope.signatures = dict(sorted(envelope.signatures.items()))
    return json.dumps(envelope.to_dict(), sort_keys=True, separators=(",", ":")).encode()


def judge(
    manifest_bytes: bytes, envelope: bytes | None, keys: Sequence[PublicKey], kind: str = PAYLOAD_TYPE
) -> Trust:
    """What ``envelope`` (None: there is none) says about ``manifest_bytes``, of that ``kind``, where ``keys`` are
    trusted. Raises PackageInvalid when it is no envelope of these bytes."""
    if envelope is None:
        return Trust()
    known = {key.keyid: key for key in keys}
    found = _read(manifest_bytes, envelope, kind)
    signed = found.pae()
    return Trust(
        verdicts=tuple(
            _verdict(signature, known.get(keyid), signed) for keyid, signature in found.signatures.items()
        ),
        signatures=frozenset((each.keyid, each.signature.lower()) for each in found.signatures.values()),
    )


def _verdict(signature: Signature, key: PublicKey | None, signed: bytes) -> Verdict:
    if key is None:
        return Verdict(keyid=signature.keyid, label="", scheme="", right=None)
    try:
        key.key.verify_signature(signature, signed)
        right = True
    except LibraryError:
        right = False
    return Verdict(keyid=signature.keyid, label=key.label, scheme=key.scheme, right=right)


def _read(manifest_bytes: bytes, data: bytes, kind: str) -> Envelope:
    """The envelope in ``data``, if it is one of these bytes. Raises PackageInvalid."""
    try:
        document = json.loads(data)
        if document.keys() != {"payload", "payloadType", "signatures"}:
            raise ValueError("other keys than payload, payloadType and signatures")
        found = Envelope.from_dict(document)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, LibraryError) as error:
        raise _invalid(f"is not a signature envelope: {str(error)[:200]}") from None
    if found.payload_type != kind:
        raise _invalid(f"has the payload type {str(found.payload_type)[:80]!r}, not {kind!r}")
    if found.payload != manifest_bytes:
        raise _invalid("is over other contents than those that it lies beside: one of them was changed")
    if not 0 < len(found.signatures) <= SIGNATURES_MAX:
        raise _invalid(f"needs 1 to {SIGNATURES_MAX} signatures")
    for keyid, signature in found.signatures.items():
        if (
            not isinstance(keyid, str)
            or not 0 < len(keyid) <= KEYID_CHARACTERS_MAX
            or not keyid.isprintable()
        ):
            raise _invalid("has a signature whose keyid is not a short text")
        if len(signature.signature) > SIGNATURE_CHARACTERS_MAX:
            raise _invalid(f"has a signature of more than {SIGNATURE_CHARACTERS_MAX // 2} bytes")
    return found


def _invalid(text: str) -> PackageInvalid:
    return PackageInvalid([Problem(file=SIGNATURE_NAME, key="", text=text)])
