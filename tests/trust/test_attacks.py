"""What somebody who holds the link, or a few of the keys, can make a box believe: nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.controller.signing import DeviceMetadata
from appliance.domain.manifest import INT64_MAX
from appliance.fleet.documents import encode
from appliance.fleet.messages import Polled
from appliance.fleet.metadata import (
    ONLINE_ROLES,
    ROOT_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
    TARGETS_BYTES_MAX,
    TIMESTAMP_BYTES_MAX,
    Counters,
)
from appliance.sync.signed_metadata import Refused
from appliance.sync.trust import Trusted, begin, examine
from tests.trust.repository import (
    DEVICE,
    Fleet,
    forged,
    online_keys,
    polled,
    rebuilt,
    signers,
    state,
    with_broken_signatures,
)

FLEET = Fleet()
"""Never rotated: tests that change roots make their own."""
FIRST = FLEET.publish(5, Counters(timestamp=10, snapshot=10, targets=4))
SECOND = FLEET.publish(6, FIRST)
NOTHING = Polled(now_ms=0, poll_s=60)
STRANGERS = online_keys()


def trusting(fleet: Fleet, metadata: DeviceMetadata) -> Trusted:
    """What a box trusts that took all of ``metadata``."""
    trusted, refused = examine(begin(fleet.roots[0]), polled(metadata, fleet.roots[1:]), DEVICE)
    assert refused is None
    return trusted


def refusal(trusted: Trusted, what: Polled, device: str = DEVICE) -> Refused:
    """Why ``what`` was refused; nothing of it was taken."""
    after, refused = examine(trusted, what, device)
    assert refused is not None, "it was taken"
    assert after == trusted
    assert (after.counters, after.root_version) == (trusted.counters, trusted.root_version)
    return refused


def test_what_is_right_is_taken() -> None:
    trusted = trusting(FLEET, FIRST)
    assert trusted.counters == Counters(timestamp=11, snapshot=11, targets=5)
    assert trusted.desired == state(5)
    after, refused = examine(trusted, polled(SECOND), DEVICE)
    assert refused is None
    assert after.desired == state(6)


def test_parts_that_the_box_has_need_not_be_sent() -> None:
    trusted = trusting(FLEET, FIRST)
    newer = FLEET.stamped(FIRST)
    after, refused = examine(trusted, polled(None, timestamp=newer.timestamp), DEVICE)
    assert refused is None
    assert after.counters.timestamp == 12
    assert after.desired == trusted.desired
    assert examine(after, NOTHING, DEVICE) == (after, None)
    assert examine(after, polled(newer), DEVICE) == (after, None)


# --- rollback, mix-and-match, replay


ROLLBACKS: dict[str, tuple[Polled, str]] = {
    "the whole set before": (polled(FIRST), "generation-went-back"),
    "the timestamp alone": (polled(None, timestamp=FIRST.timestamp), "rollback"),
    "a newer timestamp of the set before": (polled(FLEET.stamped(FIRST, 5)), "rollback"),
    "newer timestamp and snapshot of the generation before": (
        polled(FLEET.publish(5, Counters(timestamp=90, snapshot=90, targets=4))),
        "generation-went-back",
    ),
}


@pytest.mark.parametrize("which", ROLLBACKS)
def test_no_version_goes_down(which: str) -> None:
    what, code = ROLLBACKS[which]
    assert refusal(trusting(FLEET, SECOND), what).code == code


def test_an_old_root_changes_nothing() -> None:
    fleet = Fleet()
    fleet.rotate(offline=signers(3))
    trusted = trusting(fleet, fleet.publish(1))
    assert examine(trusted, polled(None, fleet.roots[:1]), DEVICE) == (trusted, None)
    assert trusted.root_version == 2


MIXED: dict[str, Polled] = {
    "the snapshot before": polled(SECOND, snapshot=FIRST.snapshot),
    "the targets before": polled(SECOND, targets=FIRST.targets),
    "the document before": polled(SECOND, document=FIRST.document),
    "a document nobody signed": polled(SECOND, document=encode(state(6, issued_ms=1))),
    "no snapshot": polled(SECOND, snapshot=b""),
    "no targets": polled(SECOND, targets=b""),
    "no document": polled(SECOND, document=b""),
    "no timestamp": polled(SECOND, timestamp=b""),
    "a document with a byte more": polled(SECOND, document=SECOND.document + b"\0"),
    "a snapshot with a byte more": polled(SECOND, snapshot=SECOND.snapshot + b" "),
}


@pytest.mark.parametrize("which", MIXED)
def test_a_set_is_taken_whole_or_not_at_all(which: str) -> None:
    assert refusal(trusting(FLEET, FIRST), MIXED[which]).code == "mix-and-match"


@pytest.mark.parametrize(("role", "above"), [("targets", "snapshot"), ("snapshot", "timestamp")])
def test_a_version_is_the_one_that_is_spoken_of(role: str, above: str) -> None:
    """Signed by the right keys, and still at odds with itself."""
    name = f"{role}.json"
    meta = json.loads(getattr(SECOND, above))["signed"]["meta"][name]
    lying = rebuilt(
        FLEET,
        SECOND,
        above,
        lambda data: forged(data, [FLEET.keys.signers[above]], meta={name: {**meta, "version": 99}}),
    )
    assert refusal(trusting(FLEET, FIRST), polled(lying)).code == "mix-and-match"


def test_one_version_never_says_two_things() -> None:
    twin = FLEET.publish(6, FIRST, issued_ms=7)
    trusted = trusting(FLEET, SECOND)
    assert refusal(trusted, polled(twin)).code == "equivocation"
    restamped = FLEET.publish(6, Counters(timestamp=90, snapshot=90, targets=5), issued_ms=7)
    assert refusal(trusted, polled(restamped)).code == "equivocation"


def test_what_is_meant_for_another_device_is_not_for_this_one() -> None:
    other = FLEET.publish(500, Counters(timestamp=500, snapshot=500), device="box-2")
    assert refusal(trusting(FLEET, FIRST), polled(other)).code == "other-device"
    assert refusal(begin(FLEET.root), polled(FIRST), device="box-2").code == "other-device"


def test_another_fleet_is_not_believed() -> None:
    fleet = Fleet()
    assert refusal(trusting(FLEET, FIRST), polled(fleet.publish(9), [fleet.root])).code == "unknown-key"


def test_targets_name_the_desired_state() -> None:
    def change(data: bytes) -> bytes:
        (said,) = json.loads(data)["signed"]["targets"].values()
        return forged(data, [FLEET.keys.signers["targets"]], targets={"other": said})

    found = refusal(trusting(FLEET, FIRST), polled(rebuilt(FLEET, SECOND, "targets", change)))
    assert (found.code, found.role) == ("invalid", "targets")


# --- sizes


@pytest.mark.parametrize(
    ("part", "limit"),
    [
        ("timestamp", TIMESTAMP_BYTES_MAX),
        ("snapshot", SNAPSHOT_BYTES_MAX),
        ("targets", TARGETS_BYTES_MAX),
        ("root", ROOT_BYTES_MAX),
    ],
)
def test_endless_data_is_not_even_parsed(part: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spaces are lawful JSON, and all above speaks of them: only the limit keeps them out."""
    fleet = Fleet()
    first = fleet.publish(1)
    trusted = trusting(fleet, first)
    second = fleet.publish(2, first)

    def pad(data: bytes) -> bytes:
        return data + b" " * (limit + 1 - len(data))

    what = (
        polled(second, [pad(fleet.rotate())]) if part == "root" else polled(rebuilt(fleet, second, part, pad))
    )
    parsed: list[int] = []
    parse = json.loads

    def loads(text: str | bytes, **more: Any) -> Any:
        parsed.append(len(text))
        return parse(text, **more)

    monkeypatch.setattr(json, "loads", loads)
    assert refusal(trusted, what).code == "too-long"
    assert max(parsed, default=0) <= limit


def test_a_root_may_be_as_large_as_the_limit() -> None:
    fleet = Fleet()
    root = fleet.rotate()
    padded = root + b" " * (ROOT_BYTES_MAX - len(root))
    trusted, refused = examine(begin(fleet.roots[0]), polled(None, [padded]), DEVICE)
    assert (refused, trusted.root_version) == (None, 2)


# --- signatures


@pytest.mark.parametrize("role", ONLINE_ROLES)
@pytest.mark.parametrize("signed", ["by nobody", "by a stranger", "by another role", "wrongly"])
def test_each_role_is_signed_by_its_own_key(role: str, signed: str) -> None:
    another = {"timestamp": "snapshot", "snapshot": "targets", "targets": "timestamp"}[role]
    change: dict[str, Callable[[bytes], bytes]] = {
        "by nobody": lambda data: forged(data, []),
        "by a stranger": lambda data: forged(data, [STRANGERS.signers[role]]),
        "by another role": lambda data: forged(data, [FLEET.keys.signers[another]]),
        "wrongly": with_broken_signatures,
    }
    found = refusal(trusting(FLEET, FIRST), polled(rebuilt(FLEET, SECOND, role, change[signed])))
    assert found.role == role
    assert found.code == ("unknown-key" if "stranger" in signed or "another" in signed else "threshold")


def test_one_role_is_not_taken_for_another() -> None:
    trusted = trusting(FLEET, FIRST)
    assert refusal(trusted, polled(SECOND, timestamp=SECOND.snapshot)).code == "invalid"
    assert refusal(trusted, polled(SECOND, [SECOND.timestamp])).code == "invalid"


@pytest.mark.parametrize("count", [0, 1])
def test_a_root_needs_as_many_signatures_as_were_agreed(count: int) -> None:
    fleet = Fleet()
    trusted = begin(fleet.root)
    root = forged(fleet.rotate(), fleet.offline[:count])
    assert refusal(trusted, polled(None, [root])).code == "threshold"


def test_a_signature_twice_is_no_second_signature() -> None:
    fleet = Fleet()
    trusted = begin(fleet.root)
    document = json.loads(forged(fleet.rotate(), fleet.offline[:1]))
    document["signatures"] *= 2
    assert refusal(trusted, polled(None, [json.dumps(document).encode()])).code == "invalid"


def test_a_key_by_two_names_is_no_second_key() -> None:
    """Old keys agree to it, by mistake: one key alone could change the root ever after."""
    fleet = Fleet()
    trusted = begin(fleet.root)
    signed = json.loads(fleet.rotate())["signed"]
    (first, *_), keys = signed["roles"]["root"]["keyids"], dict(signed["keys"])
    keys["f" * 64] = keys[first]
    roles = {**signed["roles"], "root": {"keyids": [first, "f" * 64], "threshold": 2}}
    document = json.loads(forged(fleet.root, fleet.offline, keys=keys, roles=roles))
    (again,) = [each for each in document["signatures"] if each["keyid"] == first]
    document["signatures"].append({**again, "keyid": "f" * 64})
    root = json.dumps(document).encode()
    assert refusal(trusted, polled(None, [root])).code == "invalid"


def test_a_root_that_nobody_could_ever_follow_is_refused() -> None:
    """More signatures than keys: the box would never trust anything again."""
    fleet = Fleet()
    trusted = begin(fleet.root)
    roles = json.loads(fleet.rotate())["signed"]["roles"]
    roles["timestamp"]["threshold"] = 2
    assert refusal(trusted, polled(None, [forged(fleet.root, fleet.offline, roles=roles)])).code == "invalid"


# --- roots


def test_roots_are_followed_one_by_one() -> None:
    fleet = Fleet()
    for _ in range(3):
        fleet.rotate(offline=signers(3), keys=online_keys())
    trusted = trusting(fleet, fleet.publish(1))
    assert trusted.root_version == 4


def test_a_root_is_not_skipped() -> None:
    fleet = Fleet()
    trusted = begin(fleet.root)
    fleet.rotate(offline=signers(3))
    fleet.rotate()
    assert refusal(trusted, polled(None, fleet.roots[2:])).code == "root-skipped"
    huge = forged(fleet.root, fleet.offline, version=INT64_MAX)
    assert refusal(trusted, polled(None, [huge])).code == "root-skipped"


def test_a_root_needs_the_old_keys_and_the_new() -> None:
    fleet = Fleet()
    trusted = begin(fleet.root)
    old, new = list(fleet.offline), signers(3)
    root = fleet.rotate(offline=new)
    assert refusal(trusted, polled(None, [forged(root, new)])).code == "unknown-key"
    assert refusal(trusted, polled(None, [forged(root, old)])).code == "unknown-key"
    assert examine(trusted, polled(None, [root]), DEVICE)[0].root_version == 2


def test_roots_up_to_a_bad_one_are_kept() -> None:
    fleet = Fleet()
    trusted = begin(fleet.root)
    fleet.rotate()
    bad = forged(fleet.rotate(), signers(3))
    after, refused = examine(trusted, polled(None, [fleet.roots[1], bad]), DEVICE)
    assert refused is not None
    assert after.root_version == 2


def test_keys_that_were_rotated_out_change_no_root() -> None:
    fleet = Fleet()
    old = list(fleet.offline)
    fleet.rotate(offline=signers(3))
    trusted = trusting(fleet, fleet.publish(1))
    evil = forged(fleet.root, old, version=3)
    assert refusal(trusted, polled(None, [evil])).code == "unknown-key"


@pytest.mark.parametrize("role", ONLINE_ROLES)
def test_keys_that_were_revoked_sign_nothing(role: str) -> None:
    fleet = Fleet()
    first = fleet.publish(1)
    trusted = trusting(fleet, first)
    stolen = fleet.keys.signers[role]
    fleet.rotate(keys=online_keys())
    trusted, _ = examine(trusted, polled(None, fleet.roots[1:]), DEVICE)
    evil = rebuilt(fleet, fleet.publish(2, first), role, lambda data: forged(data, [stolen]))
    assert refusal(trusted, polled(evil)).code == "unknown-key"
    assert trusted.desired == state(1), "what was trusted is used on"
    after, refused = examine(trusted, polled(fleet.publish(2, first)), DEVICE)
    assert (refused, after.desired) == (None, state(2))


@pytest.mark.parametrize("role", ONLINE_ROLES)
def test_a_fleet_comes_back_from_versions_at_the_end(role: str) -> None:
    """A stolen key was used to set a version so high that no higher one is left: a new root with new keys ends it."""
    fleet = Fleet()
    end = {"timestamp": INT64_MAX - 1, "snapshot": INT64_MAX - 1}.get(role, 0)
    before = Counters(**({role: end} if end else {}))
    evil = fleet.publish(INT64_MAX if role == "targets" else 1, before)
    trusted = trusting(fleet, evil)
    good = fleet.publish(2)
    assert refusal(trusted, polled(good)).code in ("rollback", "generation-went-back", "equivocation")
    fleet.rotate(keys=online_keys())
    good = fleet.publish(2)
    after, refused = examine(trusted, polled(good, fleet.roots[1:]), DEVICE)
    assert (refused, after.desired) == (None, state(2))


@pytest.mark.parametrize("version", [INT64_MAX + 1, 10**30, 0, -1, "7", 7.0, None])
@pytest.mark.parametrize("role", ONLINE_ROLES)
def test_a_version_is_a_number_that_can_be_counted_with(role: str, version: Any) -> None:
    def change(data: bytes) -> bytes:
        return forged(data, [FLEET.keys.signers[role]], version=version)

    found = refusal(trusting(FLEET, FIRST), polled(rebuilt(FLEET, SECOND, role, change)))
    assert found.code == ("threshold" if version is None and role == "timestamp" else "invalid")
    assert found.role in (role, above(role))


def above(role: str) -> str:
    """The role that speaks of ``role``."""
    return ONLINE_ROLES[min(ONLINE_ROLES.index(role) + 1, 2)]


# --- documents that cannot be done


def test_a_document_of_a_newer_format_moves_versions_and_nothing_else() -> None:
    trusted = trusting(FLEET, FIRST)
    newer = FLEET.publish(6, FIRST, format=2)
    after, refused = examine(trusted, polled(newer), DEVICE)
    assert refused is not None
    assert (refused.code, after.counters.targets, after.desired) == ("document-invalid", 6, state(5))
    again, refused = examine(after, NOTHING, DEVICE)
    assert refused is not None, "it is told for as long as it is so"
    assert again == after
    assert refusal(after, polled(FIRST)).code == "generation-went-back"
    third, refused = examine(after, polled(FLEET.publish(7, newer)), DEVICE)
    assert (refused, third.desired) == (None, state(7))


def test_a_document_that_is_not_what_its_metadata_says_is_not_done() -> None:
    for other in (state(7), state(6, device="box-2")):
        document = encode(other)
        digest = hashlib.sha256(document).hexdigest()
        target = {"length": len(document), "hashes": {"sha256": digest}, "custom": {"device": DEVICE}}

        def change(data: bytes, target: dict[str, Any] = target) -> bytes:
            return forged(data, [FLEET.keys.signers["targets"]], targets={"desired": target})

        lying = rebuilt(FLEET, SECOND, "targets", change)
        after, refused = examine(trusting(FLEET, FIRST), polled(lying, document=document), DEVICE)
        assert refused is not None
        assert (refused.code, after.desired) == ("document-invalid", state(5))


# --- anything


@given(
    part=st.sampled_from(["timestamp", "snapshot", "targets", "document", "root"]),
    cut=st.integers(min_value=0, max_value=5000),
    flips=st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 255)), max_size=4),
    junk=st.binary(max_size=64),
)
def test_no_bytes_are_too_odd_to_be_refused(
    part: str, cut: int, flips: list[tuple[int, int]], junk: bytes
) -> None:
    data = bytearray(ROTATED.root if part == "root" else getattr(SECOND_ROTATED, part))
    original = bytes(data)
    for at, bits in flips:
        data[at % len(data)] ^= bits
    damaged = bytes(data[: cut % (len(data) + 1)] or data) + junk
    roots = [damaged] if part == "root" else ROTATED.roots[1:]
    what = polled(SECOND_ROTATED, roots)
    if part != "root":
        what = structs.replace(what, **{part: damaged})
    after, refused = examine(begin(ROTATED.roots[0]), what, DEVICE)
    if refused is None:
        assert part != "document" or damaged == original
        assert part == "document" or json.loads(damaged) == json.loads(original), "only its spaces differ"
    assert after.root_version in (1, 2)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
                        st.sampled_from(["signed", "signatures", "_type", "version", "keys", "roles", "expires",
                                         "meta", "targets", "spec_version", "keyid", "sig", "length", "hashes"]),
                        inner, max_size=8), max_leaves=24), st.sampled_from(["root", *ONLINE_ROLES]))  # fmt: skip
def test_any_json_is_refused(value: Any, role: str) -> None:
    data = json.dumps(value).encode()
    what = polled(None, [data]) if role == "root" else structs.replace(polled(SECOND), **{role: data})
    refusal(begin(FLEET.root), what)


@pytest.mark.parametrize("part", ["timestamp", "snapshot", "targets"])
@pytest.mark.parametrize(
    "damage",
    [
        {"hashes": {}},
        {"hashes": {"md5": "00"}},
        {"hashes": {"shake_128": "00"}},
        {"hashes": ["sha256"]},
        {"length": True},
        {"length": "1"},
        {"length": None},
    ],
)
def test_a_digest_and_a_length_are_always_there(part: str, damage: dict[str, Any]) -> None:
    """Both are left out lawfully in TUF; here the document would hang on nothing then."""
    field = {"timestamp": "meta", "snapshot": "meta", "targets": "targets"}[part]

    def change(data: bytes) -> bytes:
        files = json.loads(data)["signed"][field]
        (name, found), *_ = files.items()
        found = {**found, **damage}
        found = {key: value for key, value in found.items() if value is not None}
        return forged(data, [FLEET.keys.signers[part]], **{field: {name: found}})

    assert refusal(trusting(FLEET, FIRST), polled(rebuilt(FLEET, SECOND, part, change))).code == "invalid"


@pytest.mark.parametrize("nesting", ["[", '{"a":'])
def test_deep_nesting_is_no_way_in(nesting: str) -> None:
    assert refusal(begin(FLEET.root), polled(None, timestamp=nesting.encode() * 2000)).code == "invalid"


ROTATED = Fleet()
ROTATED.rotate(offline=signers(2), keys=online_keys())
SECOND_ROTATED = ROTATED.publish(3)
