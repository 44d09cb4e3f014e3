"""The PostgreSQL client, an optional library: whoever imports the engine without it is told what to install."""

from typing import TypeAlias

from outrider.core.errors import InvalidInput
from outrider.core.extras import install_command

try:
    import asyncpg
except ImportError as exc:
    raise InvalidInput(f"a PostgreSQL store needs the client library: {install_command('postgres')}") from exc

Link: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
"""One connection to the database."""

LOST = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.TransactionRollbackError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InvalidCachedStatementError,
)
"""What may go away by itself, on another connection: the server restarts, the network fails, two steps collide."""

__all__ = ["LOST", "Link", "asyncpg"]
