"""The catalog as values and as bytes: nothing is lost on the way, and nothing that is wrong is believed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.domain.digest import digest_of
from appliance.domain.errors import CatalogInvalid, StoreUnavailable
from appliance.store.catalog import Catalog, StoredFile, Trial, TrialMode, catalog_problems
from appliance.store.catalog_codec import decode, encode
from appliance.store.catalog_file import read_catalog
from appliance.store.layout import CATALOG
from tests.store.catalogs import catalogs, plain_catalog


def sealed(body: Any, number: int = 1) -> bytes:
    """A file with ``body`` and the checksum that belongs to it."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    checksum = digest_of(canonical.encode(errors="surrogatepass"))
    return json.dumps({"catalog": body, "checksum": checksum, "format": number}).encode()


def body_of(catalog: Catalog) -> Any:
    return json.loads(encode(catalog))["catalog"]


def problems_in(data: bytes) -> list[str]:
    with pytest.raises(CatalogInvalid) as caught:
        decode(data, "catalog.json")
    return [str(problem) for problem in caught.value.problems]


@settings(max_examples=60)
@given(catalogs())
def test_what_is_written_is_what_is_read(catalog: Catalog) -> None:
    assert not list(catalog_problems(catalog))
    data = encode(catalog)
    assert decode(data, "catalog.json") == catalog
    assert encode(decode(data, "catalog.json")) == data


def test_what_no_reader_would_believe_is_not_written() -> None:
    """Half a character is what a command line has of bytes that are no UTF-8."""
    catalog = plain_catalog()
    (model, *others) = catalog.models
    trial = Trial(version=model.versions[0].version, mode=TrialMode.CANARY, percent=5, header="x: K\udcf6ln")
    with pytest.raises(CatalogInvalid, match=r"trial\.header: has half a character"):
        encode(replace(catalog, models=(replace(model, trial=trial), *others)))
    body = body_of(catalog)
    body["models"][model.name]["trial"] = {
        "header": trial.header, "mode": "canary", "percent": 5, "version": trial.version,
    }  # fmt: skip
    (problem,) = problems_in(sealed(body))
    assert "trial.header" in problem


@settings(max_examples=200)
@given(st.integers(0), st.integers(0, 7))
def test_no_flipped_bit_is_believed(place: int, bit: int) -> None:
    data = bytearray(encode(plain_catalog()).rstrip())
    data[place % len(data)] ^= 1 << bit
    assert problems_in(bytes(data))


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_other_bytes_are_a_broken_catalog_and_nothing_worse(data: bytes) -> None:
    assert problems_in(data)
    assert problems_in(b"[" * 50_000 + data)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    body = body_of(plain_catalog())
    digits = body["models"]["digits"]
    digits["wanted"] = "two"
    digits["pins"] = [1, "x"]
    digits["colour"] = "green"
    digits["versions"]["1"]["installed_at_ms"] = 1.5
    digits["versions"]["2"]["digest"] = None
    digits["versions"]["0x3"] = digits["versions"]["1"]
    body["models"]["other"] = []
    body["holds"] = {"digits": {"since_ms": 1, "version": 1, "what": "magic", "who": ""}}
    told = "\n".join(problems_in(sealed(body)))
    for key in (
        "wanted",
        "pins",
        "colour",
        "versions.1.installed_at_ms",
        "versions.2.digest",
        "versions.0x3",
    ):
        assert f"catalog.json: models.digits.{key}: " in told
    assert "catalog.json: models.other: is not an object" in told
    assert "catalog.json: holds.digits.what: is not one of install, want, " in told


def test_every_rule_between_values_is_held() -> None:
    body = body_of(plain_catalog())
    digits = body["models"]["digits"]
    digits["wanted"] = 9
    digits["wanted_before"] = [1, 1]
    digits["trial"] = {"header": "", "mode": "canary", "percent": 101, "version": 7}
    digits["versions"]["1"]["trust"] = "me"
    digits["versions"]["2"]["files"].pop("MANIFEST.json")
    body["models"]["Upper"] = digits
    body["holds"] = {"digits": {"since_ms": -1, "version": 1, "what": "want", "who": "x" * 257}}
    body["generation"] = -1
    told = "\n".join(problems_in(sealed(body)))
    for words in (
        "generation: is below zero",
        "models.Upper: is not 1 to 64",
        "holds.digits: is no model's name, or its numbers are not 0 to",
        "holds.digits.who: is over 256 characters",
        "digits.wanted: names version 9, which is not installed",
        "wanted_before: names a version twice",
        "trial: names version 7",
        "trial.percent: is not 0 to 100",
        "versions.1.trust: is neither",
        "versions.2.files: have no MANIFEST.json",
    ):
        assert words in told, words


@pytest.mark.parametrize(
    "path",
    [
        "../x", "/etc/passwd", "digits/../../x", "digits/./x", "digits//x", "digits/.x", "digits/x\n", "digits/x\0",
        "digits/", "digits", "other/x", "", "digits/" + "a/" * 9 + "a", "digits/" + "a" * 200, "digits/ä",
        "MANIFEST.json/x",
    ],
)  # fmt: skip
def test_no_path_leads_anywhere_but_into_the_model(path: str) -> None:
    catalog = plain_catalog()
    (model,) = catalog.models
    first = model.versions[0]
    file = StoredFile(path=path, size=1, digest=digest_of(b"x"))
    files = tuple(sorted((*first.files, file), key=lambda each: each.path))
    tricked = replace(model, versions=(replace(first, files=files), *model.versions[1:]))
    assert [key for key, _ in catalog_problems(replace(catalog, models=(tricked,))) if "files" in key]


def test_what_nobody_held_and_no_fleet_brought_reads_as_it_did_before() -> None:
    body = body_of(plain_catalog())
    assert "holds" not in body
    assert "managed" not in body["models"]["digits"]


def test_a_newer_format_is_refused_with_what_to_do() -> None:
    (told,) = problems_in(sealed({"new": 1}, number=2))
    assert "format: is 2, this program reads up to 1; update the appliance" in told


def test_an_older_format_is_brought_up_to_date_step_by_step() -> None:
    body = body_of(plain_catalog())
    older = {"generation": body["generation"], "things": body["models"]}
    steps = {
        1: lambda old: {**old, "stuff": old["things"]},
        2: lambda old: {"generation": 3, "models": old["stuff"]},
    }
    assert decode(sealed(older), "catalog.json", steps=steps, newest=3) == plain_catalog()


def test_a_reader_tells_no_catalog_from_a_broken_one_and_from_a_lost_disk(tmp_path: Path) -> None:
    assert read_catalog(tmp_path) is None
    (tmp_path / CATALOG).write_bytes(encode(plain_catalog()))
    assert read_catalog(tmp_path) == plain_catalog()
    (tmp_path / CATALOG).write_bytes(b"{}")
    with pytest.raises(CatalogInvalid, match=str(tmp_path / CATALOG)):
        read_catalog(tmp_path)
    with pytest.raises(StoreUnavailable, match="is its disk mounted"):
        read_catalog(tmp_path / "gone")


def test_a_link_in_the_place_of_the_catalog_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(encode(plain_catalog()))
    (tmp_path / CATALOG).symlink_to("elsewhere")
    with pytest.raises(StoreUnavailable):
        read_catalog(tmp_path)


def test_what_a_catalog_answers() -> None:
    catalog = plain_catalog()
    assert [version.version for _, version in catalog.wanted()] == [2]
    assert [(model.name, version.version) for model, version in catalog.installed()] == [
        ("digits", 1),
        ("digits", 2),
    ]
    assert catalog.model("digits") is catalog.models[0]
    assert catalog.model("none") is None
    assert catalog.models[0].version(3) is None
    assert catalog.models[0].versions[0].bytes == 114
    assert Trial(version=1, mode=TrialMode.SHADOW).percent == 0
