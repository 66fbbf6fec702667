"""Whether each connection to PostgreSQL has a session of its own.

A pooler in transaction mode lends sessions, for one transaction each: two orchestrators would both hold the lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from muster.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy import Engine

_WHO: Final = "SELECT pg_backend_pid()"


def check_sessions(engine: Engine) -> None:
    """Raise ConfigError where two connections share a session. Raises SQLAlchemyError where there is no database."""
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as idle, engine.connect() as busy:
        # The pooler lends what is free: the session that was used last, or each in its turn.
        pids = [idle.exec_driver_sql(_WHO).scalar() for _ in range(3)]
        if len(set(pids)) > 1 or busy.exec_driver_sql(_WHO).scalar() in pids:
            raise ConfigError(
                "orchestrator.database_url leads to a pooler whose connections share sessions, so locks do not hold",
                hint="let it name PostgreSQL itself, or the pooler in session mode (pgbouncer: pool_mode = session)",
            )
