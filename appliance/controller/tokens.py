"""Tokens: of boxes, used once, and of people, with a role. The controller keeps digests; a token is shown once."""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from typing import Any, Final

import msgspec
from sqlalchemy import Row

from appliance.controller import tables
from appliance.controller.fleet_store import Rows, View
from appliance.domain.digest import digest_of

ADMIN: Final = "admin"
ROLES: Final = ("viewer", "operator", ADMIN)
"""Each may do what those before it may."""
ENROLMENT: Final = "enrolment"
PERSON: Final = "person"
SECRET_BYTES: Final = 32
HOUR_MS: Final = 3_600_000
PREFIX: Final = "ea1."


def make_person(rows: Rows, name: str, role: str, made_by: str, expires_ms: int) -> str:
    """A token for a person; one of the same name is replaced."""
    secret = secrets.token_urlsafe(SECRET_BYTES)
    _put(rows, name, PERSON, secret.encode(), made_by, expires_ms, role=role)
    return f"{name}:{secret}"


def make_enrolment(
    rows: Rows,
    url: str,
    authority: bytes,
    made_by: str,
    expires_ms: int,
    *,
    device: str = "",
    group: str = "",
) -> tuple[str, str]:
    """The name of a new token for a box, and the token: the controller's ``url``, name, secret, and the sha256 of its
    ``authority``, as one text."""
    name, secret = secrets.token_hex(6), secrets.token_bytes(SECRET_BYTES)
    _put(rows, name, ENROLMENT, secret, made_by, expires_ms, device=device, group=group)
    data = msgspec.msgpack.encode([url, name, secret, authority])
    return name, PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")


def person(rows: View, text: str, now_ms: int) -> Row[Any] | None:
    """Whose token it is; None: nobody's, or not any more."""
    name, _, secret = text.partition(":")
    return _known(rows, name, PERSON, secret.encode(), now_ms)


def enrolment(rows: View, name: str, secret: bytes, now_ms: int) -> Row[Any] | None:
    """The token of a box, used or not."""
    return _known(rows, name, ENROLMENT, secret, now_ms)


def parts_of(text: str) -> tuple[str, bytes]:
    """Name and secret in the token of a box. Raises ValueError."""
    try:
        data = text.removeprefix(PREFIX)
        _, name, secret, _ = msgspec.msgpack.decode(
            base64.urlsafe_b64decode(data + "=" * (-len(data) % 4)), type=tuple[str, str, bytes, bytes]
        )
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise ValueError("this is no token") from error
    return name, secret


def may(role: str, needed: str) -> bool:
    """Whether who has ``role`` may do what needs ``needed``."""
    return role in ROLES and ROLES.index(role) >= ROLES.index(needed)


def _put(
    rows: Rows, name: str, kind: str, secret: bytes, made_by: str, expires_ms: int, *, role: str = "", device: str = "",
    group: str = "",
) -> None:  # fmt: skip
    rows.put(
        tables.tokens,
        name=name,
        kind=kind,
        digest=digest_of(secret),
        role=role,
        device=device,
        in_group=group,
        made_by=made_by,
        expires_ms=expires_ms,
        used_by="",
        revoked=False,
    )


def _known(rows: View, name: str, kind: str, secret: bytes, now_ms: int) -> Row[Any] | None:
    found = rows.one(tables.tokens, name=name, kind=kind)
    right = hmac.compare_digest(found.digest if found else "", digest_of(secret))
    return found if found and right and not found.revoked and now_ms < found.expires_ms else None
