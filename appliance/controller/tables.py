"""The controller's database, as SQLAlchemy knows it. ``migrations`` brings a database to this form; a test compares."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
)

METADATA: Final = MetaData()

state = Table(
    "state",
    METADATA,
    Column("key", String(32), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
"""Numbers of the whole fleet: ``revision`` grows with each change of what is wanted."""

roots = Table(
    "roots",
    METADATA,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
)

devices = Table(
    "devices",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("in_group", String(64), nullable=False, default="", index=True),
    Column("state", String(16), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("seen_ms", BigInteger, nullable=False, default=0),
    Column("inventory", Text, nullable=False),
    Column("revision", BigInteger, nullable=False, default=0),
    Column("timestamp_version", BigInteger, nullable=False, default=0),
    Column("snapshot_version", BigInteger, nullable=False, default=0),
    Column("generation", BigInteger, nullable=False, default=0),
    Column("told_timestamp", BigInteger, nullable=False, default=0),
    Column("told_snapshot", BigInteger, nullable=False, default=0),
    Column("told_generation", BigInteger, nullable=False, default=0),
    Column("timestamp", LargeBinary, nullable=False, default=b""),
    Column("snapshot", LargeBinary, nullable=False, default=b""),
    Column("targets", LargeBinary, nullable=False, default=b""),
    Column("document", LargeBinary, nullable=False, default=b""),
    Column("report", LargeBinary, nullable=False, default=b""),
    Column("report_digest", String(64), nullable=False, default=""),
    Column("telemetry_bytes", BigInteger, nullable=False, default=0, server_default="0"),
    Column("clock_ahead_ms", BigInteger, nullable=False, default=0, server_default="0"),
)
"""``revision`` is that of what is wanted when the document was made; what the device ``told`` are the versions that it
trusts; ``telemetry_bytes`` what its records, their rows, what was added up of them and its losses take;
``clock_ahead_ms`` how far its clock was ahead of the controller's when its last report came."""

certificates = Table(
    "certificates",
    METADATA,
    Column("serial", String(48), primary_key=True),
    Column("device", String(64), nullable=False, index=True),
    Column("key", String(64), nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("revoked", Boolean, nullable=False, default=False),
)
"""``key`` is the digest of the public key: a box that asks again after its answer was lost is known by it."""

tokens = Table(
    "tokens",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("role", String(16), nullable=False, default=""),
    Column("device", String(64), nullable=False, default=""),
    Column("in_group", String(64), nullable=False, default=""),
    Column("made_by", String(128), nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("used_by", String(64), nullable=False, default=""),
    Column("revoked", Boolean, nullable=False, default=False),
)

releases = Table(
    "releases",
    METADATA,
    Column("model", String(64), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("manifest", String(64), nullable=False),
    Column("package", String(64), nullable=False),
    Column("total_bytes", BigInteger, nullable=False),
    Column("trust", String(256), nullable=False),
    Column("by_whom", String(128), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("model", "version"),
)
"""``package`` is empty where the release was withdrawn: its number goes on meaning that manifest and no other."""

transfers = Table(
    "transfers",
    METADATA,
    Column("model", String(64), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("base", String(64), nullable=False),
    Column("stream", String(64), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("index_digest", String(64), nullable=False),
    PrimaryKeyConstraint("model", "version", "base"),
)

wishes = Table(
    "wishes",
    METADATA,
    Column("scope", String(80), nullable=False),
    Column("model", String(64), nullable=False),
    Column("wish", Text, nullable=False),
    Column("by_whom", String(128), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("scope", "model"),
)
"""``scope`` is ``group/NAME`` or ``device/NAME``; ``wish`` is a ``schemas.Wish`` as JSON."""

rollouts = Table(
    "rollouts",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("model", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("rollout", Text, nullable=False),
    Column("before", Text, nullable=False),
)
"""``rollout`` is a ``fleet.rollout.Rollout`` as JSON, and ``model`` and ``state`` are its; ``before`` is what was
wished in its groups, by name: each a ``schemas.Wish`` or null."""

rollout_devices = Table(
    "rollout_devices",
    METADATA,
    Column("rollout", Integer, nullable=False),
    Column("device", String(64), nullable=False),
    Column("seen_ms", BigInteger, nullable=False),
    Column("told", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("since_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("rollout", "device"),
)
"""Devices of a rollout that is not over, as they were when they were looked at first after the wish, and ``since_ms``
when they say that they serve the version (0: they do not)."""

settings = Table(
    "settings",
    METADATA,
    Column("scope", String(80), nullable=False),
    Column("name", String(64), nullable=False),
    Column("value", Text, nullable=False),
    PrimaryKeyConstraint("scope", "name"),
)

outboxes = Table(
    "outboxes",
    METADATA,
    Column("device", String(64), nullable=False),
    Column("stream", String(16), nullable=False),
    Column("epoch", String(32), nullable=False),
    Column("next", BigInteger, nullable=False),
    PrimaryKeyConstraint("device", "stream", "epoch"),
)

telemetry = Table(
    "telemetry",
    METADATA,
    Column("device", String(64), nullable=False),
    Column("stream", String(16), nullable=False),
    Column("epoch", String(32), nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("record", LargeBinary, nullable=False),
    PrimaryKeyConstraint("device", "stream", "epoch", "number"),
    Index("telemetry_by_time", "device", "at_ms"),
)
"""``at_ms`` is when it came, by the controller's clock."""

deeds = Table(
    "deeds",
    METADATA,
    Column("device", String(64), nullable=False),
    Column("model", String(64), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("deeds", LargeBinary, nullable=False),
    PrimaryKeyConstraint("device", "model", "at_ms", "version"),
)
"""What versions did in the six hours that begin ``at_ms``: ``fleet.deeds.Deeds``, added up as telemetry comes."""

loads = Table(
    "loads",
    METADATA,
    Column("device", String(64), nullable=False),
    Column("model", String(64), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("loaded", LargeBinary, nullable=False, default=b"", server_default=""),
    Column("ending", LargeBinary, nullable=False, default=b"", server_default=""),
    PrimaryKeyConstraint("device", "model", "version"),
)
"""The last ``loaded`` and ``model`` record of each version on a device that says something of it; either may be empty.
``at_ms`` is when the last one came."""

losses = Table(
    "losses",
    METADATA,
    Column("device", String(64), nullable=False),
    Column("stream", String(16), nullable=False),
    Column("epoch", String(32), nullable=False),
    Column("first", BigInteger, nullable=False),
    Column("last", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("device", "stream", "epoch", "first"),
)
"""Numbers of records that will not come."""

audit = Table(
    "audit",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("who", String(128), nullable=False),
    Column("what", String(64), nullable=False),
    Column("detail", Text, nullable=False),
    Column("digest", String(64), nullable=False),
)
"""``digest`` is over the line and the digest of the one before."""
