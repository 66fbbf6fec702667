"""Alembic migrations, applied when the service starts. `orchestrator.database.migrate` runs them."""
