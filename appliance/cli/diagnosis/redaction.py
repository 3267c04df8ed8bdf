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
from itertools import islice
from typing import Final, NamedTuple

REDACTED: Final = "[redacted]"
PIECE_BYTES_MIN: Final = 16
"""A line of a key in PEM, or a key, of fewer bytes would be met by accident."""
PIECES_MAX: Final = 64
"""A key has fewer lines; each is looked for at every place of a text."""
_BEGIN: Final = re.compile(rb"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----(.*?)(?:-----END|\Z)", re.DOTALL)
_LINE: Final = re.compile(rb"[A-Za-z0-9+/=]{16,128}")
_NAMES: Final = (
    "password|passwd|passphrase|secret|token|api_?-?key|credential|webhook|private_?-?key|authorization"
    "|access_?-?key|account_?-?key"
)
_WHOLE_NAMES: Final = r"(?:(?<![A-Za-z])(?:pwd|pass)|pw)(?![\w-])"
"""Names that are parts of other words, and so are looked for at the end of a name alone."""
_BREAK: Final = r"(?:\s|\\{1,4}[nrt])"
_PATTERNS: Final = (
    # Whoever sends a request can have a key's first line in the log: what follows goes while it may be one's text.
    re.compile(
        r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----"
        rf"(?:{_BREAK}{{1,8}}(?:Proc-Type|DEK-Info|Content-Domain):[ \w,.-]{{1,128}}){{0,4}}"
        rf"(?:[A-Za-z0-9+/=]|{_BREAK}){{0,16384}}+(?:-----END [A-Z ]{{0,20}}PRIVATE KEY-----)?"
    ),
    re.compile(r"\bea1\.[A-Za-z0-9_=-]{16,}"),
    re.compile(r"(?<![\w-])eyJ[\w-]{2,8192}\.eyJ[\w-]{2,8192}(?:\.[\w-]{0,8192}){1,3}"),
    re.compile(r"(?<=://)[^\s/\"'<>]{1,4096}(?=@)"),
    re.compile(r"(?i)\bhooks?\.[\w.-]{1,100}/[^\s\"'<>\\]{1,2048}"),
    re.compile(r"(?i)(?:(?<=hook/)|(?<=hooks/))[^\s\"'<>\\]{1,2048}"),
    re.compile(rf"(?i)--(?:(?:{_NAMES})[\w-]{{0,32}}|{_WHOLE_NAMES})\s{{1,4}}[^\s-]\S{{0,4096}}"),
    re.compile(r"(?i)\bbearer\s{1,4}[\w.~+/=-]{20,}"),
)
_AUTHORIZATION: Final = re.compile(
    r"""(?ix)
    (?P<before> authorization (?: \\?["'] )? \s{0,4} [=:] \s{0,4}+ ) (?! \\?["'\[{] )
    (?: [^\n"'\\] | (?<==) \\?" [^"\\\n]{0,1024} \\?" ){1,8192}+"""
)
"""A scheme of HTTP and what it has, whichever it is: the rest of the line, or of the text in quotes."""
_PARAMETER: Final = re.compile(
    r"(?i)(?P<before>(?:[?&;]|\\u0026)(?:[\w-]{0,32}[_-])?sig(?:nature)?=)[^\s\"'<>&;\\]{1,4096}"
)
"""A signature in a URL opens what it signs."""
_TEXT: Final = r"""
    \\" (?: (?! \\" ) [^\n] ){0,4096}+ (?: \\" )? | " (?: \\[^\n] | [^"\\\n] ){0,4096}+ "? | ' [^'\n]{0,4096}+ '?
    | (?<=[\[{,]) [ \t]{0,64}+ \n \s{0,64}+ | [^"'\[\]{}\n\\]{1,256}+"""
"""A piece of a list or an object: a line breaks behind a bracket or a comma alone, so that one that is never closed
takes no lines of a log with it."""
_NAMED: Final = re.compile(
    rf"""(?ix)
    (?P<before> (?: (?:{_NAMES}) [\w-]{{0,32}} | {_WHOLE_NAMES} )
        (?P<close> \\?["'] )? \s{{0,4}} [=:] \s{{0,4}} )
    (?: (?P<triple> \""" ) (?: (?: [^"] | "(?!"") ){{1,1024}}+ \""" | [^\n]{{1,1024}} )
      | (?P<escaped> \\["'] ) (?: (?! \\["'] ) [^\n] ){{1,65536}}
      | (?P<double> " ) (?: \\[^\n] | [^"\\\n] ){{1,65536}}
      | (?P<single> ' ) [^'\n]{{1,65536}}
      | [\[{{] (?! redacted\] | \s{{0,64}} [\]}}] )
        (?: {_TEXT} | [\[{{] (?: {_TEXT} ){{0,256}}+ [\]}}]? ){{0,1024}}+ [\]}}]?
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
        pieces = {piece for secret in secrets for piece in islice(_pieces(secret), PIECES_MAX)}
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
        for pattern in (_AUTHORIZATION, _PARAMETER, _NAMED):
            text, more = pattern.subn(_without_value, text)
            found += more
        return Redacted(text, found)


def _without_value(match: re.Match[str]) -> str:
    """The key, and that something stood behind it."""
    groups = match.groupdict()
    quote = groups.get("escaped") or groups.get("double") or groups.get("single") or ""
    return f"{groups['before']}{quote}{REDACTED}"


def _pieces(secret: bytes) -> Iterator[str]:
    """How the secret may stand in a text. Certificates that lie with a key in PEM are no secrets."""
    if b"-----BEGIN" in secret:
        for body in _BEGIN.findall(secret):
            lines = (line.strip() for line in body.splitlines())
            yield from (line.decode() for line in lines if _LINE.fullmatch(line))
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
