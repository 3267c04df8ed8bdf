"""Unix sockets of both ports: who may connect is what the configuration says, whatever the umask."""

from __future__ import annotations

import grp
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.config.listening import mode_problems
from appliance.configuration import load
from appliance.domain.errors import AddressUnavailable, ConfigInvalid
from appliance.frontend.listening.sockets import (
    Listeners,
    UnixAccess,
    group_problems,
    place_problem,
    unix_access,
)
from tests.appliance_process import ApplianceProcess
from tests.fronts import EVERY_FRONT_END, FRONT_ENDS


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Everybody may do everything with what is made, unless its maker says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def other_group() -> int:
    """One that this user may give files to and does not make them with."""
    if os.geteuid() == 0:
        return os.getegid() + 1
    others = set(os.getgroups()) - {os.getegid()}
    if not others:
        pytest.skip("this user is in one group only")
    return min(others)


def access_of(path: Path) -> UnixAccess:
    found = path.stat()
    return UnixAccess(stat.S_IMODE(found.st_mode), found.st_gid)


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("front_end", EVERY_FRONT_END)
@pytest.mark.parametrize("said", [False, True], ids=["default", "configured"])
def test_who_may_connect(tmp_path: Path, front_end: str, said: bool) -> None:
    group = other_group() if said else os.getegid()
    settings = {"unix_mode": "0660", "unix_group": str(group)} if said else {}
    (tmp_path / "models").mkdir()
    sections = {name: {**settings, "addresses": [f"unix:{tmp_path / name}"]} for name in ("grpc", "http")}
    with ApplianceProcess(tmp_path / "models", {**sections, **FRONT_ENDS[front_end]}) as process:
        process.wait_ready()
        for name in sections:
            assert access_of(tmp_path / name) == UnixAccess(0o660 if said else 0o600, group), name
        assert process.stop() == 0
    assert not [name for name in sections if (tmp_path / name).exists()]


@pytest.mark.usefixtures("open_umask")
def test_a_socket_is_deaf_and_never_too_open_until_it_has_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, group, real, seen = tmp_path / "s", other_group(), os.chown, []

    def looking(place: str, user: int, wanted: int, *, follow_symlinks: bool) -> None:
        with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
            client.connect(place)
        seen.append(access_of(path).mode)
        real(place, user, wanted, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "chown", looking)
    listeners = Listeners()
    listeners.open([f"unix:{path}"], (), access=UnixAccess(0o660, group))
    assert seen == [0o660]
    assert access_of(path) == UnixAccess(0o660, group)
    listeners.close()


def test_a_group_that_cannot_be_given_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(
        AddressUnavailable, match="cannot be given to group 12, to which the appliance's user must"
    ):
        Listeners("http").open([f"unix:{tmp_path / 's'}"], (), access=UnixAccess(0o660, 12))
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("mode", ["600", "0660", "0777", "0222"])
def test_modes(mode: str) -> None:
    assert not list(mode_problems(mode))
    assert unix_access(mode, "").mode == int(mode, 8)


@pytest.mark.parametrize("mode", ["", "rw", "0o660", "0680", "01777", "4755", "66", "-660", "\u0666600"])
def test_what_is_no_mode(mode: str) -> None:
    (problem,) = mode_problems(mode)
    assert "is no mode" in problem


def test_a_mode_that_lets_nobody_in_is_told() -> None:
    (problem,) = mode_problems("0555")
    assert "nobody could connect" in problem


def test_groups_by_name_and_number() -> None:
    name = grp.getgrgid(os.getegid()).gr_name
    assert unix_access("0660", name) == UnixAccess(0o660, os.getegid())
    assert unix_access("0660", "12") == UnixAccess(0o660, 12)
    assert not list(group_problems(""))
    for group in ("no-such-group", "a\0b", str(1 << 32), "9" * 5000):
        assert "is no group of this machine" in next(group_problems(group))


def test_what_is_wrong_with_both_ports_is_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    wrong = "unix_mode = '999'\nunix_group = 'no-such-group'\n"
    file.write_text(f"models = '{tmp_path}'\n[grpc]\n{wrong}[http]\n{wrong}")
    with pytest.raises(ConfigInvalid) as told:
        load(file)
    assert {problem.key for problem in told.value.problems} == {
        f"{section}.{key}" for section in ("grpc", "http") for key in ("unix_mode", "unix_group")
    }


def test_a_socket_that_another_user_could_replace_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "control")
    tmp_path.chmod(0o755)
    assert place_problem(path) == ""
    for mode, says in ((0o777, "others may write"), (0o775, "others may write"), (0o1777, "")):
        tmp_path.chmod(mode)
        assert says in place_problem(path)
        assert bool(says) is bool(place_problem(path))
    assert place_problem(str(tmp_path / "nowhere" / "control")) == ""
    if os.geteuid() == 0:
        tmp_path.chmod(0o755)
        os.chown(tmp_path, 65534, -1)
        assert "belongs to user 65534" in place_problem(path)
