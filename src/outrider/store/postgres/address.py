"""Where a PostgreSQL store lies: the URL taken apart, connections to it, and its errors in words, without passwords."""

import hashlib
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from outrider.core.errors import InvalidInput, OutriderError, StoreUnavailable
from outrider.core.secret import Secret
from outrider.core.variables import variable
from outrider.store.durability import OPTION, Durability, take_durability
from outrider.store.postgres.driver import LOST, Link, asyncpg
from outrider.store.url import StoreUrl

CONNECT_SECONDS = 10.0
COMMAND_SECONDS = 60.0
DEFAULT_SCHEMA = "outrider"
MAX_CONNECTIONS = 2

Plans: TypeAlias = dict[str, str]
"""Planner settings, beside those that every connection has."""

STEP_PLANS: Plans = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
}
"""Steps touch few rows by an index, always; a plan chosen by the statistics of an empty table would not stay good."""

READ_PLANS: Plans = {}

_PLACE = ("host", "port", "dbname", "database")
_PLACE_VARIABLES = ("PGHOST", "PGPORT", "PGDATABASE")
"""What says which database is meant, in the parameters of a URL and in the environment."""

_CAREFUL = {
    "fsync": ("on", "without it nothing is flushed to disk"),
    "full_page_writes": ("on", "without it a page that was half written when the power went is lost"),
    "data_sync_retry": ("off", "a flush that succeeds after one that failed may have left out what the first lost"),
}
"""What a server must be set to so that no acknowledged commit is lost, and why."""

_LOGIN_ADVICE = "check user and password (in the URL by --store or OUTRIDER_STORE, in PGPASSWORD or ~/.pgpass)"


@dataclass(frozen=True, slots=True)
class Address:
    """`shown` is the URL as it may stand in a message."""

    dsn: Secret
    schema: str
    shown: str
    durability: Durability
    n_connections: int = MAX_CONNECTIONS
    """How many a process takes at the most, beside the one on which one process of each machine listens."""

    @property
    def channel(self) -> str:
        """Where rings are sent."""
        return f"outrider.{self.schema}"

    @property
    def folder_on_this_machine(self) -> Path:
        """Where the processes of this machine that use this store find one another, whoever they log in as."""
        parts = urlsplit(self.dsn.reveal())
        place = [parts.netloc.rpartition("@")[2], parts.path, self.schema]
        place += [f"{name}={value}" for name, value in parse_qsl(parts.query) if name in _PLACE]
        place += [f"{name}={os.environ.get(name, '')}" for name in _PLACE_VARIABLES]
        digest = hashlib.sha256("\0".join(place).encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"outrider-bells-{os.geteuid()}" / digest

    @property
    def _password(self) -> str | None:
        """Of PGPASSWORD, where the URL has none of its own."""
        parts = urlsplit(self.dsn.reveal())
        has_own = parts.password is not None or "password" in dict(parse_qsl(parts.query))
        return None if has_own else variable("PGPASSWORD")

    async def connect(self) -> Link:
        """A connection that sees the tables of the store; raises what the client library raises."""
        link = await asyncpg.connect(
            self.dsn.reveal(),
            password=self._password,
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            server_settings={
                "search_path": f'"{self.schema}"',
                "application_name": self.channel,
                "default_transaction_isolation": "read committed",
                "idle_in_transaction_session_timeout": f"{COMMAND_SECONDS:g}s",
                "jit": "off",
                **({"synchronous_commit": "on"} if self.durability is Durability.FULL else {}),
            },
        )
        if self.durability is Durability.FULL:
            try:
                await self._refuse_careless(link)
            except BaseException:
                link.terminate()
                raise
        return link

    async def _refuse_careless(self, link: Link) -> None:
        """Refuse a server that would lose commits with the power, or to a failing disk, whatever it is asked."""
        for setting, (value, why) in _CAREFUL.items():
            if await link.fetchval(f"SHOW {setting}") != value:
                raise InvalidInput(
                    f"{self.shown}: durability=full needs a server with {setting}={value}: {why}; set it there, or "
                    "leave durability=full out"
                )


def address_of(url: StoreUrl) -> Address:
    """Take `?schema=`, `?connections=` and `?durability=` out of a URL and leave the rest to the client library."""
    shown = url.shown
    parts = urlsplit(url.reveal())
    options = parse_qsl(parts.query, keep_blank_values=True)
    ours = {"schema": DEFAULT_SCHEMA, "connections": str(MAX_CONNECTIONS)}
    ours |= {name: value for name, value in options if name in ours}
    schema, n_connections = ours["schema"], ours["connections"]
    if n_connections not in map(str, range(1, MAX_CONNECTIONS + 1)):
        raise InvalidInput(f"{shown}: a process takes 1 or {MAX_CONNECTIONS} connections; give ?connections=1 or none")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,49}", schema) or schema.startswith("pg_"):
        raise InvalidInput(f"{shown}: give ?schema= a plain name: small letters, digits and _, at most 50, not pg_…")
    own = {name: value for name, value in options if name == OPTION}
    rest = urlencode([(name, value) for name, value in options if name not in {*ours, OPTION}])
    dsn = Secret(urlunsplit(parts._replace(query=rest)))
    return Address(dsn, schema, shown, take_durability(own, shown), int(n_connections))


_SCARCE = {
    "53100": "its disk is full: make room on it",
    "53200": "it is out of memory: give the server more, or run less beside it",
    "53300": "it has no connection to spare: raise its max_connections, or open the store in fewer processes",
    "58030": "it cannot read or write its files: check its disk and its log",
}
"""What to do when the server lacks something, by SQLSTATE. Workers try again until it is there."""


def explained(error: Exception, shown: str) -> OutriderError:
    """An error of the client library or the server, as one of ours: what, and what to do."""
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate in _SCARCE:
        advice = f"{_SCARCE[error.sqlstate]}; nothing was changed, and the store goes on by itself"
        return StoreUnavailable(f"{shown} refused: {error.message}; {advice}")
    if isinstance(error, asyncpg.PostgresError) and not isinstance(error, LOST):
        return _refusal(error, shown)
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"{shown} did not answer in time; check that the server runs and is not overloaded")
    if isinstance(error, LOST) and not isinstance(error, ValueError):
        return StoreUnavailable(f"cannot reach {shown}: {error}; check host and port, and that the server runs")
    # What the client library says of a URL it cannot read may quote the password.
    return InvalidInput(f"{shown} is not a usable PostgreSQL URL; write postgresql://USER:PASSWORD@HOST:PORT/DATABASE")


def _refusal(error: asyncpg.PostgresError, shown: str) -> OutriderError:
    advice = {
        asyncpg.InvalidAuthorizationSpecificationError: _LOGIN_ADVICE,
        asyncpg.InvalidCatalogNameError: "make it with `createdb`, or give another database",
        asyncpg.InsufficientPrivilegeError: "the user needs the right to create a schema and to write in it",
        asyncpg.DataError: "the database cannot keep this value",
    }
    for kind, what_to_do in advice.items():
        if isinstance(error, kind):
            return InvalidInput(f"{shown} refused: {error}; {what_to_do}")
    return StoreUnavailable(f"{shown} refused: {error}; nothing was changed (is its disk full, is it read-only?)")
