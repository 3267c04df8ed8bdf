"""The link: enrolment by a token alone, clocks that are wrong, and a typed failure for whatever else answers."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web

from appliance.cli.failure import Exit
from appliance.fleet import messages
from appliance.fleet.messages import Poll, Polled
from appliance.store.layout import FLEET
from appliance.sync.identity import EnrolmentInvalid, Identity, read_identity, token_of
from appliance.sync.link import Link, LinkFailed, LinkTrouble
from appliance.telemetry.inventory import inventory
from tests.cli.conftest import Run
from tests.sync.controller_double import Authority, ControllerDouble

MAIN = "from appliance.cli.main import main; raise SystemExit(main())"


def polled(identity: Identity, url: str = "") -> Polled:
    """What the controller says to a poll of that box."""

    async def ask() -> Polled:
        async with Link(url or identity.url, identity.tls()) as link:
            return await link.poll(Poll())

    return asyncio.run(ask())


def failure(identity: Identity, url: str = "") -> LinkFailed:
    with pytest.raises(LinkFailed) as caught:
        polled(identity, url)
    return caught.value


@pytest.fixture
def identity(enrolled: Path) -> Identity:
    found = read_identity(enrolled)
    assert found is not None
    return found


def test_a_box_is_enrolled_by_its_token_alone_and_then_proves_who_it_is(
    identity: Identity, controller: ControllerDouble, state: Path
) -> None:
    assert (identity.device, identity.url) == ("box-1", controller.url)
    assert polled(identity).poll_s == controller.poll_s
    folder = state / "fleet"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.is_file()}
    assert {mode & 0o077 for mode in modes.values()} == {0}, modes
    assert "enrolling.pem" not in modes
    assert b"PRIVATE" not in controller.enrolments[0].request.encode()
    assert controller.enrolments[0].inventory == inventory(), "as in its records"


def test_enrolling_again_takes_a_word(appliance: Run, enrolled: Path, controller: ControllerDouble) -> None:
    status, _, err = appliance("sync", "enrol", controller.token())
    assert status == 1
    assert "is 'box-1' of the fleet at" in err
    assert appliance("sync", "enrol", controller.token(), "--replace")[0] == 0
    assert len(controller.enrolments) == 2


def test_an_enrolment_that_is_cut_off_goes_on_with_the_same_key(
    appliance: Run, controller: ControllerDouble, state: Path
) -> None:
    async def dropped(request: web.Request) -> web.StreamResponse:
        controller.enrolments.append(messages.decode(await request.read(), messages.Enrolment))
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    controller.instead = dropped
    assert appliance("sync", "enrol", controller.token())[0] == 3
    assert read_identity(state) is None
    controller.instead = None
    assert appliance("sync", "enrol", controller.token())[0] == 0
    first, second = (each.request for each in controller.enrolments)
    assert key_of(first) == key_of(second)


def key_of(request: str) -> object:
    from cryptography import x509

    return x509.load_pem_x509_csr(request.encode()).public_key()


@pytest.mark.parametrize(
    "text", ["", "ea1.", "ea1.!!!!", "ea1." + "A" * 2000, "ea2.xyz", "ea1.gQ", "\x00", "ea1.kA"]
)
def test_what_is_no_token_is_told(text: str) -> None:
    with pytest.raises(EnrolmentInvalid, match="token"):
        token_of(text)


def test_a_token_for_another_authority_gives_nothing_away(
    appliance: Run, controller: ControllerDouble, state: Path
) -> None:
    status, _, err = appliance("sync", "enrol", controller.token(authority=Authority().digest))
    assert status == 2
    assert "is not the one of the token" in err
    assert not controller.enrolments
    assert read_identity(state) is None


@pytest.mark.parametrize("shift", [timedelta(days=-400), timedelta(days=400)], ids=["past", "future"])
def test_no_clock_stands_in_the_way(appliance: Run, tmp_path: Path, state: Path, shift: timedelta) -> None:
    """To a box whose clock is 400 days off all certificates have expired, or are not good yet."""
    (tmp_path / "other").mkdir()
    with ControllerDouble(tmp_path / "other", shift) as controller:
        assert appliance("sync", "enrol", controller.token())[0] == 0
        found = read_identity(state)
        assert found is not None
        assert polled(found).poll_s == controller.poll_s


def answering(text: str, status: int = 200, kind: str = "text/html", **headers: str) -> object:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=text, status=status, content_type=kind, headers=headers)

    return answer


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": messages.CONTENT_TYPE})
    await response.prepare(request)
    with suppress(ConnectionError):
        while request.transport is not None and not request.transport.is_closing():
            await response.write(bytes(1 << 20))
            await asyncio.sleep(0)  # a write to who has gone neither waits nor fails
    return response


async def cut(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": messages.CONTENT_TYPE, "Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"x" * 10)
    assert request.transport is not None
    request.transport.abort()
    return response


async def half(request: web.Request) -> web.StreamResponse:
    """It ends well in the middle of a message."""
    body = messages.encode(Polled(now_ms=1, poll_s=5))
    return web.Response(body=body[: len(body) // 2], content_type=messages.CONTENT_TYPE)


async def twice(request: web.Request) -> web.StreamResponse:
    return web.Response(
        body=messages.encode(Polled(now_ms=1, poll_s=5)) * 2, content_type=messages.CONTENT_TYPE
    )


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (answering("<html>Log in to the hotel's network</html>"), LinkTrouble.PORTAL),
        (answering("<html>Bad gateway</html>", 502), LinkTrouble.PORTAL),
        (answering("", 302, messages.CONTENT_TYPE, Location="https://example.org/"), LinkTrouble.REDIRECT),
        (answering("\x93", 200, messages.CONTENT_TYPE), LinkTrouble.NONSENSE),
        (answering("no refusal", 500, messages.CONTENT_TYPE), LinkTrouble.NONSENSE),
        (answering("", 200, messages.CONTENT_TYPE, **{"Content-Encoding": "gzip"}), LinkTrouble.NONSENSE),
        (endless, LinkTrouble.TOO_LARGE),
        (cut, LinkTrouble.LOST),
        (half, LinkTrouble.NONSENSE),
        (twice, LinkTrouble.NONSENSE),
    ],
    ids=["portal", "gateway", "redirect", "nonsense", "error", "packed", "endless", "cut", "half", "twice"],
)
def test_whatever_else_answers_is_told_as_what_it_is(
    identity: Identity, controller: ControllerDouble, answer: object, trouble: LinkTrouble
) -> None:
    controller.instead = answer  # type: ignore[assignment]
    assert failure(identity).trouble is trouble
    controller.instead = None
    assert polled(identity)


async def no_answer(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("it was waited for")


async def no_end(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": messages.CONTENT_TYPE, "Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"x" * 10)
    await asyncio.Event().wait()
    return response


async def drops(request: web.Request) -> web.StreamResponse:
    """A byte now and then, for ever."""
    response = web.StreamResponse(headers={"Content-Type": messages.CONTENT_TYPE})
    await response.prepare(request)
    with suppress(ConnectionError):
        while request.transport is not None and not request.transport.is_closing():
            await response.write(b"x")
            await asyncio.sleep(0.02)
    return response


def impatient(state: Path, config: Path, *words: str, **patience: float) -> tuple[int, str]:
    """A command of the agent, which waits for no longer than that."""
    code = f"from appliance.sync import link; link.__dict__.update({patience}); {MAIN}"
    command = [sys.executable, "-c", code, "sync", *words, "--state-dir", str(state), "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("answer", "patience"),
    [(no_answer, "SILENCE_S"), (no_end, "SILENCE_S"), (drops, "TOTAL_S")],
    ids=["no answer", "no end", "drops"],
)
def test_who_stands_still_is_left(
    appliance: Run, enrolled: Path, config: Path, controller: ControllerDouble, answer: object, patience: str
) -> None:
    controller.instead = answer  # type: ignore[assignment]
    status, err = impatient(enrolled, config, "once", **{patience: 0.3})
    assert (status, "did not answer in time" in err) == (3, True), err
    controller.instead = None
    assert appliance("sync", "once")[0] == 0


def test_who_takes_a_connection_and_says_nothing_is_left(
    state: Path, config: Path, controller: ControllerDouble
) -> None:
    """Not even TLS begins: so it is with some firewalls, and with a listener whose process stands still."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        token = controller.token(f"https://127.0.0.1:{silent.getsockname()[1]}")
        status, err = impatient(state, config, "enrol", token, CONNECT_S=0.3)
    assert (status, "did not answer in time" in err) == (3, True), err


def test_a_refusal_is_the_controllers_own(identity: Identity, controller: ControllerDouble) -> None:
    controller.expired = True
    failed = failure(identity)
    assert (failed.trouble, failed.code) == (LinkTrouble.REFUSED, "certificate-expired")


def test_somebody_in_the_middle_is_not_believed(identity: Identity, tmp_path: Path) -> None:
    (tmp_path / "middle").mkdir()
    with ControllerDouble(tmp_path / "middle") as middle:
        failed = failure(identity, middle.url)
        assert failed.trouble is LinkTrouble.UNTRUSTED
        assert not middle.polls


def test_a_device_of_the_same_fleet_is_no_controller(
    identity: Identity, controller: ControllerDouble
) -> None:
    """Its certificate is from the right authority, and for something else."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(identity.folder / "identity.pem"))

    async def posing() -> LinkFailed:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        try:
            async with Link(f"https://127.0.0.1:{port}", identity.tls()) as link:
                await link.poll(Poll())
        except LinkFailed as failed:
            return failed
        finally:
            server.close()
        raise AssertionError("it was believed")

    assert asyncio.run(posing()).trouble is LinkTrouble.UNTRUSTED


@pytest.mark.parametrize(
    ("url", "trouble"),
    [
        (lambda: "https://controller.invalid", LinkTrouble.DNS),
        (lambda: f"https://127.0.0.1:{closed_port()}", LinkTrouble.UNREACHABLE),
    ],
    ids=["no name", "nobody there"],
)
def test_nobody_there_is_told_apart(identity: Identity, url: Callable[[], str], trouble: LinkTrouble) -> None:
    assert failure(identity, url()).trouble is trouble


def closed_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_what_a_box_is_cannot_be_half(enrolled: Path, appliance: Run) -> None:
    place = enrolled / "fleet" / "controller"
    place.write_bytes(b"{")
    os.chmod(place, 0o600)
    status, _, err = appliance("sync", "status")
    assert status == 2
    assert "enrol this box again" in err


def test_the_agent_s_directory_is_no_link_to_another(
    appliance: Run, controller: ControllerDouble, state: Path, tmp_path: Path
) -> None:
    """What a service's user has left in its directory is not followed by root, who enrols the box."""
    outside = tmp_path / "etc"
    outside.mkdir(mode=0o755)
    state.mkdir(exist_ok=True)
    (state / FLEET).symlink_to(outside)
    status, _, err = appliance("sync", "enrol", controller.token())
    assert (status, err.count("\n")) == (Exit.USAGE, 1), err
    assert (outside.stat().st_mode & 0o777, list(outside.iterdir())) == (0o755, [])
