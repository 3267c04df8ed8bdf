"""The first form of the database."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make all tables."""
    _audit()
    _certificates()
    _devices()
    _outboxes()
    _releases()
    _roots()
    _settings()
    _state()
    _telemetry()
    _tokens()
    _transfers()
    _wishes()


def _audit() -> None:
    op.create_table(
        "audit",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("who", sa.String(length=128), nullable=False),
        sa.Column("what", sa.String(length=64), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("number"),
    )


def _certificates() -> None:
    op.create_table(
        "certificates",
        sa.Column("serial", sa.String(length=48), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.Column("revoked", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("serial"),
    )
    op.create_index(op.f("ix_certificates_device"), "certificates", ["device"], unique=False)


def _devices() -> None:
    op.create_table(
        "devices",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("in_group", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("seen_ms", sa.BigInteger(), nullable=False),
        sa.Column("inventory", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("timestamp_version", sa.BigInteger(), nullable=False),
        sa.Column("snapshot_version", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("told_timestamp", sa.BigInteger(), nullable=False),
        sa.Column("told_snapshot", sa.BigInteger(), nullable=False),
        sa.Column("told_generation", sa.BigInteger(), nullable=False),
        sa.Column("timestamp", sa.LargeBinary(), nullable=False),
        sa.Column("snapshot", sa.LargeBinary(), nullable=False),
        sa.Column("targets", sa.LargeBinary(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("report", sa.LargeBinary(), nullable=False),
        sa.Column("report_digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def _outboxes() -> None:
    op.create_table(
        "outboxes",
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("stream", sa.String(length=16), nullable=False),
        sa.Column("epoch", sa.String(length=32), nullable=False),
        sa.Column("next", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("device", "stream", "epoch"),
    )


def _releases() -> None:
    op.create_table(
        "releases",
        sa.Column("model", sa.String(length=64), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("manifest", sa.String(length=64), nullable=False),
        sa.Column("package", sa.String(length=64), nullable=False),
        sa.Column("total_bytes", sa.BigInteger(), nullable=False),
        sa.Column("trust", sa.String(length=256), nullable=False),
        sa.Column("by_whom", sa.String(length=128), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("model", "version"),
    )


def _roots() -> None:
    op.create_table(
        "roots",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("version"),
    )


def _settings() -> None:
    op.create_table(
        "settings",
        sa.Column("scope", sa.String(length=80), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "name"),
    )


def _state() -> None:
    op.create_table(
        "state",
        sa.Column("key", sa.String(length=32), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )


def _telemetry() -> None:
    op.create_table(
        "telemetry",
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("stream", sa.String(length=16), nullable=False),
        sa.Column("epoch", sa.String(length=32), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("device", "stream", "epoch", "number"),
    )
    op.create_index("telemetry_by_time", "telemetry", ["device", "at_ms"], unique=False)


def _tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("in_group", sa.String(length=64), nullable=False),
        sa.Column("made_by", sa.String(length=128), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.Column("used_by", sa.String(length=64), nullable=False),
        sa.Column("revoked", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def _transfers() -> None:
    op.create_table(
        "transfers",
        sa.Column("model", sa.String(length=64), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("base", sa.String(length=64), nullable=False),
        sa.Column("stream", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("index_digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("model", "version", "base"),
    )


def _wishes() -> None:
    op.create_table(
        "wishes",
        sa.Column("scope", sa.String(length=80), nullable=False),
        sa.Column("model", sa.String(length=64), nullable=False),
        sa.Column("wish", sa.Text(), nullable=False),
        sa.Column("by_whom", sa.String(length=128), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "model"),
    )
