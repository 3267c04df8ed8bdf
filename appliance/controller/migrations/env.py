"""Run by Alembic: applies the steps over the connection that the caller gives."""

from alembic import context

from appliance.controller.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
