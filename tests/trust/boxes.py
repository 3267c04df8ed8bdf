"""A box's identity for tests: an authority, and a certificate that it issued."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

BEGIN = datetime(2020, 1, 1, tzinfo=UTC)
END = datetime(2021, 1, 1, tzinfo=UTC)
"""Long ago: no clock decides here."""


class Authority:
    """Issues certificates of boxes."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = _name("authority")
        builder = _builder(name, name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.certificate = builder.sign(self._key, SHA256())

    def identity(self, device: str, path: Path) -> tuple[str, str]:
        """A key and its certificate for ``device`` in one file at ``path``; gives it and the certificate as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _builder(_name(device), _name("authority"), key.public_key()).sign(self._key, SHA256())
        pem = certificate.public_bytes(Encoding.PEM)
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + pem)
        return str(path), pem.decode()


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(BEGIN)
        .not_valid_after(END)
    )
