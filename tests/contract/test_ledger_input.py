"""Bad input to a ledger raises `InvalidInput` that says what to give instead, and changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from ledger_moves import all_of_ledgers, full_write, group, move, opened, seat
from outrider.core.errors import InvalidInput, RolloutConflict, UnknownId
from outrider.core.ledger import Grant, GroupMove, GroupState, LedgerWrite
from outrider.core.rollout import RolloutRequest
from outrider.store import Store


def _with(**bad: Any) -> Callable[[LedgerWrite], LedgerWrite]:
    """The write with something bad at the end of one of its fields."""

    def spoil(write: LedgerWrite) -> LedgerWrite:
        return replace(write, **{name: (*getattr(write, name), value) for name, value in bad.items()})

    return spoil


BAD_ITEMS: dict[str, tuple[Callable[[LedgerWrite], LedgerWrite], type[InvalidInput], str]] = {
    "groups out of order": (_with(opened=group(1)), InvalidInput, "order of their numbers"),
    "group twice": (
        _with(opened=replace(group(2), number=3, members=())),
        InvalidInput,
        "group_id 'g2' is given twice",
    ),
    "number that is taken": (
        lambda write: replace(write, opened=(replace(group(1), group_id="new", members=()), *write.opened)),
        InvalidInput,
        "numbers below 2 are taken",
    ),
    "known group of another size": (
        lambda write: replace(write, opened=(replace(group(1), size=9), *write.opened)),
        InvalidInput,
        "'g1' was opened before",
    ),
    "member that is another rollout": (
        _with(members=replace(seat("g1", 0), input="other")),
        RolloutConflict,
        "'g1/0' is already",
    ),
    "member of an unknown group": (_with(members=seat("nobody", 0)), UnknownId, "no group with id 'nobody'"),
    "member without an id": (
        _with(members=RolloutRequest(input=1, group_id="g1")),
        InvalidInput,
        "needs a rollout_id and a group_id",
    ),
    "member without a group": (
        _with(members=RolloutRequest(input=1, rollout_id="x")),
        InvalidInput,
        "needs a rollout_id and a group_id",
    ),
    "member of one group in another": (
        _with(opened=replace(group(3), members=(seat("g1", 7),))),
        InvalidInput,
        "has the group_id 'g1'; give it the group's",
    ),
    "member twice": (_with(members=seat("g1", 2)), InvalidInput, "'g1/2' is given twice"),
    "input that cannot be stored": (_with(members=replace(seat("g1", 8), input={1})), InvalidInput, "cannot be stored"),
    "group of no size": (_with(opened=replace(group(3), size=0)), InvalidInput, "size of a group 0 is too small"),
    "negative number": (_with(opened=replace(group(3), number=-1)), InvalidInput, "number of a group -1 is too small"),
    "grant of no version": (
        _with(granted=Grant(group_id="g1", attempt_id="a", version=-1)),
        InvalidInput,
        "version of a grant -1 is too small",
    ),
    "unknown group moved": (_with(moved=move("nobody", GroupState.DROPPED)), UnknownId, "no group with id 'nobody'"),
    "move not in the table": (_with(moved=move("g1", GroupState.ACKNOWLEDGED)), InvalidInput, "cannot become"),
    "complete without members": (
        _with(moved=GroupMove(group_id="g1", state=GroupState.COMPLETE)),
        InvalidInput,
        "give its members",
    ),
    "dropped without a reason": (
        _with(moved=GroupMove(group_id="g1", state=GroupState.DROPPED)),
        InvalidInput,
        "give its reason",
    ),
    "delivered without a batch": (
        _with(moved=GroupMove(group_id="g1", state=GroupState.DELIVERED)),
        InvalidInput,
        "give its batch",
    ),
    "no state": (_with(moved=GroupMove(group_id="g1", state="lost")), InvalidInput, "'lost'; give one of"),  # type: ignore[arg-type]
    "no fate": (lambda write: replace(write, fates={"a": "lost"}), InvalidInput, "unknown fate 'lost'"),  # type: ignore[dict-item]
    "negative version": (lambda write: replace(write, version=-1), InvalidInput, "version -1 is too small"),
    "something else": (_with(granted="g1"), InvalidInput, "must be a Grant, not str"),
}


@pytest.mark.parametrize("bad", list(BAD_ITEMS))
async def test_one_bad_item_leaves_nothing_of_the_write(store: Store, bad: str):
    spoil, error, match = BAD_ITEMS[bad]
    ledger, write = await full_write(store)
    before = await all_of_ledgers(store)
    with pytest.raises(error, match=match):
        await store.write_ledger(ledger, spoil(write))
    assert await all_of_ledgers(store) == before
    await store.write_ledger(ledger, write)


async def test_a_ledger_that_was_never_opened_is_unknown(store: Store):
    ledger = await opened(store)
    with pytest.raises(UnknownId, match="no ledger with id 'nobody'"):
        await store.write_ledger(replace(ledger, name="nobody"), LedgerWrite(opened=(group(0),)))
    assert (await store.query_rollouts()).items == ()
    with pytest.raises(InvalidInput, match="must be a Ledger, not str"):
        await store.write_ledger("train", LedgerWrite())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="must be a LedgerWrite, not dict"):
        await store.write_ledger(ledger, {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda store: store.open_ledger(""), "name of a ledger must have 1 to 512 bytes"),
        (lambda store: store.open_ledger("x", [1]), "settings must be a Mapping, not list"),
        (lambda store: store.open_ledger("x", {"a": {1}}), "cannot be stored"),
        (lambda store: store.query_groups(5), "ledger must be text"),
        (lambda store: store.query_groups("train", states=["lost"]), "'lost'; give one of"),
        (lambda store: store.query_groups("train", states="opened"), "give a list of states"),
        (lambda store: store.query_groups("train", limit=-2), "limit"),
        (lambda store: store.query_groups("train", batch=-1), "batch -1 is too small"),
        (lambda store: store.count_groups(""), "ledger must have 1 to 512 bytes"),
    ],
)
async def test_bad_input_is_refused_with_what_to_give_instead(store: Store, call, match: str):
    before = await all_of_ledgers(store)
    with pytest.raises(InvalidInput, match=match):
        await call(store)
    assert await all_of_ledgers(store) == before
