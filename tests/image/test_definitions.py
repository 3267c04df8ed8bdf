"""The image's files agree with one another, with the commands, and with what an update is made of."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.cli.command_table import CommandTable
from appliance.cli.image.here import FOLDER, KEYS
from appliance.cli.main import TABLE
from appliance.image import reset
from appliance.image.machine import TRIES
from appliance.image.release import IMAGE, PART_BYTES_MAX, VARIANTS
from appliance.image.update import FIRMWARE_KEY, SLOT_BYTES
from appliance.runtimes.distributions import DISTRIBUTIONS
from image.build import COMPONENTS, PACKAGES
from image.disk import BOOT_MIB
from image.place import HERE, ROOT
from packages.cuda_runtime import DEVICES
from packages.cuda_runtime import LOCK as RUNTIME
from tests.image.releases import UUID
from tests.runtimes.text_case import lowered

EXTRA = HERE / "mkosi" / "mkosi.extra"
PROFILE = HERE / "mkosi" / "mkosi.profiles" / "gpu"
EXTRAS = {"cpu": EXTRA, "gpu": PROFILE / "mkosi.extra"}
"""By variant; that of the GPU lies over the other."""
UNITS = EXTRA / "usr/lib/systemd/system"
UNIT_FILES = [
    DEVICES / "appliance-gpu.service",
    *(
        path
        for extra in EXTRAS.values()
        for kind in ("mount", "service")
        for path in sorted(extra.glob(f"usr/lib/systemd/system/*.{kind}"))
    ),
]
MIB = 1 << 20


def settings(path: Path, section: str) -> dict[str, str]:
    """A section of a file of systemd's."""
    parser = configparser.ConfigParser(
        strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",)
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text())
    return dict(parser[section])


@pytest.mark.parametrize("variant", VARIANTS)
def test_slots_on_the_disk_are_as_large_as_updates_may_be(variant: str) -> None:
    slots = SLOT_BYTES[variant]
    for number in (10, 20):
        for kind, name in (("root-verity", f"{number}-root-verity"), ("root", f"{number + 1}-root")):
            said = settings(EXTRAS[variant] / f"usr/lib/repart.d/{name}.conf", "Partition")
            assert said["SizeMinBytes"] == said["SizeMaxBytes"] == f"{slots[kind] // MIB}M"
            assert said.get("Label") == ("_empty" if number == 20 else None)
    assert slots["root-verity"] >= slots["root"] // 4096 * 32 * 1.02, "sums of all blocks, and of the sums"
    assert max(slots.values()) <= PART_BYTES_MAX
    boot = settings(HERE / "mkosi/mkosi.repart/00-esp.conf", "Partition")
    assert boot["SizeMinBytes"] == f"{BOOT_MIB}M"
    assert slots["kernel"] * 2 < BOOT_MIB * MIB, "two kernels, and the loader beside them"


def test_a_variant_has_its_slots_its_packages_and_its_part_of_the_archive() -> None:
    for table in (SLOT_BYTES, PACKAGES, COMPONENTS):
        assert set(table) == set(VARIANTS)
    profile = settings(PROFILE / "mkosi.conf", "Distribution")
    assert f"main {profile['Repositories'].replace(',', ' ')}" == COMPONENTS["gpu"]


def test_the_runtime_for_a_gpu_takes_the_place_of_the_other_and_of_nothing_else() -> None:
    def locked(path: Path) -> set[str]:
        return set(re.findall(r"^([a-z0-9.-]+)==", path.read_text(), re.MULTILINE))

    ours = locked(RUNTIME)
    assert ours & set(DISTRIBUTIONS["onnx"]) == {"onnxruntime-gpu"}
    assert not ours & locked(ROOT / "requirements.lock")
    assert "onnxruntime" in locked(ROOT / "requirements.lock")
    assert not [each for each in ours if each.endswith("-cu13")], "the driver of Debian 13 is of CUDA 12"


def test_what_an_update_brings_is_what_systemd_looks_for() -> None:
    """Names of parts match the sources' patterns; the kernel, by which a version is there, goes last."""
    transfers = sorted((EXTRA / "usr/lib/sysupdate.d").glob("*.transfer"))
    names = [f"{IMAGE}_1.2.3.root-x86-64-verity.{UUID}.raw", f"{IMAGE}_1.2.3.root-x86-64.{UUID}.raw"]
    names += [f"{IMAGE}_1.2.3.efi"]
    for transfer, name in zip(transfers, names, strict=True):
        source = settings(transfer, "Source")
        assert source["Path"] == str(FOLDER)
        pattern = re.escape(source["MatchPattern"]).replace("@v", "[0-9.]+").replace("@u", "[0-9a-f]{32}")
        assert re.fullmatch(pattern, name)
    assert settings(transfers[-1], "Target")["TriesLeft"] == str(TRIES)


def test_labels_of_partitions_are_those_that_are_matched() -> None:
    for made, matched in (("10-root-verity", "10-root-verity"), ("11-root", "11-root")):
        label = settings(HERE / f"mkosi/mkosi.repart/{made}.conf", "Partition")["Label"]
        pattern = settings(EXTRA / f"usr/lib/sysupdate.d/{matched}.transfer", "Target")["MatchPattern"]
        assert label.replace("%M", IMAGE).replace("%A", "@v") == pattern
        assert len(pattern.replace("@v", "999999.99.99")) <= 36, "a label has 36 characters at most"


def test_every_unit_that_wants_to_be_started_is_enabled_and_no_other_is_named() -> None:
    places = [extra / "usr/lib/systemd/system-preset" for extra in EXTRAS.values()]
    presets = sorted((path for place in places for path in place.iterdir()), key=lambda path: path.name)
    preset = "".join(path.read_text() for path in presets).splitlines()
    enabled = {line.split()[1] for line in preset if line.startswith("enable ")}
    wanting = {path.name for path in UNIT_FILES if "[Install]" in path.read_text()}
    assert wanting <= enabled
    assert preset.index("disable *") == len(preset) - 1, "what comes behind it counts no more"
    ours = {name for name in enabled if name.startswith("appliance-")}
    assert ours - wanting == {"appliance-sync.service"}, "which is the product's own"


def test_what_units_run_of_the_product_is_a_command() -> None:
    def commands() -> Iterator[list[str]]:
        for path in [*UNIT_FILES, EXTRA / "usr/lib/edge-appliance-image/stick"]:
            for line in re.findall(r"(?:/usr/bin/|\()appliance ([a-z -]+)", path.read_text()):
                yield line.split()

    found = list(commands())
    assert len(found) >= 4
    for words in found:
        place: object = TABLE
        for word in words:
            if not isinstance(place, CommandTable):
                break
            assert word in place.commands, words
            place = place.commands[word].place


def test_the_reset_is_asked_for_where_its_unit_looks() -> None:
    assert f"/{reset.VARIABLE}" in (UNITS / "appliance-factory-reset.service").read_text()
    assert f"/{reset.SETTINGS}" in (UNITS / "appliance-reset-settings.service").read_text()


def test_all_that_seals_binds_to_the_same_registers() -> None:
    """Also to that of what lies beside the kernel (12): a credential put there makes root of who put it."""
    sealing = [
        UNITS / "systemd-repart.service.d/10-appliance.conf",
        UNITS / "appliance-factory-reset.service",
        EXTRA / "usr/lib/edge-appliance-image/var",
    ]
    assert [re.findall(r"--tpm2-pcrs=(\S+)", path.read_text()) for path in sealing] == [["7+12"]] * 3


def test_keys_lie_where_an_update_looks_for_them() -> None:
    build = (HERE / "build.py").read_text()
    assert FIRMWARE_KEY.parent == KEYS
    assert '"image-keys"' in build
    assert FIRMWARE_KEY.name in build


def test_nobody_can_log_in_but_by_the_key() -> None:
    daemon = (EXTRA / "etc/ssh/sshd_config.d/10-appliance.conf").read_text()
    assert "PasswordAuthentication no" in daemon
    assert "AuthorizedKeysFile /run/ssh-authorized/%u" in daemon
    guard = settings(UNITS / "ssh.service.d/10-break-glass.conf", "Unit")
    assert guard["ConditionPathExists"] == "/run/ssh-authorized/root"
    assert "passwd --lock root" in (HERE / "mkosi/mkosi.postinst.chroot").read_text()


def test_serving_waits_for_no_clock_and_no_network() -> None:
    for path in UNIT_FILES:
        text = path.read_text()
        assert "time-sync.target" not in text, path.name
        assert not re.search(r"^(After|Requires|Wants)=.*network-online\.target", text, re.MULTILINE), (
            path.name
        )


def test_a_machine_without_a_tpm_waits_for_none() -> None:
    """systemd wants ``tpm2.target``, which waits for the device, where the firmware tells of one."""
    for path in UNIT_FILES:
        assert not re.search(r"^(Wants|Requires|BindsTo)=.*tpm", path.read_text(), re.MULTILINE), path.name


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
@pytest.mark.parametrize("path", UNIT_FILES, ids=lambda path: path.name)
def test_units_are_read_by_systemd_without_a_complaint(path: Path, tmp_path: Path) -> None:
    """As the older systemd of this machine reads them; commands and units that only the image has are let pass."""
    copy = tmp_path / path.name.replace("@.", "@sda1.")
    shutil.copy(path, copy)
    command: list[str | Path] = [
        "systemd-analyze",
        "verify",
        "--man=no",
        "--generators=no",
        "--recursive-errors=no",
        copy,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    ours = [line for line in done.stderr.splitlines() if path.stem.rstrip("@") in line]
    passed = re.compile(r"is not executable|Unit \S+ not found|Unknown key 'ImportCredential'")
    assert not [line for line in ours if not passed.search(line)], done.stderr


def test_text_models_that_name_no_locale_find_one(tmp_path: Path) -> None:
    """That of the USA, which changes the case of letters as that of C does."""
    (link,) = (EXTRA / "usr/lib/locale").iterdir()
    shutil.copy(link, tmp_path / link.name, follow_symlinks=False)
    assert lowered(tmp_path) == "straße été ω"
