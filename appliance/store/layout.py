"""Where everything of a state directory lies: relative paths, for the writer and its readers alike. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from appliance.domain.digest import is_digest

LOCK: Final = "store.lock"
CATALOG: Final = "catalog.json"
DAMAGED_CATALOG: Final = "catalog.damaged.json"
"""A catalog that could not be believed, kept when it was made anew."""
BLOBS: Final = "blobs"
VIEWS: Final = "views"
INCOMING: Final = "incoming"
SERVE: Final = "serve"
"""The daemon's own directory: it alone writes there."""
FORMS: Final = "serve/forms"
"""Where packed forms that were built on this box lie."""
FORMS_KEY: Final = "forms.key"
"""Beside the directory of forms: what seals those that no other box may have made. It never leaves the box."""
BUILDING_FORM: Final = ".building-"
"""What the name of a form begins with that is not whole yet."""
REFUSED_FORM: Final = "refused"
"""The file that keeps a form that proved wrong from being built again."""
RUNNING: Final = "serve/running.json"
RUNNING_LOCK: Final = "serve/running.lock"
INCUMBENTS: Final = "serve/incumbents.json"
"""Which version of each model was proven last while it served."""
FLEET: Final = "fleet"
"""The agent's own directory: it alone writes there."""
ENROLLED: Final = f"{FLEET}/controller"
"""There where the box belongs to a fleet."""
OUTBOX: Final = "outbox"
"""What waits to be told to the fleet: a directory for each stream of records."""
MACHINE: Final = "machine-problem"
"""What is wrong with the machine's image, in words: the boot gate writes it, the agent tells it."""
GIVEN: Final = "refused-settings"
"""Why the configuration that the box was given last is not in force, in words: told by the agent as well."""
SCRUB: Final = "scrub.json"
"""What the scrub found: it alone writes it."""
SCRUB_LOCK: Final = "scrub.lock"
OURS: Final = frozenset(
    {
        LOCK,
        CATALOG,
        DAMAGED_CATALOG,
        BLOBS,
        VIEWS,
        INCOMING,
        SERVE,
        FLEET,
        OUTBOX,
        MACHINE,
        GIVEN,
        SCRUB,
        SCRUB_LOCK,
    }
)
"""All that lies in a state directory itself."""

MANIFEST: Final = "MANIFEST.json"
"""A version's manifest in its view. No model has this name: theirs have no capitals."""
SIGNATURE: Final = "SIGNATURE.json"


def blob_path(digest: str) -> str:
    """The blob's file."""
    return f"{BLOBS}/{digest[:2]}/{digest}"


def view_path(manifest_digest: str) -> str:
    """The view of a version: a directory with MANIFEST, perhaps SIGNATURE, and the model's home under its name."""
    return f"{VIEWS}/{manifest_digest}"


def view_root(state: Path, manifest_digest: str) -> Path:
    """Where a reader of model directories finds the version's home, under the model's name."""
    return state / VIEWS / manifest_digest


def form_digest(name: str) -> str:
    """The manifest digest of the version whose form, whole or not, is called ``name``; "" where that is no form."""
    digest, _, _ = name.removeprefix(BUILDING_FORM).rpartition("-")
    return digest if is_digest(digest) else ""
