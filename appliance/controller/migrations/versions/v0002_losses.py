"""What boxes could not send, and how much telemetry of each is kept."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the table of losses, and the bytes to each device."""
    op.create_table(
        "losses",
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("stream", sa.String(length=16), nullable=False),
        sa.Column("epoch", sa.String(length=32), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("device", "stream", "epoch", "first"),
    )
    op.add_column(
        "devices", sa.Column("telemetry_bytes", sa.BigInteger(), nullable=False, server_default="0")
    )
    op.execute(
        "UPDATE devices SET telemetry_bytes = coalesce("
        "(SELECT sum(length(record)) FROM telemetry WHERE telemetry.device = devices.name), 0)"
    )
