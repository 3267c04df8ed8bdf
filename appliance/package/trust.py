"""Who signed a package, and whether that suffices here.

Signatures are DSSE (Dead Simple Signing Envelope): over the type of the manifest and its bytes, any number of them,
each naming its key. A signature by a key that is not trusted here says nothing, good or bad; one by a trusted key must
be right. Expiry and revocation are not looked at, since a box may have neither clock nor link: a key is withdrawn by
taking it from the configuration.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
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


def sign(manifest_bytes: bytes, signers: Sequence[Signer], before: bytes | None = None) -> bytes:
    """The envelope with a signature of each of ``signers``, and those that the envelope ``before`` has. Raises
    OperatorError when a signer cannot, PackageInvalid when ``before`` is of other bytes."""
    signatures = dict(_read(manifest_bytes, before)) if before is not None else {}
    envelope = Envelope(manifest_bytes, PAYLOAD_TYPE, signatures)
    for signer in signers:
        try:
            envelope.sign(signer)
        except (ValueError, LibraryError, RuntimeError) as error:
            raise OperatorError(f"the key cannot sign: {str(error) or type(error).__name__}") from error
    document = {
        "payload": b64encode(manifest_bytes).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [
            {"keyid": keyid, "sig": b64encode(bytes.fromhex(signature.signature)).decode()}
            for keyid, signature in sorted(envelope.signatures.items())
        ],
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def judge(manifest_bytes: bytes, envelope: bytes | None, keys: Sequence[PublicKey]) -> Trust:
    """What ``envelope`` (None: there is none) says about ``manifest_bytes`` where ``keys`` are trusted. Raises
    PackageInvalid when it is no envelope of these bytes."""
    if envelope is None:
        return Trust()
    known = {key.keyid: key for key in keys}
    signatures = _read(manifest_bytes, envelope)
    signed = Envelope(manifest_bytes, PAYLOAD_TYPE, {}).pae()
    return Trust(
        verdicts=tuple(
            _verdict(signature, known.get(keyid), signed) for keyid, signature in signatures.items()
        )
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


def _read(manifest_bytes: bytes, envelope: bytes) -> Mapping[str, Signature]:
    """The signatures by key id, if it is an envelope of these bytes."""
    try:
        document = json.loads(envelope.decode())
    except (ValueError, RecursionError) as error:
        raise _invalid(f"is not JSON: {str(error)[:200]}") from None
    if not isinstance(document, dict) or set(document) != {"payload", "payloadType", "signatures"}:
        raise _invalid("is not an envelope of payload, payloadType and signatures")
    if document["payloadType"] != PAYLOAD_TYPE:
        raise _invalid(f"has the payload type {str(document['payloadType'])[:80]!r}, not {PAYLOAD_TYPE!r}")
    if _decoded(document["payload"], len(envelope)) != manifest_bytes:
        raise _invalid("is over another manifest than the one in the package")
    entries = document["signatures"]
    if not isinstance(entries, list) or not 0 < len(entries) <= SIGNATURES_MAX:
        raise _invalid(f"needs 1 to {SIGNATURES_MAX} signatures")
    found = dict(map(_signature, entries))
    if len(found) != len(entries):
        raise _invalid("has two signatures of one key")
    return found


def _signature(entry: object) -> tuple[str, Signature]:
    if not isinstance(entry, dict) or set(entry) != {"keyid", "sig"}:
        raise _invalid("has a signature that is not keyid and sig")
    keyid = entry["keyid"]
    if not isinstance(keyid, str) or not 0 < len(keyid) <= KEYID_CHARACTERS_MAX or not keyid.isprintable():
        raise _invalid("has a signature whose keyid is not a short text")
    return keyid, Signature(keyid, _decoded(entry["sig"], SIGNATURE_CHARACTERS_MAX).hex())


def _decoded(text: object, limit: int) -> bytes:
    if not isinstance(text, str) or len(text) > limit:
        raise _invalid("has something else than base64 where that must be")
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise _invalid("has something else than base64 where that must be") from None


def _invalid(text: str) -> PackageInvalid:
    return PackageInvalid([Problem(file=SIGNATURE_NAME, key="", text=text)])
