"""`open_store(url)`: the one door to all engines."""

import asyncio
import os
import random
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from outrider.core.clock import Clock, SystemClock
from outrider.core.errors import InvalidInput, StoreUnavailable
from outrider.core.ids import new_id
from outrider.store.durability import Durability, refuse_others, take_durability
from outrider.store.leased import LeasedStore
from outrider.store.protocol import Store
from outrider.store.url import StoreUrl

HISTORY_VARIABLE = "OUTRIDER_HISTORY"
"""Names the folder in which every call on a store is recorded; see `outrider.store.history`."""

AGAIN_SECONDS = 2.0
"""The pause before a store is opened again, about: many processes may wait for the same one."""

SCHEMES = "memory://, sqlite:///FILE, postgresql://USER@HOST/DATABASE"


class OpenStore:
    """A store about to be opened: `await` it and close it yourself, or use it as `async with`."""

    def __init__(self, store: LeasedStore, *, read_only: bool) -> None:
        self._store = store
        self._opened: Store = store
        self._read_only = read_only

    def __await__(self) -> Generator[Any, None, Store]:
        return self._open().__await__()

    async def __aenter__(self) -> Store:
        return await self._open()

    async def __aexit__(self, *exc_info: object) -> None:
        await self._opened.close()

    async def _open(self) -> Store:
        store: Store = await self._store.open(read_only=self._read_only)
        if not (folder := os.environ.get(HISTORY_VARIABLE)):
            return store
        from outrider.store.history import FileRecorder, name_of, recorded

        # Two stores in memory are never the same one.
        self._opened = recorded(store, FileRecorder(Path(folder)), name=name_of(store) or new_id("memory"))
        return self._opened


def open_store(
    url: str | StoreUrl, *, clock: Clock | None = None, create: bool = True, read_only: bool = False
) -> OpenStore:
    """Open the store at `url`: `memory://`, `sqlite:///runs.db`, `postgresql://…`.

    With `?durability=full` in it, what is acknowledged also survives the loss of power; see `Durability`.
    With `create=False` a store that does not exist, as a file or as tables, is an error instead of a new one. With
    `read_only=True` the same holds, calls that write are refused and expired leases stay where they are; a SQLite file
    and its folder need not be writable then.
    """
    given = url if isinstance(url, StoreUrl) else StoreUrl(url)
    return OpenStore(_engine(given, clock or SystemClock(), create=create), read_only=read_only)


async def open_when_there(url: str | StoreUrl, say: Callable[[str], None]) -> Store:
    """The store at `url`, as soon as it can be had: its server may be away, or have no connection to spare.

    `say` is told once what is waited for. What waiting does not mend is raised.
    """
    is_said = False
    while True:
        try:
            return await open_store(url, create=False)
        except StoreUnavailable as exc:
            if not is_said:
                say(f"waits for the store: {exc}")
            is_said = True
            await asyncio.sleep(AGAIN_SECONDS * random.uniform(0.5, 1.5))


def _engine(url: StoreUrl, clock: Clock, *, create: bool) -> LeasedStore:
    # Engines are imported where they are chosen: PostgreSQL's client is an extra, and start-up stays fast.
    try:
        parts = urlsplit(url.reveal())
    except ValueError:  # its message may quote the password
        raise InvalidInput(f"{url.shown!r} is not a store URL; give one of {SCHEMES}") from None
    if parts.scheme == "memory" and parts.query:
        raise InvalidInput(f"{url.shown!r}: a memory:// store has no options; it ends with its process")
    if parts.scheme == "memory":
        from outrider.store.memory.store import MemoryStore

        return MemoryStore(url, clock)
    if parts.scheme == "sqlite":
        from outrider.store.sqlite.store import SqliteStore

        path, durability = sqlite_place(url.shown)
        return SqliteStore(url, path, clock=clock, durability=durability, create=create)
    if parts.scheme in ("postgresql", "postgres"):
        from outrider.store.postgres.store import PostgresStore

        return PostgresStore(url, clock, create=create)
    raise InvalidInput(f"{url.shown!r} is not a store URL; give one of {SCHEMES}")


def sqlite_place(url: str) -> tuple[Path, Durability]:
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    durability = take_durability(options, url)
    refuse_others(options, url)
    if "#" in url or "\0" in url or parts.path == "/:memory:":
        raise InvalidInput(f"{url!r}: the file of a store has a plain name; for a store in memory give memory://")
    if not url.partition(":")[2].startswith("///") or parts.path.strip("/") == "":
        raise InvalidInput(
            f"{url!r}: write sqlite:///runs.db for a file here, sqlite:////data/runs.db for an absolute path"
        )
    return Path(parts.path[1:]), durability
