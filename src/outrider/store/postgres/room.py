"""Whether the server has connections for so many processes, before they are started."""

from dataclasses import dataclass

from outrider.core.errors import InvalidInput
from outrider.store.postgres.address import address_of, explained
from outrider.store.postgres.connections import let_go
from outrider.store.postgres.driver import LOST, asyncpg
from outrider.store.postgres.queries import SQL
from outrider.store.url import StoreUrl


@dataclass(frozen=True, slots=True)
class Room:
    """What limits connections most: its name, and how many there are, are kept back, and are in use."""

    what: str
    allowed: int
    reserved: int
    used: int

    @property
    def free(self) -> int:
        return self.allowed - self.reserved - self.used

    def __str__(self) -> str:
        kept = f"{self.reserved} of them reserved, " if self.reserved else ""
        return f"{self.what} is {self.allowed}, {kept}{self.used} in use"


async def url_with_room(
    url: StoreUrl, n_workers: int, *, n_pools: int = 0, n_machines: int = 1
) -> tuple[StoreUrl, str]:
    """The URL that so many processes shall open, and a note for the user if they must do with fewer connections.

    `n_pools`: processes beside the workers, each with a pool of machines. Raises `InvalidInput` if the server does not
    have a connection for each process.
    """
    address = address_of(url)
    room = await _room_at(url)
    # One process of each machine listens; the one that asks here has its first connection already.
    n_processes = n_workers + n_pools
    least = n_processes + n_machines
    most = least + (n_processes + 1) * (address.n_connections - 1)
    if most <= room.free:
        return url, ""
    if least > room.free:
        fit = room.free - n_machines - n_pools
        fewer = f"start {fit}, or " if fit > 0 else ""
        raise InvalidInput(
            f"{_counted(n_workers, n_pools)} need {least} connections, and {address.shown} has {max(room.free, 0)} to "
            f"spare ({room}): {fewer}raise it to {room.allowed + least - room.free} or more"
        )
    note = (
        f"the server has {room.free} connections to spare ({room}): each of the {_counted(n_workers, n_pools)} takes "
        f"one instead of {address.n_connections}; {room.allowed + most - room.free} would be enough for all"
    )
    return url.with_option("connections", "1"), note


def _counted(n_workers: int, n_pools: int) -> str:
    return f"{n_workers} worker processes" + (f" and {n_pools} with a pool of machines" if n_pools else "")


async def _room_at(url: StoreUrl) -> Room:
    address = address_of(url)
    try:
        link = await address.connect()
        try:
            found = [Room(*row) for row in await link.fetch(SQL["connections"])]
        finally:
            await let_go(link)
    except (*LOST, asyncpg.PostgresError) as exc:
        raise explained(exc, address.shown) from exc
    return min(found, key=lambda room: room.free)
