"""Whom the configuration may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.frontend.regions import users
from appliance.frontend.regions.users import OVERFLOW_USER, user_problems, users_of


def test_users_of_the_configuration() -> None:
    assert users_of(["root", "7"]) == {0, 7}
    assert not list(user_problems(["root", "1000"]))
    for name in ("no such user", "", str(1 << 32), "9" * 5000, "-1", "\u0661"):
        (problem,) = user_problems([name])
        assert f"'{name}' is no user of this machine" in problem
    (problem,) = user_problems([str(OVERFLOW_USER)])
    assert "stands for everybody of whom the kernel knows no user" in problem


def test_a_user_whom_the_namespace_does_not_have_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with PrivateUsers=yes of systemd, where only root and the unit's own user are told apart."""
    monkeypatch.setattr(users, "MAP", tmp_path / "uid_map")
    (tmp_path / "uid_map").write_text("         0          0          1\n       998        998          1\n")
    assert not list(user_problems(["0", "998"]))
    for user in ("1", "997", "999", "1000"):
        (problem,) = user_problems([user])
        assert "PrivateUsers=no" in problem
