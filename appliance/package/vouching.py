"""Who vouches for a version that is installed, by the keys that are trusted now: what was right when it came may not
be so any more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from appliance.domain.errors import ArtefactError
from appliance.domain.manifest_codec import MANIFEST_BYTES_MAX
from appliance.domain.regular_file import read_file
from appliance.package.container import SIGNATURE_BYTES_MAX
from appliance.package.keys import PublicKey
from appliance.package.trust import judge
from appliance.store.catalog import InstalledVersion
from appliance.store.layout import MANIFEST, SIGNATURE, view_root

WITHDRAWN: Final = "withdrawn "
"""What the word about a version begins with whose signing key is not trusted any more."""
_KEY: Final = "key "


def trust_now(state: Path, version: InstalledVersion, keys: Sequence[PublicKey]) -> str:
    """The word about a version in the store ``state`` where ``keys`` are trusted: as the catalog has it, that of
    another trusted key which signed it as well, or "withdrawn KEYID"."""
    if not version.trust.startswith(_KEY) or version.trust.removeprefix(_KEY) in {key.keyid for key in keys}:
        return version.trust
    root, digests = view_root(state, version.digest), {file.path: file.digest for file in version.files}
    try:
        manifest = read_file(str(root / MANIFEST), MANIFEST_BYTES_MAX, version.digest)
        signatures = read_file(str(root / SIGNATURE), SIGNATURE_BYTES_MAX, digests.get(SIGNATURE, ""))
        found = judge(manifest, signatures, keys)
    except ArtefactError:
        found = None
    return found.word if found and found.keyids else WITHDRAWN + version.trust.removeprefix(_KEY)


def check_vouched(state: Path, version: InstalledVersion, keys: Sequence[PublicKey]) -> str:
    """The word about a version; raises ArtefactError unless it is that of a trusted key."""
    word = trust_now(state, version, keys)
    if not word.startswith(_KEY):
        raise ArtefactError(
            f"is signed by no key that is trusted now ({word}); install a version that is, or set packages.unsigned to "
            "'refuse', which keeps such versions from being installed and lets installed ones be served"
        )
    return word
