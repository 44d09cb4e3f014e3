"""Receipts: how to learn whether a transaction was committed when the reply to its commit is lost.

Every connection has a row of its own, and every transaction on it writes its number there. Whether that number stands
tells whether the transaction was committed, through any crash; the server's own numbers of transactions can be given
again after one.
"""

from dataclasses import dataclass
from itertools import count
from weakref import WeakKeyDictionary

from outrider.core.ids import new_id
from outrider.store.postgres.driver import Link, asyncpg
from outrider.store.postgres.queries import SQL


@dataclass(frozen=True, slots=True)
class Receipt:
    """One transaction of one connection."""

    receipt_id: str
    number: int


class Receipts:
    """The receipts of one process's connections."""

    def __init__(self) -> None:
        self._ids: WeakKeyDictionary[Link, str] = WeakKeyDictionary()
        self._numbers = count(1)

    async def open(self, link: Link) -> None:
        """Give the connection its row, before its first transaction begins."""
        if link not in self._ids:
            receipt_id = new_id("rc")
            await link.execute(SQL["open_receipt"], receipt_id)
            self._ids[link] = receipt_id

    def next(self, link: Link) -> Receipt:
        """The receipt of what the connection does next."""
        return Receipt(self._ids[link], next(self._numbers))

    async def write(self, link: Link) -> Receipt:
        """Number the transaction under way, as its last statement."""
        receipt = self.next(link)
        if await link.fetchval(SQL["write_receipt"], receipt.receipt_id, receipt.number) is None:
            raise self.lost(link)
        return receipt

    def lost(self, link: Link) -> Exception:
        """The connection's row was cleared away: it gets another one, and what was not numbered is tried again."""
        del self._ids[link]
        return asyncpg.TransactionRollbackError("the receipt of a connection that was idle for long is gone")

    @staticmethod
    async def stands(link: Link, receipt: Receipt) -> bool:
        """Whether the transaction was committed; raises what may pass while it is still under way elsewhere."""
        try:
            number = await link.fetchval(SQL["receipt"], receipt.receipt_id)
        except asyncpg.LockNotAvailableError as exc:
            raise asyncpg.TransactionRollbackError("a lost connection has not ended its transaction yet") from exc
        return bool(number == receipt.number)
