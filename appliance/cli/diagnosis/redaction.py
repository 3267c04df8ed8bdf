"""What may not leave the box is taken out of texts: what looks like a secret, and the secrets that lie on this box.

Pure. The parts are chosen so that there should be nothing of it in them: this is for what somebody wrote into a setting
or a log line that has no business there. What looks like a secret: private keys in PEM, tokens of the fleet, passwords
in URLs, hooks by URL, credentials of HTTP, and what stands behind a key that is called password, secret, token or so.
Secrets of this box are looked for as they are, and in hexadecimal and Base64.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

REDACTED: Final = "[redacted]"
PIECE_BYTES_MIN: Final = 16
"""A line of a key in PEM, or a key, of fewer bytes would be met by accident."""
_BEGIN: Final = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----(.*?)(?:-----END|\Z)", re.DOTALL)
_NAMES: Final = (
    "password|passwd|passphrase|secret|token|api_?-?key|credential|webhook|private_?-?key|authorization"
)
_PATTERNS: Final = (
    re.compile(r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,20}PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\bea1\.[A-Za-z0-9_=-]{16,}"),
    re.compile(r"(?<=://)[^\s/@\"'<>]{1,256}(?=@)"),
    re.compile(r"(?i)\bhooks?\.[\w.-]{1,100}/[^\s\"'<>\\]{1,2048}"),
    re.compile(r"(?i)(?:(?<=hook/)|(?<=hooks/))[^\s\"'<>\\]{1,2048}"),
    re.compile(rf"(?i)--(?:{_NAMES})[\w-]{{0,32}}\s{{1,4}}[^\s-]\S{{0,4096}}"),
    re.compile(r"(?i)(?:\bbearer\s{1,4}[\w.~+/=-]{20,}|(?<=authorization: )(?:basic|bearer)\s{1,4}[\w.~+/=-]+)"),
)  # fmt: skip
_NAMED: Final = re.compile(
    rf"""(?ix)
    (?P<before> (?:{_NAMES}) [\w-]{{0,32}} (?P<close> \\?["'] )? \s{{0,4}} [=:] \s{{0,4}} )
    (?: (?P<escaped> \\["'] ) (?: (?! \\["'] ) [^\n] ){{1,65536}}
      | (?P<double> " ) (?: \\[^\n] | [^"\\\n] ){{1,65536}}
      | (?P<single> ' ) [^'\n]{{1,65536}}
      | (?(close)(?!)) [^\s"',;&{{}}\[\]\\]{{1,65536}} )"""
)
"""A key that names a secret, and its value: in JSON, also within a text, in TOML, of a URL or as a line of a log has
it. A number or a truth value of JSON is none."""


class Redacted(NamedTuple):
    """A text without its secrets, and how many were taken out."""

    text: str
    found: int


class Redactor:
    """Takes secrets out of texts, those of this box among them. See the module."""

    def __init__(self, secrets: Iterable[bytes] = ()) -> None:
        """``secrets``: the contents of files that hold some: keys in PEM, or bytes."""
        pieces = {piece for secret in secrets for piece in _pieces(secret)}
        longest_first = sorted(pieces, key=len, reverse=True)
        self._own = re.compile("|".join(map(re.escape, longest_first))) if pieces else None

    def redact(self, text: str) -> Redacted:
        """The text without them."""
        found = 0
        if self._own is not None:
            text, found = self._own.subn(REDACTED, text)
        for pattern in _PATTERNS:
            text, more = pattern.subn(REDACTED, text)
            found += more
        text, more = _NAMED.subn(_without_value, text)
        return Redacted(text, found + more)


def _without_value(match: re.Match[str]) -> str:
    """The key, and that something stood behind it."""
    quote = match["escaped"] or match["double"] or match["single"] or ""
    return f"{match['before']}{quote}{REDACTED}"


def _pieces(secret: bytes) -> Iterator[str]:
    """How the secret may stand in a text. Certificates that lie with a key in PEM are no secrets."""
    if b"-----BEGIN" in secret:
        for body in _BEGIN.findall(secret):
            lines = (line.strip().decode("latin-1") for line in body.splitlines())
            yield from (line for line in lines if len(line) >= PIECE_BYTES_MIN)
        return
    plain = secret.strip(b"\n")
    if len(plain) < PIECE_BYTES_MIN:
        return
    if plain.isascii():
        yield from (line.decode() for line in plain.splitlines() if len(line) >= PIECE_BYTES_MIN)
    yield secret.hex()
    yield secret.hex().upper()
    yield base64.b64encode(secret).decode().rstrip("=")
    yield base64.urlsafe_b64encode(secret).decode().rstrip("=")
    yield secret.decode(errors="replace")
