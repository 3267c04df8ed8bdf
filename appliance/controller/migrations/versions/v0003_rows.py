"""What is kept of a device counts with its rows: records without contents filled the disk and counted for nothing."""

from alembic import op

revision = "0003"
down_revision = "0002"

ROW_BYTES = 160


def upgrade() -> None:
    """Count anew."""
    op.execute(
        "UPDATE devices SET telemetry_bytes = "
        f"coalesce((SELECT sum({ROW_BYTES} + length(record)) FROM telemetry WHERE device = devices.name), 0) + "
        f"coalesce((SELECT sum({ROW_BYTES} + length(reason)) FROM losses WHERE device = devices.name), 0) + "
        f"{ROW_BYTES} * (SELECT count(*) FROM outboxes WHERE device = devices.name)"
    )
