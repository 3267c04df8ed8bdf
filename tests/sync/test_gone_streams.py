"""The agent as a process, at a stream that the controller does not have any more."""

from __future__ import annotations

from pathlib import Path

from appliance.cli.main import main
from appliance.fleet.documents import WishedModel
from appliance.package.keys import read_public_key
from tests.sync.controller_double import ControllerDouble
from tests.sync.test_agent import Pack, Start, told_of, until, wanted_in


def test_a_stream_that_went_at_the_controller_is_left_for_that_of_the_next_document(
    enrolled: Path, controller: ControllerDouble, start: Start, pack: Pack, tmp_path: Path
) -> None:
    """The release was signed anew while the box was at it, and the box comes back before it hears of that."""
    package, key = pack(), tmp_path / "maker.key"
    controller.chunk, controller.chunk_s = 100, 0.05
    controller.want(WishedModel(name="digits", wanted=controller.offer(package)))
    process = start()
    until(lambda: controller.sent_bytes > 200)
    process.kill()
    process.wait()
    controller.chunk, controller.chunk_s, controller.poll_s = 64 << 10, 0.0, 1
    controller.files.clear()
    start()
    controller.wait(lambda: (told := told_of(controller)) is not None and "does not have it" in told.reason)
    assert main(["model", "keygen", str(key)]) == 0
    assert main(["model", "sign", str(package), "--key", str(key)]) == 0
    controller.let_sign(read_public_key(tmp_path / "maker.key.pub"))
    controller.want(WishedModel(name="digits", wanted=controller.offer(package)))
    until(lambda: wanted_in(enrolled) == 1)
