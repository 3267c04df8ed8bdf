"""Who gives a command, as far as the kernel says: for people who ask later who did that."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Final

LOGIN: Final = Path("/proc/self/loginuid")
NO_LOGIN: Final = (1 << 32) - 1


def who() -> str:
    """The login name and its number; behind ``sudo`` those of who called it."""
    login, own = _login_uid(), os.getuid()
    if login == NO_LOGIN and own == 0 and (said := os.environ.get("SUDO_UID", "")).isdecimal():
        login = int(said[:10])
    uid = own if login == NO_LOGIN else login
    return f"{_name(uid)} (uid {uid}){f' as {_name(own)}' if uid != own else ''}"


def _login_uid() -> int:
    """Who logged in, whatever was called since; NO_LOGIN where nobody did, or the kernel does not say."""
    try:
        return int(LOGIN.read_text())
    except (OSError, ValueError):
        return NO_LOGIN


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return "unknown"
