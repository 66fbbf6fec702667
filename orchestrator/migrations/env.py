"""Alembic's entry point. The connection comes from `orchestrator.database.migrate`; there is no offline mode."""

from alembic import context

from orchestrator.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=connection.dialect.name == "sqlite")
with context.begin_transaction():
    context.run_migrations()
