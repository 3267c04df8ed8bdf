"""This machine's image, and errors about it as a command ends with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from appliance.cli.failure import CommandFailed, Exit
from appliance.domain.errors import OperatorError
from appliance.image.machine import Machine, look
from appliance.image.release import ReleaseInvalid

KEYS: Final = Path("/usr/share/edge-appliance/image-keys")
"""Public keys of who makes this machine's images; they are part of the image."""
FOLDER: Final = Path("/var/lib/appliance-image/update")


def this_machine() -> Machine:
    """What this machine runs. Fails where that is no image of this product."""
    with told():
        return look()


@contextmanager
def told() -> Iterator[None]:
    """What goes wrong, as a sentence and, of a release, as the list of all that is wrong."""
    try:
        yield
    except ReleaseInvalid as error:
        raise CommandFailed(
            "the release cannot be installed here:", Exit.REFUSED, lines=map(str, error.problems)
        ) from error
    except OperatorError as error:
        raise CommandFailed(str(error), Exit.REFUSED) from error
    except OSError as error:
        raise CommandFailed(f"'{error.filename or FOLDER}': {error.strerror}", Exit.REFUSED) from error
