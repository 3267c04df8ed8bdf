"""Figures as people read them."""

from __future__ import annotations


def spoken_time(seconds: int) -> str:
    """``seconds`` for people: 3 min 12 s, 4 d 2 h."""
    days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"


def spoken_us(microseconds: float) -> str:
    """A latency for people: 875 µs, 1.81 ms, 10.00 s; "–" for none."""
    if not microseconds:
        return "–"
    if microseconds < 1_000:
        return f"{microseconds:.0f} µs"
    if microseconds < 1_000_000:
        return f"{microseconds / 1_000:.{2 if microseconds < 10_000 else 1}f} ms"
    return f"{microseconds / 1_000_000:.2f} s"


def spoken_rate(per_second: float) -> str:
    """Requests per second for people: 0.4/s, 12/s."""
    return f"{per_second:.{1 if 0 < per_second < 10 else 0}f}/s"


def spoken_count(value: float) -> str:
    """A number of things for people: 3, 2.4."""
    return f"{value:.{0 if value == int(value) else 1}f}"
