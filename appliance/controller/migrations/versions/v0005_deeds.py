"""What versions did, added up by six hours, and how they were loaded: the records alone are too many to be read for a
question about all boxes. What came before stays in the records and is not added up."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the tables, and how far ahead clocks are."""
    op.create_table(
        "deeds",
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=64), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("deeds", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("device", "model", "at_ms", "version"),
    )
    op.create_table(
        "loads",
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=64), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("loaded", sa.LargeBinary(), nullable=False, server_default=""),
        sa.Column("ending", sa.LargeBinary(), nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("device", "model", "version"),
    )
    op.add_column("devices", sa.Column("clock_ahead_ms", sa.BigInteger(), nullable=False, server_default="0"))
