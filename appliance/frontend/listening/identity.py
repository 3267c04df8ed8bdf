"""Who a TLS client is, by its certificate, and who may come: as the native door has it. Pure.

The rules are those of ``native/src/listen/identity.rs``, and tests hold both to the same names. The
certificate was verified before: what is read here was signed by an authority that the operator trusts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

_LONGEST_BYTES: Final = 255
_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST: Final = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*\.?")
_WILD: Final = re.compile(r"[A-Za-z0-9_-]+")
_WILDCARD: Final = "*."
_AFTER_SCHEME: Final = "://"
"""What only URIs have: names that have it are meant for nothing else."""


class Identity(NamedTuple):
    """``is_uri``: it is a URI among the alternative names, and not something that only looks like one."""

    text: str
    is_uri: bool


def identity_of(shown: Mapping[str, Any]) -> Identity | None:
    """The first URI among the alternative names of the subject, else the first DNS name; the common name only of a
    certificate without alternative names of whatever kind. ``shown`` is what ``ssl`` tells of a certificate."""
    alternatives = shown.get("subjectAltName")
    if alternatives is None:
        common = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
        return _usable(common[-1], is_uri=False) if common else None
    uris = [value for kind, value in alternatives if kind == "URI"]
    if uris:
        return _usable(uris[0], is_uri=True)
    hosts = [value for kind, value in alternatives if kind == "DNS" and _HOST.fullmatch(value)]
    return _usable(hosts[0], is_uri=False) if hosts else None


def _usable(text: str, *, is_uri: bool) -> Identity | None:
    fits = 1 <= len(text.encode("utf-8", "replace")) <= _LONGEST_BYTES
    clean = not any(unicodedata.category(character) == "Cc" for character in text)
    return Identity(text, is_uri) if fits and clean else None


def admits(names: Iterable[str], identity: Identity) -> bool:
    """Whether one of ``names`` is that of ``identity``; ``*.`` at the front of one stands for one label of a host."""
    return any(_is_named(name, identity) for name in names)


def _is_named(name: str, identity: Identity) -> bool:
    text, is_uri = identity
    if name.startswith(_WILDCARD):
        label, dot, domain = text.partition(".")
        same = _lower(domain) == _lower(name.removeprefix(_WILDCARD))
        return not is_uri and bool(dot) and same and _WILD.fullmatch(label) is not None
    if _AFTER_SCHEME in name and not is_uri:
        return False
    if is_uri or ":" in text:  # letters count in a URI, and in what looks like one
        return name == text
    return _lower(name) == _lower(text)


def _lower(text: str) -> str:
    """Of ASCII letters alone, as hosts' names are compared."""
    return "".join(character.lower() if character.isascii() else character for character in text)
