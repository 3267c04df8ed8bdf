"""The controller's certificates: an authority of its own, the server's certificate, short ones for devices.

Times in certificates are the controller's. Nobody's handshake looks at them: who may do what with an expired one is
decided by what was asked.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from appliance.domain.digest import digest_of
from appliance.domain.errors import OperatorError

AUTHORITY_GOOD: Final = timedelta(days=20 * 365)
SERVER_GOOD: Final = timedelta(days=10 * 365)
DEVICE_GOOD: Final = timedelta(days=30)
RENEW_BEFORE: Final = timedelta(days=10)
"""What is left of a device's certificate when it is told to renew it."""
SLACK: Final = timedelta(days=1)


class RequestInvalid(OperatorError):
    """A certificate signing request that nothing is issued for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A device's certificate: PEM, serial number in hexadecimal, digest of its key, end."""

    pem: str
    serial: str
    key: str
    expires_ms: int


class Authority:
    """What issues certificates. ``pem`` is its own certificate."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self.certificate = certificate
        self.pem = certificate.public_bytes(Encoding.PEM).decode()

    @classmethod
    def create(cls, now: datetime) -> Authority:
        """A new one."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("edge appliance fleet")
        builder = _builder(name, name, key.public_key(), now, AUTHORITY_GOOD)
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(usage, critical=True)
        builder = builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        return cls(key, builder.sign(key, SHA256()))

    @classmethod
    def load(cls, data: bytes) -> Authority:
        """What ``dump`` gave. Raises OperatorError."""
        try:
            key, certificate = load_pem_private_key(data, None), x509.load_pem_x509_certificate(data)
        except (ValueError, TypeError) as error:
            raise OperatorError("the authority's file is none; restore it from the backup") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise OperatorError("the authority's key is of another kind; restore it from the backup")
        return cls(key, certificate)

    def dump(self) -> bytes:
        """Key and certificate, as PEM."""
        return _key_pem(self._key) + self.pem.encode()

    @property
    def digest(self) -> bytes:
        """The sha256 of its certificate, by which a token names it."""
        return hashlib.sha256(self.certificate.public_bytes(Encoding.DER)).digest()

    def server(self, hosts: Sequence[str], now: datetime) -> bytes:
        """Key, certificate and chain of a server that is reached as one of ``hosts``, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(hosts[0]), self.certificate.subject, key.public_key(), now, SERVER_GOOD)
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False
        )
        certificate = self._signed(builder, ExtendedKeyUsageOID.SERVER_AUTH)
        return _key_pem(key) + certificate.public_bytes(Encoding.PEM) + self.pem.encode()

    def issue(self, request: str, device: str, now: datetime) -> Issued:
        """The certificate of ``device`` for the key of the ``request``; nothing else of it counts. Raises
        RequestInvalid."""
        key = _requested_key(request)
        builder = _builder(_name(device), self.certificate.subject, key, now, DEVICE_GOOD)
        certificate = self._signed(builder, ExtendedKeyUsageOID.CLIENT_AUTH)
        return Issued(
            pem=certificate.public_bytes(Encoding.PEM).decode(),
            serial=f"{certificate.serial_number:x}",
            key=key_digest(key),
            expires_ms=int(certificate.not_valid_after_utc.timestamp() * 1000),
        )

    def _signed(self, builder: x509.CertificateBuilder, use: x509.ObjectIdentifier) -> x509.Certificate:
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=True)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        return builder.sign(self._key, SHA256())


def key_of(request: str) -> str:
    """The digest of the key that a request is for. Raises RequestInvalid."""
    return key_digest(_requested_key(request))


def key_digest(key: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey) -> str:
    """The digest by which a key is known."""
    return digest_of(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def _requested_key(request: str) -> ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey:
    try:
        found = x509.load_pem_x509_csr(request.encode())
        right, key = found.is_signature_valid, found.public_key()
    except Exception as error:
        raise RequestInvalid("this is no certificate signing request") from error
    if not right:
        raise RequestInvalid("the request is not signed by the key that it is for")
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key
    raise RequestInvalid("the request is for a key that is neither P-256 nor Ed25519")


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey,
    now: datetime, good: timedelta,
) -> x509.CertificateBuilder:  # fmt: skip
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SLACK)
        .not_valid_after(now + good)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def utc(ms: int) -> datetime:
    """A time of the controller's clock."""
    return datetime.fromtimestamp(ms / 1000, UTC)
