"""Which lines are written, and what of that clients may know and change: the logging extension's settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from appliance.config.telemetry import LogConfig, LogLevel
from appliance.domain.errors import InvalidRequest, Unsupported

Setting = bool | int | str

TIME_FORMAT: Final = "ISO8601"
_SWITCHES: Final[Mapping[str, LogLevel]] = {
    "log_info": LogLevel.INFO,
    "log_warning": LogLevel.WARNING,
    "log_error": LogLevel.ERROR,
    "log_verbose_level": LogLevel.DEBUG,
}
_TYPE_WORDS: Final[Mapping[type, str]] = {bool: "true or false", int: "an integer", str: "a text"}


class LogSettings:
    """The levels that are on: those of the configuration at first. One owner: the log."""

    def __init__(self, config: LogConfig) -> None:
        self._config = config
        order = list(LogLevel)
        self._enabled = set(order[order.index(config.level) :])

    def has(self, level: LogLevel) -> bool:
        """Whether lines of that level are written."""
        return level in self._enabled

    @property
    def library_level(self) -> int:
        """What libraries may log: their debug lines only when ours are on, their information never."""
        return logging.DEBUG if self.has(LogLevel.DEBUG) else logging.WARNING

    def values(self) -> Mapping[str, Setting]:
        """What is in force, by the names of the logging extension."""
        return {
            "log_file": self._config.file,
            "log_info": LogLevel.INFO in self._enabled,
            "log_warning": LogLevel.WARNING in self._enabled,
            "log_error": LogLevel.ERROR in self._enabled,
            "log_verbose_level": int(LogLevel.DEBUG in self._enabled),
            "log_format": TIME_FORMAT,
        }

    def update(self, changes: Mapping[str, Setting]) -> None:
        """Change some settings, all or none. Raises InvalidRequest for a key or a type that the extension does not
        have and Unsupported for what only the configuration can change."""
        for key, value in changes.items():
            self._check(key, value)
        for key, value in changes.items():
            if key in _SWITCHES:
                (self._enabled.add if value else self._enabled.discard)(_SWITCHES[key])

    def _check(self, key: str, value: Setting) -> None:
        values = self.values()
        now = values.get(key)
        if now is None:
            raise InvalidRequest(f"log setting '{key}' is not known; the settings are {', '.join(values)}")
        if type(value) is not type(now):
            raise InvalidRequest(f"log setting '{key}' must be {_TYPE_WORDS[type(now)]}, got {value!r}")
        if isinstance(value, int) and value < 0:
            raise InvalidRequest(f"log setting '{key}' must not be negative, got {value}")
        if key not in _SWITCHES and value != now:
            raise Unsupported(
                f"log setting '{key}' is {now!r} and is not for clients to change; it belongs to the "
                "configuration of the appliance"
            )
