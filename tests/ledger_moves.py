"""Short ways through the life of a ledger, for tests."""

from collections.abc import Sequence
from typing import Any

from outrider.core.account import Account, Fate
from outrider.core.ledger import (
    LEDGER_KEY,
    Grant,
    GroupEntry,
    GroupMove,
    GroupState,
    Ledger,
    LedgerWrite,
    NewGroup,
)
from outrider.core.rollout import AttemptedRollout, RolloutRequest
from outrider.store import Store
from store_moves import everything, finish

WAY_TO = {
    GroupState.OPENED: (),
    GroupState.COMPLETE: (GroupState.COMPLETE,),
    GroupState.DELIVERED: (GroupState.COMPLETE, GroupState.DELIVERED),
    GroupState.ACKNOWLEDGED: (GroupState.COMPLETE, GroupState.DELIVERED, GroupState.ACKNOWLEDGED),
    GroupState.DROPPED: (GroupState.DROPPED,),
}
"""How a group that was opened comes to each state."""


def seat(group_id: str, n: int, ledger: str = "train", **request: Any) -> RolloutRequest:
    """A member of a group."""
    return RolloutRequest(
        input=n,
        rollout_id=f"{group_id}/{n}",
        group_id=group_id,
        tag="t",
        seed=7,
        metadata={LEDGER_KEY: ledger},
        **request,
    )


def group(number: int, *, ledger: str = "train", n_members: int = 2, tag: str = "t", **request: Any) -> NewGroup:
    """The group of that number, called `g0`, `g1`, … with members `g0/0`, `g0/1`, …"""
    group_id = f"g{number}" if ledger == "train" else f"{ledger}-g{number}"
    members = tuple(seat(group_id, n, ledger, **request) for n in range(n_members))
    return NewGroup(group_id=group_id, number=number, tag=tag, seed=7, size=2, members=members)


def move(group_id: str, state: GroupState) -> GroupMove:
    """A move, with what that state has beside it."""
    beside: dict[GroupState, dict[str, Any]] = {
        GroupState.COMPLETE: {"members": (f"{group_id}/0", f"{group_id}/1")},
        GroupState.DELIVERED: {"batch": 0},
        GroupState.DROPPED: {"reason": "stale: 3 versions old"},
    }
    return GroupMove(group_id=group_id, state=state, **beside.get(state, {}))


def moves_to(group_id: str, state: GroupState) -> tuple[GroupMove, ...]:
    """All moves that bring a group from opened to `state`."""
    return tuple(move(group_id, step) for step in WAY_TO[state])


async def opened(store: Store, *groups: NewGroup, name: str = "train") -> Ledger:
    """A ledger, taken over, in which these groups are opened."""
    ledger = await store.open_ledger(name)
    await store.write_ledger(ledger, LedgerWrite(opened=groups))
    return ledger


async def close_group(store: Store, ledger: Ledger, group_id: str, state: GroupState = GroupState.DROPPED) -> None:
    await store.write_ledger(ledger, LedgerWrite(moved=moves_to(group_id, state)))


async def claim_all(store: Store, limit: int = 100, worker_id: str = "w") -> tuple[AttemptedRollout, ...]:
    return await store.dequeue_many_rollouts(limit, worker_id=worker_id)


async def ask(store: Store, *claimed: AttemptedRollout) -> None:
    await store.ask_to_begin([(one.rollout_id, one.attempt.attempt_id) for one in claimed])


def grant(claimed: AttemptedRollout, version: int = 0) -> Grant:
    assert claimed.group_id is not None
    return Grant(group_id=claimed.group_id, attempt_id=claimed.attempt.attempt_id, version=version)


def took(tokens: int, **more: Any) -> Account:
    return Account(completion_tokens=tokens, **more)


async def entry(store: Store, group_id: str, ledger: str = "train") -> GroupEntry:
    (found,) = [one for one in await store.query_groups(ledger) if one.group_id == group_id]
    return found


def fates(claimed: Sequence[AttemptedRollout], fate: Fate) -> dict[str, Fate]:
    return {one.attempt.attempt_id: fate for one in claimed}


async def all_of_ledgers(store: Store) -> object:
    """All that can be seen of rollouts and ledgers, to show that a call changed nothing."""
    rollouts = [rollout.rollout_id for rollout in await store.query_rollouts()]
    attempts = [one.attempt_id for id in rollouts for one in await store.query_attempts(id)]
    ledgers = await store.query_ledgers()
    seen = [
        (
            (await store.query_groups(ledger.name)).items,
            await store.count_groups(ledger.name),
            await store.asks_after(ledger.name),
            await store.late_accounts(ledger.name),
            await store.tally(ledger.name),
            await store.query_progress(ledger.name),
        )
        for ledger in ledgers
    ]
    accounts = await store.query_accounts(rollouts)
    return ledgers, seen, accounts, await store.grants(attempts), await everything(store)


async def full_write(store: Store) -> tuple[Ledger, LedgerWrite]:
    """A ledger, and a write with something in every field that can be carried out."""
    ledger = await opened(store, group(0), group(1))
    claimed = await claim_all(store)
    await ask(store, *claimed)
    await finish(store, claimed[0], account=took(5))
    return ledger, LedgerWrite(
        opened=(group(2),),
        members=(seat("g1", 2),),
        granted=(grant(claimed[2], 1),),
        moved=(move("g0", GroupState.DROPPED),),
        fates=fates(claimed[:1], Fate.STALE),
        version=1,
    )
