"""Making the tables of a PostgreSQL store, and bringing them up to date.

Invariants:
- All migrations of one opening are one transaction, under a lock: several processes that open a new store at once make
  it once, and a failure leaves nothing behind.
- A schema that a newer Outrider made is refused before anything is changed; one that is up to date is only looked at.
"""

from outrider.core.errors import InvalidInput, SchemaMismatch
from outrider.store.postgres.address import Address
from outrider.store.postgres.driver import Link, asyncpg
from outrider.store.postgres.queries import SQL
from outrider.store.sql import migrations
from outrider.store.upgrading import announced

UPGRADE_SECONDS = 900.0
"""How long a migration of a large store may take, or the wait for another process that carries it out."""


async def migrate(link: Link, address: Address, *, create: bool) -> None:
    """Give the store at `address` the schema this version knows; with `create`, also where there is no store yet."""
    known = len(migrations("postgres"))
    if (version := await _version(link, address)) == known:
        return
    if version == 0 and not create:
        raise InvalidInput(
            f"there is no store in {address.shown}; make one with `outrider enqueue --store {address.shown} …`"
        )
    try:
        with announced(address.shown, version, known):
            async with link.transaction():
                await link.execute(SQL["migration_lock"], address.channel, timeout=UPGRADE_SECONDS)
                await _bring_up_to_date(link, address)
    except asyncpg.DuplicateTableError as exc:
        raise InvalidInput(
            f"{address.shown}: schema {address.schema} holds tables of another program ({exc}); "
            "give the store a schema of its own with ?schema="
        ) from exc


async def _bring_up_to_date(link: Link, address: Address) -> None:
    steps = migrations("postgres")
    if not await link.fetchval("SELECT to_regnamespace($1) IS NOT NULL", address.schema):
        await link.execute(f'CREATE SCHEMA "{address.schema}"')
    version = await _version(link, address)
    if version == 0:
        await link.execute("CREATE TABLE schema_version (version integer NOT NULL)")
        await link.execute("INSERT INTO schema_version VALUES (0)")
    for step in steps[version:]:
        await link.execute(step, timeout=UPGRADE_SECONDS)
    await link.execute(f"UPDATE schema_version SET version = {len(steps)}")


async def _version(link: Link, address: Address) -> int:
    if not await link.fetchval(SQL["has_schema"]):
        return 0
    version = int(await link.fetchval(SQL["schema_version"]))
    known = len(migrations("postgres"))
    if version > known:
        raise SchemaMismatch(address.shown, version, known)
    return version
