"""Whether each connection to PostgreSQL has a session of its own, as locks need: a pooler may lend one to many."""

from __future__ import annotations

from sqlalchemy import Engine

from muster.errors import ConfigError


def check_sessions(engine: Engine) -> None:
    """Raise ConfigError where two connections share a session. Raises SQLAlchemyError where there is no database."""
    who, alone = "SELECT pg_backend_pid()", engine.execution_options(isolation_level="AUTOCOMMIT")
    with alone.connect() as idle, engine.connect() as busy:
        pids = [idle.exec_driver_sql(who).scalar() for _ in range(3)]  # lent is the session used last, or each in turn
        if len(set(pids)) > 1 or busy.exec_driver_sql(who).scalar() in pids:
            raise ConfigError(
                "orchestrator.database_url leads to a pooler whose connections share sessions, so locks do not hold",
                hint="let it name PostgreSQL itself, or the pooler in session mode (pgbouncer: pool_mode = session)",
            )
