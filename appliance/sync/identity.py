"""Who this box is to its controller: a key that never leaves it, its certificate, and whose controller it trusts.

All of it lies in ``fleet/`` below the state directory, readable by nobody else. The file ``controller`` is written last
and replaced as a whole: where it is, the box belongs to a fleet. A key that was made for an enrolment that was cut off
is used for the next try, so that a controller that had granted it already can tell.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID
from msgspec import Meta

from appliance.domain.errors import OperatorError
from appliance.domain.manifest import is_name
from appliance.durable import Folder, RealFolder, make_own_directory, read_whole, remove_file, replace_file
from appliance.fleet import membership
from appliance.fleet.membership import MEMBERSHIP_BYTES_MAX, Membership, MembershipUnreadable
from appliance.fleet.messages import Enrolled, Renewed
from appliance.store.layout import FLEET
from appliance.store.privacy import check_own
from appliance.sync import trust_file
from appliance.sync.trust import NoRoot

LOCK: Final = "agent.lock"
IDENTITY: Final = "identity.pem"
AUTHORITIES: Final = "authorities.pem"
CONTROLLER: Final = "controller"
PENDING: Final = "enrolling.pem"
SITUATION: Final = "situation.json"
"""What the agent found last; not of a fleet that the box belonged to before."""
TEMPORARY: Final = "identity.new"
FILE_BYTES_MAX: Final = 64 << 10
PREFIX: Final = "ea1."
TOKEN_CHARACTERS_MAX: Final = 1024
NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME: what a certificate says of its time is not looked at, because no box knows the time."""


class EnrolmentInvalid(OperatorError):
    """A token that is none, or what came in exchange for it is not what it must be."""


class NotEnrolled(OperatorError):
    """The box belongs to no fleet, or the files that say so are damaged."""


class Token(msgspec.Struct, frozen=True, array_like=True):
    """What the operator gives a box: where its controller is, the token's name and secret, and the sha256 of the
    certificate of the authority that the controller's is from."""

    url: Annotated[str, Meta(min_length=1, max_length=512)]
    name: Annotated[str, Meta(min_length=1, max_length=64)]
    secret: Annotated[bytes, Meta(min_length=16, max_length=64)]
    authority: Annotated[bytes, Meta(min_length=32, max_length=32)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who the box is. ``folder`` is where its files lie; ``group`` is that of the device as it was told last ("":
    none)."""

    device: str
    url: str
    folder: Path
    group: str = ""

    def tls(self) -> ssl.SSLContext:
        """How the controller is talked to: both sides prove who they are, and no clock is asked. Raises NotEnrolled."""
        context = controller_tls()
        try:
            context.load_verify_locations(str(self.folder / AUTHORITIES))
            context.load_cert_chain(str(self.folder / IDENTITY))
        except (OSError, ssl.SSLError) as error:
            raise NotEnrolled(
                f"the identity in '{self.folder}' cannot be used ({error}); enrol this box again"
            ) from error
        return context

    @property
    def certificate(self) -> x509.Certificate:
        """The box's own. Raises NotEnrolled."""
        try:
            return x509.load_pem_x509_certificates((self.folder / IDENTITY).read_bytes())[0]
        except (OSError, ValueError, IndexError) as error:
            raise NotEnrolled(
                f"there is no certificate in '{self.folder / IDENTITY}'; enrol this box again"
            ) from error


def controller_tls() -> ssl.SSLContext:
    """TLS to a controller, that trusts nobody yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
    return context


def token_of(text: str) -> Token:
    """The token as it was given. Raises EnrolmentInvalid."""
    if not text.startswith(PREFIX) or len(text) > TOKEN_CHARACTERS_MAX:
        raise EnrolmentInvalid(f"this is no token: those begin with '{PREFIX}'")
    try:
        data = text.removeprefix(PREFIX)
        token = msgspec.msgpack.decode(base64.urlsafe_b64decode(data + "=" * (-len(data) % 4)), type=Token)
        parts = urlsplit(token.url)
        usable = parts.scheme == "https" and parts.hostname and parts.port != 0
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise EnrolmentInvalid("this is no token, or a part of it was lost") from error
    if not usable:
        raise EnrolmentInvalid("the token names no controller that is reached by https")
    return token


def find_authority(chain: list[bytes], token: Token) -> str:
    """The certificate, as PEM, of the authority that the token names, among the DER certificates that a controller
    showed. Raises EnrolmentInvalid."""
    for each in chain:
        if hashlib.sha256(each).digest() == token.authority:
            return ssl.DER_cert_to_PEM_cert(each)
    raise EnrolmentInvalid(
        "the controller that answers is not the one of the token: it does not show the authority that the token names"
    )


def fleet_folder(state: Path) -> RealFolder:
    """The directory of the agent, made if need be, for nobody else to read. Raises StoreUnavailable and OSError."""
    state.mkdir(mode=0o700, exist_ok=True)
    check_own(state)
    make_own_directory(state / FLEET)
    # Not by its name: in a service's directory root may find a link there, to anything.
    descriptor = os.open(state / FLEET, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)
    return RealFolder(state / FLEET)


def read_identity(state: Path) -> Identity | None:
    """Who the box is; None where it belongs to no fleet. Raises NotEnrolled for files that cannot be read."""
    place = state / FLEET
    try:
        with (place / CONTROLLER).open("rb") as file:
            said = membership.decode(file.read(MEMBERSHIP_BYTES_MAX))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, MembershipUnreadable) as error:
        raise NotEnrolled(f"'{place / CONTROLLER}' cannot be read; enrol this box again") from error
    if not is_name(said.device):
        raise NotEnrolled(f"'{place / CONTROLLER}' names no device; enrol this box again")
    return Identity(device=said.device, url=said.url, folder=place, group=said.group)


def request_for_enrolment(folder: Folder) -> str:
    """A certificate signing request with the key of this enrolment, which is kept. Raises OSError."""
    found = read_whole(folder, PENDING, FILE_BYTES_MAX)
    key = _key_in(found) if found else None
    if key is None:
        key = ec.generate_private_key(ec.SECP256R1())
        _replace_private(folder, PENDING, _pem_of(key))
    return _request(key)


def enrol(folder: Folder, url: str, enrolled: Enrolled) -> None:
    """Be from now on what the controller says. Raises EnrolmentInvalid, and changes nothing then, and OSError."""
    pending = read_whole(folder, PENDING, FILE_BYTES_MAX)
    key = _key_in(pending) if pending else None
    if key is None or not is_name(enrolled.device):
        raise EnrolmentInvalid("the controller's answer is for no enrolment of this box")
    _check(key, enrolled.certificate, enrolled.authorities)
    for each in (CONTROLLER, SITUATION):
        remove_file(folder, each)
    try:
        trust_file.enrol(folder, enrolled.root)
    except NoRoot as error:
        raise EnrolmentInvalid(f"the controller's root of trust is none: {error}") from error
    _replace_private(folder, AUTHORITIES, enrolled.authorities.encode())
    _replace_private(folder, IDENTITY, _pem_of(key) + enrolled.certificate.encode())
    _replace_private(folder, CONTROLLER, membership.encode(Membership(device=enrolled.device, url=url)))
    remove_file(folder, PENDING)


def regroup(folder: Folder, identity: Identity, group: str) -> Identity:
    """The same box, of that group from now on as its controller says; it is kept for whoever shows it. Raises
    OSError."""
    said = Membership(device=identity.device, url=identity.url, group=group)
    _replace_private(folder, CONTROLLER, membership.encode(said))
    return replace(identity, group=group)


def request_for_renewal(folder: Folder) -> str:
    """A request with the key that the box has. Raises NotEnrolled and OSError."""
    return _request(_own_key(folder))


def renew(folder: Folder, renewed: Renewed) -> None:
    """Take the new certificate and the authorities. Raises EnrolmentInvalid, and changes nothing then, NotEnrolled and
    OSError."""
    key = _own_key(folder)
    _check(key, renewed.certificate, renewed.authorities)
    _replace_private(folder, AUTHORITIES, renewed.authorities.encode())
    _replace_private(folder, IDENTITY, _pem_of(key) + renewed.certificate.encode())


def _own_key(folder: Folder) -> ec.EllipticCurvePrivateKey:
    data = read_whole(folder, IDENTITY, FILE_BYTES_MAX)
    key = _key_in(data) if data else None
    if key is None:
        raise NotEnrolled("the key of this box is gone; enrol this box again")
    return key


def _check(key: ec.EllipticCurvePrivateKey, certificate: str, authorities: str) -> None:
    """Raise EnrolmentInvalid unless the certificate is for the key and one of the authorities issued it."""
    try:
        own = x509.load_pem_x509_certificates(certificate.encode())[0]
        issuers = x509.load_pem_x509_certificates(authorities.encode())
    except (ValueError, IndexError) as error:
        raise EnrolmentInvalid("the controller sent certificates that are none") from error
    if own.public_key() != key.public_key():
        raise EnrolmentInvalid("the controller sent a certificate for another key")
    for issuer in issuers:
        try:
            own.verify_directly_issued_by(issuer)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return
    raise EnrolmentInvalid("the controller sent a certificate that none of its authorities issued")


def _request(key: ec.EllipticCurvePrivateKey) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "box")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM).decode()


def _key_in(data: bytes) -> ec.EllipticCurvePrivateKey | None:
    try:
        key = load_pem_private_key(data, None)
    except (ValueError, TypeError):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _replace_private(folder: Folder, path: str, data: bytes) -> None:
    replace_file(folder, path, TEMPORARY, data)
