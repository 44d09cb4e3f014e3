"""What a scheduler learns from the store: members that ended, members that ask to begin, members that show no progress.

Each follower runs until it is cancelled, wakes on events, and tries again while the store cannot be reached.
"""

from collections.abc import Callable, Sequence
from functools import partial

from outrider.core.account import AttemptAccount
from outrider.core.clock import Clock
from outrider.core.ledger import LEDGER_KEY, Ask
from outrider.core.rollout import Rollout
from outrider.store import Store
from outrider.store.outage import insist

NET_SECONDS = 60.0
"""How long a waiting call waits before it looks again by itself."""

PAGE = 1000

TakeEnds = Callable[[Sequence[Rollout], Sequence[AttemptAccount]], None]


async def follow_ends(store: Store, clock: Clock, ledger: str, cursor: int, take: TakeEnds) -> None:
    """Rollouts of the ledger in the order they end, with the accounts of all their attempts."""
    while True:
        feed = await insist(store.outage, clock, partial(store.finished_after, cursor, limit=PAGE, wait=NET_SECONDS))
        cursor = feed.cursor
        ended = [rollout for rollout in feed.items if rollout.metadata.get(LEDGER_KEY) == ledger]
        if ended:
            ids = [rollout.rollout_id for rollout in ended]
            take(ended, await insist(store.outage, clock, partial(store.query_accounts, ids)))


async def follow_asks(store: Store, clock: Clock, ledger: str, take: Callable[[Sequence[Ask]], None]) -> None:
    """Members that ask to begin: first those that have asked already."""
    cursor = 0
    while True:
        asks = await insist(
            store.outage, clock, partial(store.asks_after, ledger, cursor, limit=PAGE, wait=NET_SECONDS)
        )
        cursor = asks.cursor
        if asks.items:
            take(asks.items)
