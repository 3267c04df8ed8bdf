"""The root from its first signature to its last key: who has to sign, what is refused, what boxes take."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.controller.online_keys import OnlineKeys
from appliance.controller.root import RootPlan, make_root, root_plan, root_status, sign_root
from appliance.controller.signing import sign_document
from appliance.domain.errors import OperatorError
from appliance.fleet.metadata import ONLINE_ROLES, Counters
from appliance.package.keys import make_key, open_signer, public_key_of, read_public_key
from appliance.package.trust import judge, sign
from appliance.sync.trust import NoRoot, begin, examine, keys_of_packages
from tests.trust.repository import DEVICE, LATER, NONE, NOW, Fleet, online_keys, polled, signers, state


def test_a_root_is_signed_one_holder_after_another() -> None:
    holders = signers(3)
    plan = RootPlan(
        offline=[public_key_of(each) for each in holders],
        threshold=2,
        online=online_keys().public(),
        expires=LATER,
    )
    root = make_root(plan)
    assert (root_status(root).version, root_status(root).missing) == (1, 2)
    with pytest.raises(NoRoot):
        begin(root)
    root = sign_root(root, holders[2])
    assert root_status(sign_root(root, holders[2])).missing == 1, "twice by the same holder is once"
    with pytest.raises(NoRoot):
        begin(root)
    root = sign_root(root, holders[0])
    assert root_status(root).complete
    assert begin(root).root_version == 1


def test_the_next_root_needs_old_and_new_holders() -> None:
    fleet = Fleet()
    old, new = fleet.offline, signers(2)
    plan = replace(root_plan(fleet.root), offline=[public_key_of(each) for each in new], threshold=2)
    root = make_root(plan, fleet.root)
    for each in new:
        root = sign_root(root, each, fleet.root)
    status = root_status(root, fleet.root)
    assert (status.version, status.missing, status.missing_previous, status.complete) == (2, 0, 2, False)
    with pytest.raises(OperatorError, match="has no say"):
        sign_root(root, signers(1)[0], fleet.root)
    for each in old[1:]:
        root = sign_root(root, each, fleet.root)
    assert root_status(root, fleet.root).complete
    trusted, refused = examine(begin(fleet.root), polled(None, [root]), DEVICE)
    assert (refused, trusted.root_version) == (None, 2)
    with pytest.raises(OperatorError, match="does not follow"):
        root_status(fleet.root, root)


def test_what_a_root_says_can_be_changed_and_said_again() -> None:
    fleet = Fleet()
    plan = root_plan(fleet.root)
    assert [each.keyid for each in plan.offline] == [each.keyid for each in fleet.plan.offline]
    assert (plan.threshold, set(plan.online), plan.expires) == (2, set(ONLINE_ROLES), LATER)


@pytest.mark.parametrize(("count", "threshold"), [(0, 1), (1, 2), (2, 0), (65, 2)])
def test_a_threshold_that_cannot_be_met_is_refused(count: int, threshold: int) -> None:
    keys = [public_key_of(each) for each in signers(count)]
    plan = RootPlan(offline=keys, threshold=threshold, online=online_keys().public(), expires=LATER)
    with pytest.raises(OperatorError, match="offline keys"):
        make_root(plan)


def test_a_key_counts_once_and_is_offline_or_online() -> None:
    (key,) = [public_key_of(each) for each in signers(1)]
    online = online_keys().public()
    with pytest.raises(OperatorError, match="different"):
        make_root(RootPlan(offline=[key, key], threshold=2, online=online, expires=LATER))
    with pytest.raises(OperatorError, match="never online"):
        make_root(RootPlan(offline=[key], threshold=1, online={**online, "timestamp": key}, expires=LATER))
    with pytest.raises(OperatorError, match="each of targets, snapshot, timestamp"):
        make_root(RootPlan(offline=[key], threshold=1, online={"targets": key}, expires=LATER))


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b"{" * 5000])
def test_what_is_no_root_is_refused(data: bytes) -> None:
    for act in (root_status, root_plan, lambda root: sign_root(root, signers(1)[0])):
        with pytest.raises(OperatorError):
            act(data)
    with pytest.raises(NoRoot):
        begin(data)
    with pytest.raises(OperatorError, match="role timestamp"):
        root_status(Fleet().publish(1).timestamp)


def test_online_keys_are_their_owners_alone(tmp_path: Path) -> None:
    keys = OnlineKeys.create(tmp_path / "keys")
    for role in ONLINE_ROLES:
        path = tmp_path / "keys" / f"{role}.pem"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    again = OnlineKeys.open(tmp_path / "keys")
    assert {role: key.keyid for role, key in again.public().items()} == {
        role: key.keyid for role, key in keys.public().items()
    }
    with pytest.raises(OperatorError, match="already has a key"):
        OnlineKeys.create(tmp_path / "keys")
    (tmp_path / "keys" / "snapshot.pem").chmod(0o640)
    with pytest.raises(OperatorError, match="chmod 600"):
        OnlineKeys.open(tmp_path / "keys")


def test_online_keys_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"targets\.pem"):
        OnlineKeys.open(tmp_path)
    with pytest.raises(OperatorError, match="cannot be made"):
        OnlineKeys.create(tmp_path / "missing" / "keys")


def test_a_generation_never_says_two_things() -> None:
    fleet = Fleet()
    first = sign_document(fleet.keys, state(3), NONE, NOW)
    assert first.counters == Counters(timestamp=1, snapshot=1, targets=3)
    for generation in (3, 2):
        with pytest.raises(ValueError, match="is not above 3"):
            sign_document(fleet.keys, state(generation), first.counters, NOW)
    assert sign_document(fleet.keys, state(9), first.counters, NOW).counters == Counters(
        timestamp=2, snapshot=2, targets=9
    )


@pytest.mark.parametrize("kind", ["ecdsa", "ed25519", "rsa"])
def test_the_root_says_who_may_sign_packages(kind: str, tmp_path: Path) -> None:
    private, public = make_key(kind)
    (tmp_path / "maker.pem").write_bytes(private)
    maker = open_signer(str(tmp_path / "maker.pem"), lambda what: "")
    fleet = Fleet()
    trusted = begin(fleet.root)
    assert keys_of_packages(trusted) == ()
    fleet.rotate(packages=[public])
    trusted, refused = examine(trusted, polled(None, fleet.roots[1:]), DEVICE)
    assert refused is None
    keys = keys_of_packages(trusted)
    assert [(each.keyid, each.scheme) for each in keys] == [(public.keyid, public.scheme)]
    envelope = sign(b"manifest", [maker])
    assert judge(b"manifest", envelope, keys).keyids == (public.keyid,)
    assert [each.keyid for each in root_plan(fleet.root).packages] == [public.keyid]
    fleet.rotate(packages=[])
    trusted, _ = examine(trusted, polled(None, fleet.roots[2:]), DEVICE)
    assert judge(b"manifest", envelope, keys_of_packages(trusted)).keyids == (), "its key was withdrawn"


def test_public_keys_of_offline_holders_are_read_from_files(tmp_path: Path) -> None:
    from appliance.package.keys import public_pem

    (key,) = [public_key_of(each) for each in signers(1)]
    (tmp_path / "holder.pem").write_bytes(public_pem(key))
    plan = RootPlan(
        offline=[read_public_key(tmp_path / "holder.pem")],
        threshold=1,
        online=online_keys().public(),
        expires=LATER,
    )
    assert root_status(make_root(plan)).missing == 1
