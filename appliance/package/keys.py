"""Keys that sign packages and keys that check signatures: in PEM files or, for signing, in a PKCS#11 token.

A key is named by its key id, which is computed from the public key the way TUF does it, so that the same key has the
same name wherever it is read. ECDSA (P-256, P-384, P-521), Ed25519 and RSA (PSS with SHA-256) are taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from securesystemslib.exceptions import Error as LibraryError
from securesystemslib.signer import CryptoSigner, HSMSigner, Key, Signer, SSlibKey

from appliance.domain.errors import OperatorError, system_reason

KEY_BYTES_MAX: Final = 64 << 10
RSA_BITS_MIN: Final = 2048
TRUSTED_KEYS_MAX: Final = 64
HSM_SCHEME: Final = "hsm:"
MODULE_VARIABLE: Final = "PYKCS11LIB"

__all__ = ["Signer"]

Secret = Callable[[str], str]
"""Asks for what protects a key: is told what is wanted ("pin", "password"), gives it."""

_GENERATORS: Final[Mapping[str, Callable[[], CryptoSigner]]] = MappingProxyType(
    {
        "ecdsa": CryptoSigner.generate_ecdsa,
        "ed25519": CryptoSigner.generate_ed25519,
        "rsa": CryptoSigner.generate_rsa,
    }
)
KINDS: Final = tuple(_GENERATORS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """A key that checks signatures. ``label`` says to a person where it comes from."""

    keyid: str
    scheme: str
    label: str
    key: Key


def key_problems(paths: Sequence[str]) -> Iterator[str]:
    """What keeps the files from being public keys."""
    if len(paths) > TRUSTED_KEYS_MAX:
        yield f"has {len(paths)} entries; the limit is {TRUSTED_KEYS_MAX}"
    for path in paths[:TRUSTED_KEYS_MAX]:
        try:
            read_public_key(Path(path))
        except OperatorError as error:
            yield str(error)


def read_public_key(path: Path) -> PublicKey:
    """The public key in a PEM file; raises OperatorError."""
    data = _contents(path)
    if b"PRIVATE KEY" in data:
        raise OperatorError(
            f"'{path}' holds a private key; make the public one: openssl pkey -pubout -in {path}"
        )
    try:
        public = load_pem_public_key(data)
        key = SSlibKey.from_crypto(public)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise OperatorError(
            f"'{path}' is not a public key that is known here: {_first_line(error)}"
        ) from error
    if getattr(public, "key_size", RSA_BITS_MIN) < RSA_BITS_MIN and key.keytype == "rsa":
        raise OperatorError(f"'{path}' is an RSA key of less than {RSA_BITS_MIN} bits")
    return PublicKey(keyid=key.keyid, scheme=key.scheme, label=str(path), key=key)


def open_signer(place: str, secret: Secret) -> Signer:
    """What signs with the private key at ``place``: a PEM file, or a key in a token as ``hsm:ID?label=TOKEN``. Raises
    OperatorError."""
    return _token_signer(place, secret) if place.startswith(HSM_SCHEME) else _file_signer(Path(place), secret)


def public_key_of(signer: Signer) -> PublicKey:
    """The key that checks what ``signer`` signs."""
    key = signer.public_key
    return PublicKey(keyid=key.keyid, scheme=key.scheme, label="", key=key)


def public_pem(key: PublicKey) -> bytes:
    """The key as a PEM file."""
    text: str = key.key.keyval["public"]
    if text.startswith("-----"):
        return text.encode()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    raw = Ed25519PublicKey.from_public_bytes(bytes.fromhex(text))
    return raw.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def make_key(kind: str) -> tuple[bytes, PublicKey]:
    """A new key of one of KINDS: the private key as PEM (PKCS#8, without a password) and the public one."""
    signer = _GENERATORS[kind]()
    return signer.private_bytes, public_key_of(signer)


def _file_signer(path: Path, secret: Secret) -> Signer:
    data = _contents(path)
    try:
        try:
            private = load_pem_private_key(data, None)
        except TypeError:  # the library's word for: it is encrypted
            private = load_pem_private_key(data, secret("password").encode())
        return CryptoSigner(private)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise OperatorError(f"'{path}' is not a private key that can sign: {_first_line(error)}") from error


def _token_signer(place: str, secret: Secret) -> Signer:
    if not os.environ.get(MODULE_VARIABLE):
        raise OperatorError(
            f"the token's PKCS#11 library is not named; set {MODULE_VARIABLE} or give --pkcs11-module"
        )
    body, _, query = place.removeprefix(HSM_SCHEME).partition("?")
    if body and not body.isdigit():
        raise OperatorError(f"'{place}' is not hsm:ID?label=TOKEN with a number as ID")
    from urllib.parse import parse_qs

    label = parse_qs(query).get("label", [None])[0]
    try:
        uri, public = HSMSigner.import_(int(body) if body else None, label, secret)
        return Signer.from_priv_key_uri(uri, public, secret)
    except (ValueError, LibraryError, RuntimeError) as error:
        raise OperatorError(f"the key '{place}' cannot be had: {_first_line(error)}") from error


def _contents(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(KEY_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise OperatorError(f"'{path}' cannot be read: {system_reason(error)}") from error
    if len(data) > KEY_BYTES_MAX:
        raise OperatorError(f"'{path}' has more than {KEY_BYTES_MAX} bytes; a key in PEM form is expected")
    return data


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0][:200]
