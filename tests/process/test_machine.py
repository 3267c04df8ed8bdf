"""How much memory there is: the least of what the machine has and what control groups allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.process.memory import free_bytes, memory_bytes


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, 1024_000),
        ({"a/b": "max", "a": "max"}, 1024_000),
        ({"a/b": "500", "a": "400", "": "300"}, 300),
        ({"a/b": "500", "a": "9999999999"}, 500),
    ],
)
def test_the_least_limit_counts(tmp_path: Path, limits: dict[str, str], expected: int) -> None:
    memory, own = tmp_path / "meminfo", tmp_path / "cgroup"
    memory.write_text("MemFree: 1 kB\nMemTotal:  1000 kB\n")
    own.write_text("1:name=old:/x\n0::/a/b\n")
    for group, limit in limits.items():
        (tmp_path / "groups" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / group / "memory.max").write_text(limit + "\n")
    assert memory_bytes(tmp_path / "groups", own, memory) == expected


def test_nothing_readable_is_no_limit(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path / "a", tmp_path / "b", tmp_path / "c") == 0


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 900_000 * 1024), ("600000", 330_000), ("100000", 0), ("", 900_000 * 1024)]
)
def test_what_is_left_is_the_least_of_machine_and_groups(tmp_path: Path, limit: str, expected: int) -> None:
    memory, own, group = tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "groups" / "a"
    memory.write_text("MemTotal: 1000000 kB\nMemAvailable:  900000 kB\n")
    own.write_text("0::/a\n")
    group.mkdir(parents=True)
    if limit:
        (group / "memory.max").write_text(limit + "\n")
    (group / "memory.current").write_text("300000\n")
    (group / "memory.stat").write_text("anon 5\ninactive_file 30000\n")
    assert free_bytes(tmp_path / "groups", own, memory) == expected
