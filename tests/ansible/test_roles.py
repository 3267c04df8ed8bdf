"""The roles as far as they go without a host: what they take, what they refuse, and that ansible-lint has no word.

What they do on a host, ``make ansible-test`` shows.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.config import loading
from packages.processor import ARCHITECTURES, architecture
from tests.ansible.collection import INSTALLED, NOT_INSTALLED, ROOT, Ansible

ROLES = sorted(path.name for path in (ROOT / "ansible/roles").iterdir())
EXAMPLE = ROOT / "ansible/examples/site"

PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr  8 12:41:17 UTC 2025\n"
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version:  14\n"
)
GPU = "/proc/driver/nvidia/gpus/0000:01:00.0\n"
LIBRARIES = "".join(
    f"{name} (libc6,x86-64) => /usr/lib/{name}\n" for name in ("libcuda.so.1", "libnvidia-ml.so.1")
)

needs_ansible = pytest.mark.skipif(not INSTALLED, reason=NOT_INSTALLED)


def read(role: str, name: str) -> Any:
    """A YAML file of a role."""
    return read_yaml(ROOT / "ansible/roles" / role / name)


def read_yaml(path: Path) -> Any:
    """A YAML file."""
    return yaml.safe_load(path.read_text())


def every(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The tasks, and those of their blocks."""
    for task in tasks:
        yield task
        yield from every(task.get("block", []))


@pytest.fixture(name="ansible")
def _ansible(tmp_path: Path) -> Ansible:
    return Ansible.below(tmp_path)


@pytest.mark.parametrize("role", ROLES)
def test_what_a_role_takes_is_what_it_declares(role: str) -> None:
    (options,) = (
        each["options"] for each in read(role, "meta/argument_specs.yml")["argument_specs"].values()
    )
    assert {name: option["default"] for name, option in options.items()} == read(role, "defaults/main.yml")
    assert all(name.startswith(f"{role}_") and option["description"] for name, option in options.items())


@pytest.mark.parametrize("role", ROLES)
def test_a_role_uses_all_that_it_takes(role: str) -> None:
    folder = ROOT / "ansible/roles" / role
    text = "".join(
        path.read_text()
        for each in ("tasks", "vars", "handlers", "templates")
        for path in (folder / each).glob("*")
    )
    assert [name for name in read(role, "defaults/main.yml") if name not in text] == []


@pytest.mark.parametrize("role", ROLES)
def test_no_secret_that_a_task_is_given_is_logged(role: str) -> None:
    """Ansible writes what a task is given to the journal of the host, and shows it at -vvv."""

    def tasks(listed: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for each in listed:
            yield each
            yield from tasks(each.get("block", []))

    for path in (ROOT / "ansible/roles" / role / "tasks").glob("*.yml"):
        for task in tasks(read(role, f"tasks/{path.name}")):
            secret = "stdin" in (task.get("ansible.builtin.command") or {})
            assert not secret or task.get("no_log") is True, task["name"]


@needs_ansible
@pytest.mark.timeout(300)
def test_the_linter_has_no_word(ansible: Ansible) -> None:
    place = ansible.folder / "ansible_collections/edge/appliance"
    done = ansible.run(
        "ansible-lint", "--offline", "--profile", "production", "--strict", "--nocolor", "-q", cwd=place
    )
    assert done.stdout == ""


@needs_ansible
@pytest.mark.parametrize("book", sorted(path.name for path in (ROOT / "ansible/playbooks").glob("*.yml")))
def test_the_example_site_can_be_played(ansible: Ansible, book: str) -> None:
    words = ("--list-tasks", "--list-hosts", "-i", str(EXAMPLE / "inventory.yml"))
    said = ansible.run("ansible-playbook", *words, str(ROOT / "ansible/playbooks" / book), cwd=EXAMPLE).stdout
    assert "north-2.example.net" in said
    assert "TAGS" in said


def test_the_settings_of_the_example_site_are_right(tmp_path: Path) -> None:
    settings = read_yaml(EXAMPLE / "group_vars/boxes.yml")["appliance_settings"]
    text = "".join(
        f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        for section, keys in settings.items()
    )
    (path := tmp_path / "appliance.toml").write_text(text)
    loading.load(path)


@pytest.mark.parametrize("role", ROLES)
def test_files_of_the_control_node_are_read_where_they_were_looked_for(role: str) -> None:
    """The checks look where ansible-playbook was started; a bare path is copied from beside the playbook."""
    tasks = [
        task
        for path in (ROOT / "ansible/roles" / role / "tasks").glob("*.yml")
        for task in every(read_yaml(path))
    ]
    sources = [task["ansible.builtin.copy"]["src"] for task in tasks if "ansible.builtin.copy" in task]
    assert all("ansible.builtin.realpath" in source for source in sources), sources


@needs_ansible
def test_the_clocks_are_compared_in_any_time_zone(tmp_path: Path) -> None:
    ansible = Ansible.below(tmp_path, TZ="Asia/Kolkata")
    said = refused(ansible, tmp_path, "appliance", {"appliance_min_free_bytes": 1})
    assert "appliance_min_free_bytes" in said
    assert "the clock is" not in said, said


@needs_ansible
def test_all_that_is_wrong_is_told_at_once_and_nothing_is_touched(ansible: Ansible, tmp_path: Path) -> None:
    wrong = {
        "appliance_package": "/nowhere/edge.deb",
        "appliance_version": "not one",
        "appliance_cuda_package": "/nowhere/cuda.deb",
        "appliance_cuda_version": "none either",
        "appliance_state_dir": "/srv/store",
        "appliance_models": "models",
        "appliance_grpc_addresses": ["0.0.0.0:70000"],
        "appliance_http_addresses": ["here"],
        "appliance_metrics_addresses": ["[::1]:0"],
        "appliance_settings": {"a b": 1},
        "appliance_trusted_keys": ["/nowhere/key"],
        "appliance_tls_certificate": "/nowhere/certificate",
        "appliance_tls_clients": "/nowhere/clients",
        "appliance_answer_timeout_s": 4,
        "appliance_min_free_bytes": 1,
        "appliance_max_clock_skew_s": 0,
        "appliance_require_gpu": not os.path.exists("/proc/driver/nvidia/version"),
    }
    said = refused(ansible, tmp_path, "appliance", wrong)
    assert [name for name in wrong if f"- {name}: " not in said and f"- {name}, " not in said] == [], said


@needs_ansible
@pytest.mark.parametrize("role", ["appliance", "controller"])
def test_the_package_for_another_processor_is_refused(ansible: Ansible, tmp_path: Path, role: str) -> None:
    """With all else that is wrong; the one for this machine is none of it."""
    (foreign,) = set(ARCHITECTURES.values()) - {architecture()}
    for each in (foreign, architecture()):
        (tmp_path / f"edge-appliance_1_{each}.deb").touch()
    package = f"{tmp_path}/edge-appliance_1_{foreign}.deb"
    wrong = {f"{role}_package": package, f"{role}_min_free_bytes": 1}
    if role == "controller":
        wrong |= {"controller_url": "https://here:8443", "controller_min_free_bytes": 1 << 60}
    said = refused(ansible, tmp_path, role, wrong)
    assert f"- {role}_package: edge-appliance_1_{foreign}.deb is for another processor" in said
    assert f"this host is {architecture()}; appliance_architecture in its name" in said
    assert f"- {role}_min_free_bytes: " in said

    own = package.replace(f"_{foreign}.deb", "_{{ appliance_architecture }}.deb")
    if role == "appliance":
        said = refused(ansible, tmp_path, role, {**wrong, f"{role}_package": own})
        assert f"{role}_package" not in said, said


@needs_ansible
def test_the_add_on_for_a_gpu_is_refused_where_it_cannot_run(ansible: Ansible, tmp_path: Path) -> None:
    (package := tmp_path / "edge-appliance-cuda_1_amd64.deb").touch()
    wrong = {
        "appliance_cuda_package": str(package),
        "appliance_architecture": "arm64",
        "appliance_min_free_bytes": 1,
    }
    said = refused(ansible, tmp_path, "appliance", wrong)
    assert (
        "- appliance_cuda_package: edge-appliance-cuda_1_amd64.deb is for another processor, this host is arm64"
        in said
    )


@needs_ansible
@pytest.mark.parametrize(
    ("said", "given", "problems"),
    [
        (f"{PROPRIETARY}{LIBRARIES}{GPU}", "edge-appliance-cuda_1_amd64.deb", []),
        (f"{OPEN}{LIBRARIES}{GPU}", "edge-appliance-cuda_1_amd64.deb", []),
        (f"{PROPRIETARY}{LIBRARIES}", "edge-appliance-cuda_1_amd64.deb", ["tells of no GPU"]),
        (
            f"{PROPRIETARY.replace('550', '470')}{GPU}libcuda.so.1 => /usr/lib/libcuda.so.1\n",
            "",
            [
                "of release 470, 525 or newer",
                "finds no libnvidia-ml.so.1",
                "edge-appliance-cuda is not installed",
            ],
        ),
        (LIBRARIES, "", ["driver is not loaded", "edge-appliance-cuda is not installed"]),
    ],
    ids=["proprietary", "open", "no GPU", "old", "none"],
)
def test_what_a_host_lacks_for_a_gpu_is_told(
    ansible: Ansible, tmp_path: Path, said: str, given: str, problems: list[str]
) -> None:
    """By what a driver says, which no driver says here."""
    known = {
        "appliance__driver": {"stdout": said, "stdout_lines": said.splitlines()},
        "appliance_cuda_package": given,
        "appliance_cuda_version": "",
        "appliance__cuda_found": {"stdout": ""},
    }
    found_at = tmp_path / "found.json"
    show = {"content": "{{ appliance__gpu_problems | to_json }}", "dest": str(found_at), "mode": "0644"}
    play = {
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "vars_files": [str(ROOT / "ansible/roles/appliance/vars/main.yml")],
        "vars": known,
        "tasks": [{"ansible.builtin.copy": show}],
    }
    (path := tmp_path / "play.json").write_text(json.dumps([play]))
    words = ("-i", "localhost,", "-e", f"ansible_python_interpreter={sys.executable}", str(path))
    ansible.run("ansible-playbook", *words)
    found = json.loads(found_at.read_text())
    assert len(found) == len(problems), found
    assert all(
        each.startswith("appliance_require_gpu: ") and part in each
        for each, part in zip(found, problems, strict=True)
    ), found


@needs_ansible
@pytest.mark.parametrize(
    ("role", "wrong"),
    [
        (
            "controller",
            {
                "controller_url": "http://here",
                "controller_address": "here",
                "controller_package_keys": ["/nowhere/key"],
                "controller_hosts": ["a host"],
                "controller_person": "A nn",
                "controller_answer_timeout_s": 4,
                "controller_min_free_bytes": 1,
            },
        ),
        ("enrol", {"enrol_controller": "nobody", "enrol_group": "", "enrol_name": "A box"}),
    ],
    ids=["controller", "enrol"],
)
def test_the_other_roles_tell_all_as_well(
    ansible: Ansible, tmp_path: Path, role: str, wrong: dict[str, Any]
) -> None:
    said = refused(ansible, tmp_path, role, wrong)
    assert [name for name in wrong if f"- {name}: " not in said] == []


@needs_ansible
def test_another_type_is_refused_by_its_name(ansible: Ansible, tmp_path: Path) -> None:
    wrong = {"appliance_answer_timeout_s": "soon", "appliance_settings": [1], "appliance_started": "perhaps"}
    said = refused(ansible, tmp_path, "appliance", wrong)
    assert [name for name in wrong if name not in said] == []


def refused(ansible: Ansible, folder: Path, role: str, variables: dict[str, Any]) -> str:
    """What a role says on this machine, which it has to refuse."""
    play = {
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "roles": [{"role": f"edge.appliance.{role}", **variables}],
    }
    (path := folder / "play.json").write_text(json.dumps([play]))
    words = ("-i", "localhost,", "-e", f"ansible_python_interpreter={sys.executable}", str(path))
    done = ansible.run("ansible-playbook", *words, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "changed=0" in done.stdout, done.stdout
    return done.stdout.replace("\\n", "\n")
