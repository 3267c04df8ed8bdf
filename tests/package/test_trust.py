"""Signatures: keys in files and in a token, several on one package, and what each says to whom."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config.store import PackagesConfig, Unsigned
from appliance.configuration import load
from appliance.domain.errors import ConfigInvalid, OperatorError, PackageInvalid
from appliance.package.keys import KINDS, PublicKey, make_key, open_signer, public_pem, read_public_key
from appliance.package.trust import PAYLOAD_TYPE, judge, sign

MANIFEST = b'{"a":"manifest"}'
TOKEN_LIBRARY = Path("/usr/lib/softhsm/libsofthsm2.so")


def no_secret(what: str) -> str:
    raise AssertionError(f"asked for a {what}")


def new_key(folder: Path, kind: str = "ecdsa", name: str = "key") -> tuple[str, PublicKey]:
    """A private key's file and the public key, read from its own file."""
    private, public = make_key(kind)
    (folder / f"{name}.pem").write_bytes(private)
    (folder / f"{name}.pub.pem").write_bytes(public_pem(public))
    return str(folder / f"{name}.pem"), read_public_key(folder / f"{name}.pub.pem")


@pytest.mark.parametrize("kind", KINDS)
def test_a_signature_is_right_for_its_bytes_alone(kind: str, tmp_path: Path) -> None:
    place, public = new_key(tmp_path, kind)
    envelope = sign(MANIFEST, [open_signer(place, no_secret)])
    trust = judge(MANIFEST, envelope, [public])
    assert trust.keyids == (public.keyid,)
    assert trust.word == f"key {public.keyid}"
    assert trust.problem(Unsigned.REFUSE) == ""
    with pytest.raises(PackageInvalid, match="over other contents"):
        judge(MANIFEST + b" ", envelope, [public])


def test_the_envelope_is_one_that_openssl_can_check(tmp_path: Path) -> None:
    """DSSE's pre-authentication encoding, by the public words of its specification."""
    place, public = new_key(tmp_path)
    document = json.loads(sign(MANIFEST, [open_signer(place, no_secret)]))
    kind = PAYLOAD_TYPE.encode()
    signed = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(MANIFEST), MANIFEST)
    (tmp_path / "signed").write_bytes(signed)
    import base64

    (tmp_path / "sig").write_bytes(base64.b64decode(document["signatures"][0]["sig"]))
    subprocess.run(
        ["openssl", "dgst", "-sha256", "-verify", public.label, "-signature", "sig", "signed"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip


def test_keys_made_by_openssl_sign(tmp_path: Path) -> None:
    """The lines of docs/PACKAGES.md."""
    place, public = tmp_path / "key.pem", tmp_path / "key.pub.pem"
    for line in (
        f"openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {place}",
        f"openssl pkey -in {place} -pubout -out {public}",
    ):
        subprocess.run(line.split(), check=True, capture_output=True)
    envelope = sign(MANIFEST, [open_signer(str(place), no_secret)])
    assert judge(MANIFEST, envelope, [read_public_key(public)]).keyids


def test_a_key_with_a_password(tmp_path: Path) -> None:
    place, public = new_key(tmp_path)
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", place, "-out", locked, "-passout", "pass:open sesame"],
        check=True, capture_output=True,
    )  # fmt: skip
    envelope = sign(MANIFEST, [open_signer(str(locked), lambda what: "open sesame")])
    assert judge(MANIFEST, envelope, [public]).keyids
    with pytest.raises(OperatorError, match="not a private key that can sign"):
        open_signer(str(locked), lambda what: "something else")


def test_several_signatures(tmp_path: Path) -> None:
    """A second one is added to the first; each reader trusts whom it knows."""
    keys = [new_key(tmp_path, kind, kind) for kind in KINDS]
    envelope = None
    for place, _ in keys:
        envelope = sign(MANIFEST, [open_signer(place, no_secret)], envelope)
    publics = [public for _, public in keys]
    assert set(judge(MANIFEST, envelope, publics).keyids) == {public.keyid for public in publics}
    assert judge(MANIFEST, envelope, publics[1:2]).keyids == (publics[1].keyid,)


def test_who_may_be_installed(tmp_path: Path) -> None:
    place, public = new_key(tmp_path)
    _, stranger = new_key(tmp_path, name="stranger")
    envelope = sign(MANIFEST, [open_signer(place, no_secret)])
    assert "is not signed" in judge(MANIFEST, None, [public]).problem(Unsigned.REFUSE)
    assert judge(MANIFEST, None, [public]).problem(Unsigned.ALLOW) == ""
    unknown = judge(MANIFEST, envelope, [stranger])
    assert "no trusted key" in unknown.problem(Unsigned.REFUSE)
    assert unknown.problem(Unsigned.ALLOW) == ""
    assert unknown.word == "unsigned"


def test_a_wrong_signature_of_a_trusted_key_is_refused_whatever_is_allowed(tmp_path: Path) -> None:
    place, public = new_key(tmp_path)
    document = json.loads(sign(MANIFEST, [open_signer(place, no_secret)]))
    other = json.loads(sign(b"other", [open_signer(place, no_secret)]))
    document["signatures"][0]["sig"] = other["signatures"][0]["sig"]
    trust = judge(MANIFEST, json.dumps(document).encode(), [public])
    assert trust.verdicts[0].right is False
    for unsigned in Unsigned:
        assert "is wrong" in trust.problem(unsigned)


def envelope_with(**changed: Any) -> bytes:
    document = {
        "payload": b64encode(MANIFEST).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": "a", "sig": "AAAA"}],
    }
    return json.dumps(document | changed).encode()


@pytest.mark.parametrize(
    "envelope",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        envelope_with(more=1),
        envelope_with(payloadType="text/plain"),
        envelope_with(payload=5),
        envelope_with(payload="!"),
        envelope_with(payload=b64encode(b"other").decode()),
        envelope_with(signatures=[]),
        envelope_with(signatures={}),
        envelope_with(signatures=[1]),
        envelope_with(signatures=[{"keyid": "a"}]),
        envelope_with(signatures=[{"keyid": 1, "sig": ""}]),
        envelope_with(signatures=[{"keyid": "a\n", "sig": ""}]),
        envelope_with(signatures=[{"keyid": "a", "sig": 1}]),
        envelope_with(signatures=[{"keyid": "a", "sig": "A" * 100_000}]),
        envelope_with(signatures=[{"keyid": "a", "sig": ""}] * 2),
        envelope_with(signatures=[{"keyid": str(number), "sig": ""} for number in range(33)]),
    ],
)
def test_envelopes_that_are_none(envelope: bytes) -> None:
    with pytest.raises(PackageInvalid, match=r"signature\.json"):
        judge(MANIFEST, envelope, [])


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(junk: bytes) -> None:
    with pytest.raises(PackageInvalid):
        judge(MANIFEST, junk, [])


def test_files_that_are_no_keys(tmp_path: Path) -> None:
    place, _ = new_key(tmp_path)
    (tmp_path / "text").write_text("hello")
    (tmp_path / "large").write_bytes(bytes(70_000))
    small = tmp_path / "small.pem"
    line = f"openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:1024 -out {small}"
    subprocess.run(line.split(), check=True, capture_output=True)
    public = tmp_path / "small.pub.pem"
    subprocess.run(f"openssl pkey -in {small} -pubout -out {public}".split(), check=True)
    for path, says in (
        (Path(place), "private key"),
        (tmp_path / "text", "not a public key"),
        (tmp_path / "large", "more than"),
        (tmp_path / "absent", "cannot be read"),
        (tmp_path, "cannot be read"),
        (public, "less than 2048 bits"),
    ):
        with pytest.raises(OperatorError, match=says):
            read_public_key(path)
    with pytest.raises(OperatorError, match="not a private key"):
        open_signer(str(tmp_path / "text"), no_secret)


def test_the_configuration_names_keys(tmp_path: Path) -> None:
    _, public = new_key(tmp_path)
    overrides = {"models": str(tmp_path), "packages": {"trusted_keys": [public.label], "unsigned": "allow"}}
    assert load(None, overrides).packages == PackagesConfig(
        trusted_keys=(public.label,), unsigned=Unsigned.ALLOW
    )
    with pytest.raises(ConfigInvalid, match=r"packages\.trusted_keys"):
        load(None, {"models": str(tmp_path), "packages": {"trusted_keys": ["nowhere"]}})


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A software token with one key pair, number 2, whose pin is 1234; gives its label."""
    pytest.importorskip("pkcs11", reason="the package python-pkcs11 is not installed (extra: hsm)")
    if not TOKEN_LIBRARY.exists() or not shutil.which("softhsm2-util"):
        pytest.skip("SoftHSM is not installed here")
    (tmp_path / "tokens").mkdir()
    (tmp_path / "softhsm2.conf").write_text(f"directories.tokendir = {tmp_path}/tokens\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(tmp_path / "softhsm2.conf"))
    line = "softhsm2-util --init-token --free --label signing --pin 1234 --so-pin 5678"
    subprocess.run(line.split(), check=True, capture_output=True)
    script = "\n".join(
        (
            "import pkcs11, pkcs11.util.ec as ec",
            f"token = pkcs11.lib({str(TOKEN_LIBRARY)!r}).get_token(token_label='signing')",
            "with token.open(rw=True, user_pin='1234') as session:",
            "    curve = ec.encode_named_curve_parameters('secp256r1')",
            "    domain = session.create_domain_parameters(",
            "        pkcs11.KeyType.EC, {pkcs11.Attribute.EC_PARAMS: curve}, local=True)",
            "    domain.generate_keypair(store=True, id=bytes([2]), label='models')",
        )
    )
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ, capture_output=True)
    monkeypatch.setenv("PYKCS11LIB", str(TOKEN_LIBRARY))
    return "signing"


def test_a_key_in_a_token(token: str, tmp_path: Path) -> None:
    from appliance.package.keys import public_key_of

    asked: list[str] = []

    def pin(what: str) -> str:
        asked.append(what)
        return "1234"

    signer = open_signer(f"hsm:2?label={token}", pin)
    (tmp_path / "token.pem").write_bytes(public_pem(public_key_of(signer)))
    public = read_public_key(tmp_path / "token.pem")
    assert judge(MANIFEST, sign(MANIFEST, [signer]), [public]).keyids == (public.keyid,)
    assert asked == ["pin"]
    with pytest.raises(OperatorError, match="cannot sign"):
        sign(MANIFEST, [open_signer("hsm:2", lambda what: "4321")])
    with pytest.raises(OperatorError, match="cannot be had"):
        open_signer("hsm:9", pin)
    with pytest.raises(OperatorError, match="number as ID"):
        open_signer("hsm:zwei", pin)


def test_a_token_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYKCS11LIB", raising=False)
    with pytest.raises(OperatorError, match="PYKCS11LIB"):
        open_signer("hsm:2", no_secret)
