"""Packages that were right once: signed by a key that is not trusted any more, or older than what a box wants."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.cli.model.list import listing
from appliance.config.repository import RepositoryConfig
from appliance.config.store import PackagesConfig, Unsigned
from appliance.daemon.parts import trust_of
from appliance.package.keys import read_public_key
from appliance.sources.store import StoreSource
from appliance.store.catalog import Catalog, CatalogModel, InstalledVersion
from tests.architecture.sources import ROOT
from tests.cli.test_model_packages import Capture, printed, run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the digits model."""
    shutil.copytree(ROOT / "models" / "digits", tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_version_whose_key_was_withdrawn_is_listed_and_refused_where_that_is_set(
    here: Path, capsys: Capture
) -> None:
    for key in ("old", "new", "other"):
        assert run("keygen", key) == Exit.OK
        (here / f"{key}.toml").write_text(
            f'state_dir = "state"\n[packages]\ntrusted_keys = ["{key}.pub"]\n[store]\nfree_floor_bytes = 0\n'
        )
    assert run("pack", "digits", "--key", "old", "--key", "new", "--no-proof") == Exit.OK
    assert run("install", "digits-2.model", "--config", "old.toml") == Exit.OK
    capsys.readouterr()
    ids = {key: read_public_key(here / f"{key}.pub").keyid for key in ("old", "new")}
    said = {"old": f"key {ids['old']}", "new": f"key {ids['new']}", "other": f"withdrawn {ids['old']}"}
    for key, word in said.items():
        assert run("list", "--config", f"{key}.toml", "--json") == Exit.OK
        assert [each["trust"] for each in printed(capsys)["versions"]] == [word]
        assert main(["store", "usage", "--config", f"{key}.toml", "--json"]) == Exit.OK
        assert [each["trust"] for each in printed(capsys)["versions"]] == [word]
        for unsigned in Unsigned:
            packages = PackagesConfig(trusted_keys=(str(here / f"{key}.pub"),), unsigned=unsigned)
            source = StoreSource(
                here / "state", RepositoryConfig(), tuple, trust_of=trust_of(packages, here / "state")
            )
            scan = source.read()
            source.close()
            refused = unsigned is Unsigned.NEVER and key == "other"
            assert [each.model.trust for each in scan.servable] == ([] if refused else [word])
            assert ["no key that is trusted now" in str(each) for each in scan.problems] == (
                [True] if refused else []
            )
    assert run("list", "--config", "other.toml") == Exit.OK
    assert "withdrawn" in capsys.readouterr().out


def test_an_old_package_takes_an_order_and_one_below_the_minimum_is_never_wanted(
    here: Path, capsys: Capture
) -> None:
    assert run("keygen", "key") == Exit.OK
    text = '[packages]\ntrusted_keys = ["key.pub"]\n[store]\nfree_floor_bytes = 0\n'
    (here / "config.toml").write_text(text)
    words = ("--state-dir", "state", "--config", "config.toml")
    for version, minimum in ((3, 1), (4, 3), (2, 2)):
        pack = ("pack", "digits", "--name", "digits", "--version", str(version), "--no-proof", "--key", "key")
        if version > 2:
            shutil.copytree(here / "digits" / "2", here / "digits" / str(version))
        assert run(*pack, "--minimum-version", str(minimum)) == Exit.OK
    assert run("install", "digits-4.model", *words) == Exit.OK
    capsys.readouterr()
    for package in ("digits-3.model", "digits-2.model"):
        assert run("install", package, *words) == Exit.REFUSED
        assert "--downgrade installs it nevertheless" in capsys.readouterr().err
    assert run("install", "digits-3.model", "--downgrade", *words) == Exit.OK
    assert run("install", "digits-2.model", "--downgrade", *words) == Exit.REFUSED
    assert "says that 3 is the lowest version to be served" in capsys.readouterr().err
    assert run("install", "digits-2.model", "--downgrade", "--no-want", *words) == Exit.OK
    assert run("want", "digits/2", *words) == Exit.REFUSED
    capsys.readouterr()
    assert run("list", *words, "--json") == Exit.OK
    assert [each["wish"] for each in printed(capsys)["versions"]] == ["below the minimum", "wanted", ""]


@pytest.mark.parametrize(
    ("catalog", "daemon", "shown"),
    [
        ("key a", "key a", "key a"),
        ("key a", "withdrawn a", "withdrawn a"),
        ("withdrawn a", "key a", "withdrawn a"),
        ("", "key a", "key a"),
        ("key a", "", "key a"),
    ],
)
def test_whoever_knows_that_a_key_was_withdrawn_is_believed(catalog: str, daemon: str, shown: str) -> None:
    version = InstalledVersion(version=1, digest="0" * 64, trust="key a", files=(), installed_at_ms=0)
    installed = Catalog(models=(CatalogModel(name="m", versions=(version,)),)) if catalog else Catalog()
    entry = {"name": "m", "version": 1, "workers": [], "trust": daemon}
    (listed,) = listing(installed, {"workers": [], "models": [entry]}, lambda version: catalog)
    assert listed.trust == shown
