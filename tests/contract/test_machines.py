"""The journal of machines: one owner, whole writes, each once, moves along the table."""

import asyncio
import itertools
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec.structs import replace

from machine_journal import STEPS_TO, Owner, all_of_machines, machine, moved, owner_of
from outrider.core.clock import utc
from outrider.core.errors import InvalidInput, PoolLost, UnknownId
from outrider.core.machine import AFTER, MachineMove, MachineRecord, MachineState, PoolRecord
from outrider.store import Store, open_store
from outrider.testing import FakeClock

STATES = tuple(MachineState)


async def test_a_pool_is_opened_epoch_by_epoch_and_listed_by_name(store: Store, clock: FakeClock):
    assert await store.query_pools() == ()
    began = utc(clock.time())
    assert [await store.open_pool(name) for name in ("b", "a")] == [1, 1]
    await clock.advance(5)
    assert await store.open_pool("b") == 2
    assert await store.query_pools() == (
        PoolRecord(name="a", epoch=1, opened_at=began),
        PoolRecord(name="b", epoch=2, opened_at=utc(clock.time())),
    )


async def test_a_machine_and_its_moves_are_kept_as_they_were_written(store: Store):
    owner = await owner_of(store)
    made = machine("m1", "creating", address={"pid": 7, "ports": [1, 2], "key": b"\0x"}, reason="pool opened")
    leased = replace(
        made,
        state=MachineState.LEASED,
        epoch=1,
        n_uses=1,
        holder="ro-ταξί",
        reason="",
        moved_at=datetime(2026, 3, 1, 12, 0, 0, 123457, tzinfo=timezone(timedelta(hours=2))),
    )
    between = [replace(made, state=state) for state in (MachineState.RESETTING, MachineState.READY)]
    records = [made, *between, leased]
    befores = (None, "creating", "resetting", "ready")
    moves = tuple(
        moved(record, before, seconds=n + 0.1) for n, (record, before) in enumerate(zip(records, befores, strict=True))
    )
    await owner.write((leased,), moves)
    assert await store.query_machines() == (leased,)
    assert (await store.query_machine_moves()).items == moves[::-1]


async def test_what_the_caller_does_with_an_address_later_is_not_in_the_journal(store: Store):
    owner = await owner_of(store)
    address: dict[str, Any] = {"ports": [1]}
    await owner.go("m1", "creating", address=address)
    address["ports"].append(2)
    (kept,) = await store.query_machines()
    assert kept.address == {"ports": [1]}
    kept.address["ports"].append(3)  # type: ignore[index]
    assert (await store.query_machines())[0].address == {"ports": [1]}


async def test_a_write_of_whoever_had_the_pool_before_is_refused_and_changes_nothing(store: Store):
    old = await owner_of(store)
    await old.go("m1", *STEPS_TO[MachineState.LEASED])
    new = await owner_of(store)
    before = await all_of_machines(store)
    for states in (("resetting",), ("gone",)):
        with pytest.raises(PoolLost, match="taken over") as caught:
            await old.go("m1", *states)
        assert (caught.value.name, caught.value.epoch, caught.value.current) == ("p", 1, 2)
    with pytest.raises(PoolLost):  # what it did write is not its own to repeat any more either
        await store.write_machines("p", 1, 1, (), ())
    with pytest.raises(PoolLost):
        await store.write_machines("p", 3, 1, (), ())
    assert await all_of_machines(store) == before
    new.machines = {one.machine_id: one for one in await store.query_machines("p")}
    await new.go("m1", "resetting")
    assert [one.state for one in await store.query_machines()] == ["resetting"]


async def test_another_pool_is_not_taken_over(store: Store):
    one, other = await owner_of(store), await owner_of(store, "q")
    await owner_of(store)
    await other.go("m1", "creating")
    with pytest.raises(PoolLost):
        await one.go("m2", "creating")
    assert [(found.machine_id, found.pool) for found in await store.query_machines()] == [("m1", "q")]


async def test_a_pool_that_was_never_opened_is_unknown(store: Store):
    with pytest.raises(UnknownId, match="no pool with id 'p'"):
        await Owner(store, "p", 1).go("m1", "creating")
    assert await store.query_machines() == ()


async def test_a_write_that_is_repeated_changes_nothing(store: Store):
    owner = await owner_of(store)
    made = machine("m1", "creating")
    first = (made,), (moved(made, None),)
    await owner.write(*first)
    ready = replace(made, state=MachineState.READY)
    second = (ready,), (moved(replace(ready, state=MachineState.RESETTING), "creating"), moved(ready, "resetting"))
    await owner.write(*second)
    before = await all_of_machines(store)
    for _ in range(2):
        await store.write_machines("p", 1, 2, *second)
        await store.write_machines("p", 1, 1, *first)
    assert await all_of_machines(store) == before
    assert [move.state for move in await store.query_machine_moves()] == ["ready", "resetting", "creating"]
    await owner.go("m1", "leased")
    await owner.go("m1", "resetting", "ready")
    assert (await store.query_machine_moves()).total == 6


async def test_a_number_stands_for_one_write(store: Store):
    owner = await owner_of(store)
    await owner.go("m1", "creating")
    await owner.go("m1", "resetting")
    before = await all_of_machines(store)
    ready = machine("m1", "ready")
    with pytest.raises(InvalidInput, match="write 2 to pool 'p' was carried out with other content"):
        await store.write_machines("p", 1, 2, (ready,), (moved(ready, "resetting"),))
    with pytest.raises(InvalidInput, match="write 4 to pool 'p' comes too early: the next is 3"):
        await store.write_machines("p", 1, 4, (ready,), (moved(ready, "resetting"),))
    assert await all_of_machines(store) == before


async def test_a_write_that_was_refused_has_not_used_up_its_number(store: Store):
    owner = await owner_of(store)
    with pytest.raises(InvalidInput):
        await owner.go("m1", "ready")
    await owner.go("m1", "creating")
    assert owner.n_writes == 1
    await owner.write()
    await owner.go("m1", "resetting")
    assert owner.n_writes == 3


@pytest.mark.parametrize(("before", "state"), list(itertools.product((None, *STATES), STATES)))
async def test_a_machine_moves_along_the_table_only(store: Store, before: MachineState | None, state: MachineState):
    owner = await owner_of(store)
    if before is not None:
        await owner.go("m1", *STEPS_TO[before])
    seen = await all_of_machines(store)
    if state in (AFTER[before] if before else {"creating", "destroying"}):
        await owner.go("m1", state)
        assert [one.state for one in await store.query_machines()] == [state]
        last = (await store.query_machine_moves(limit=1))[0]
        assert (last.before, last.state) == (before, state)
    else:
        with pytest.raises(InvalidInput, match=f"cannot become {state}, only: "):
            await owner.go("m1", state)
        assert await all_of_machines(store) == seen


async def test_a_record_alone_may_change_all_but_the_state(store: Store):
    owner = await owner_of(store)
    record = await owner.go("m1", "creating")
    await owner.write((replace(record, address={"pid": 9}, reason="booted", epoch=4),))
    (kept,) = await store.query_machines()
    assert (kept.address, kept.reason, kept.epoch) == ({"pid": 9}, "booted", 4)
    assert (await store.query_machine_moves()).total == 1


def _with(*, record: MachineRecord | None = None, **fields: Any) -> Callable[..., Any]:
    """The write with another record, or with its last move changed."""

    def spoil(records: tuple[MachineRecord, ...], moves: tuple[MachineMove, ...]) -> Any:
        more = () if record is None else (record,)
        return (*records, *more), (*moves[:-1], replace(moves[-1], **fields))

    return spoil


def _record(**fields: Any) -> Callable[..., Any]:
    """The write with its last record changed."""
    return lambda records, moves: ((*records[:-1], replace(records[-1], **fields)), moves)


BAD_WRITES: dict[str, tuple[Callable[..., Any], str]] = {
    "machine twice": (_with(record=machine("m3", "gone")), "'m3' is given twice in one write"),
    "machine nobody made": (_with(record=machine("m9", "ready")), "'m9' is not in the journal and cannot be ready"),
    "move without a record": (_with(machine_id="m9"), "'m9' moves without a record"),
    "move of another pool": (_with(pool="q"), "'m3' is given as one of pool 'q', not of 'p'"),
    "record of another pool": (_record(pool="q"), "'m3' is given as one of pool 'q', not of 'p'"),
    "machine of another pool": (_with(record=machine("q1", "creating")), "'q1' is in pool 'q', not in 'p'"),
    "move from elsewhere": (_with(before=MachineState.READY), "is not in the journal, so it cannot move from ready"),
    "move elsewhere": (_record(state=MachineState.GONE), "'m3' is creating and cannot be gone without a move"),
    "record in an older epoch": (
        lambda records, moves: ((replace(records[0], epoch=0), *records[1:]), moves),
        "'m1' is in epoch 1, its record in 0",
    ),
    "lease without a new epoch": (
        lambda records, moves: (records, (replace(moves[0], epoch=0), *moves[1:])),
        "'m1' has come to epoch 0 and cannot become leased in 0",
    ),
    "no state": (_with(state="lost"), "'lost'; give one of"),
    "no state before": (_with(before="lost"), "'lost'; give one of"),
    "no machine_id": (_record(machine_id=""), "machine_id must have 1 to 512 bytes"),
    "no provider": (_record(provider=None), "provider of a machine must be text"),
    "negative uses": (_record(n_uses=-1), "n_uses of a machine -1 is too small"),
    "negative epoch": (_with(epoch=-1), "epoch of a machine -1 is too small"),
    "large epoch": (_with(epoch=1 << 63), "does not fit into 64 bits"),
    "address that cannot be stored": (_record(address={"pids": {1}}), "cannot be stored"),
    "address of another kind": (_record(address=[1]), "address of a machine must be a Mapping"),
    "reason that is no text": (_with(reason=None), "reason of a machine's state must be text"),
    "reason with a NUL": (_record(reason="a\0b"), "NUL"),
    "holder of another kind": (_with(holder=7), "holder of a machine must be text"),
    "endless seconds": (_with(seconds=float("inf")), "not a finite number"),
    "time without a zone": (_with(at=datetime(2026, 1, 1)), "time of a move has no time zone"),  # noqa: DTZ001
    "time of another kind": (_record(moved_at=5.0), "moved_at of a machine must be a datetime"),
    "record of another kind": (lambda records, moves: ((*records, {}), moves), "must be a MachineRecord, not dict"),
    "move of another kind": (lambda records, moves: (records, (*moves, "m1")), "must be a MachineMove, not str"),
}


@pytest.mark.parametrize("bad", list(BAD_WRITES))
async def test_one_bad_item_leaves_nothing_of_the_write(store: Store, bad: str):
    spoil, match = BAD_WRITES[bad]
    other = await owner_of(store, "q")
    await other.go("q1", "creating")
    owner = await owner_of(store)
    ready = await owner.go("m1", "creating", "resetting", "ready")
    await owner.go("m2", "creating")
    leased = replace(ready, state=MachineState.LEASED, epoch=1, holder="ro-1")
    resetting, made = machine("m2", "resetting"), machine("m3", "creating")
    records = leased, resetting, made
    moves = moved(leased, "ready"), moved(resetting, "creating"), moved(made, None)
    before = await all_of_machines(store)
    with pytest.raises(InvalidInput, match=match):
        await owner.write(*spoil(records, moves))
    assert await all_of_machines(store) == before
    await owner.write(records, moves)
    assert [one.state for one in await store.query_machines("p")] == ["leased", "resetting", "creating"]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda store: store.open_pool(""), "name of a pool must have 1 to 512 bytes"),
        (lambda store: store.open_pool(None), "name of a pool must be text"),
        (lambda store: store.write_machines("p", 0, 1, (), ()), "epoch of a pool 0 is too small"),
        (lambda store: store.write_machines("p", "1", 1, (), ()), "epoch of a pool must be a whole number"),
        (lambda store: store.write_machines("p", 1, 0, (), ()), "number of a write 0 is too small"),
        (lambda store: store.query_machines(5), "pool must be text"),
        (lambda store: store.query_machines(states="ready"), "give a list of states"),
        (lambda store: store.query_machines(states=["lost"]), "'lost'; give one of"),
        (lambda store: store.query_machine_moves(""), "machine_id must have 1 to 512 bytes"),
        (lambda store: store.query_machine_moves(limit=-2), "limit"),
        (lambda store: store.query_machine_moves(offset=-1), "offset"),
    ],
)
async def test_bad_input_is_refused_with_what_to_give_instead(store: Store, call, match: str):
    await store.open_pool("p")
    before = await all_of_machines(store)
    with pytest.raises(InvalidInput, match=match):
        await call(store)
    assert await all_of_machines(store) == before


async def test_machines_are_listed_by_pool_the_oldest_first_and_by_state(store: Store):
    one, two = await owner_of(store, "one"), await owner_of(store, "two")
    await two.go("t1", "creating", at=1.0)
    for machine_id, at in (("c", 5.0), ("a", 7.0), ("b", 5.0), ("d", 3.0)):
        await one.go(machine_id, "creating", at=at)
    await one.go("b", "gone")
    await one.go("c", "resetting", "ready")

    async def listed(*args: Any, **chosen: Any) -> list[str]:
        return [found.machine_id for found in await store.query_machines(*args, **chosen)]

    assert await listed() == ["d", "b", "c", "a", "t1"]
    assert await listed("one") == ["d", "b", "c", "a"]
    assert await listed("one", states=[state for state in STATES if state.exists]) == ["d", "c", "a"]
    assert await listed(states=["creating", MachineState.CREATING]) == ["d", "a", "t1"]
    assert await listed("two", ["ready"]) == []
    assert await listed(states=[]) == []
    assert await listed("nobody") == []


async def test_moves_are_listed_newest_first_as_they_were_written_page_by_page(store: Store):
    one, two = await owner_of(store, "one"), await owner_of(store, "two")
    await one.go("a", "creating", "resetting")
    await two.go("x", "creating")
    made, ready = machine("b", "creating", pool="one"), machine("a", "ready", pool="one")
    leased = replace(ready, state=MachineState.LEASED, epoch=1)
    await one.write((leased, made), (moved(ready, "resetting"), moved(made, None), moved(leased, "ready")))

    async def listed(*args: Any, **chosen: Any) -> tuple[list[tuple[str, str]], int]:
        page = await store.query_machine_moves(*args, **chosen)
        return [(move.machine_id, move.state.value) for move in page], page.total

    of_one = [("a", "leased"), ("b", "creating"), ("a", "ready"), ("a", "resetting"), ("a", "creating")]
    assert await listed() == ([*of_one[:3], ("x", "creating"), *of_one[3:]], 6)
    assert await listed(pool="one") == (of_one, 5)
    assert await listed("a") == ([move for move in of_one if move[0] == "a"], 4)
    assert await listed("a", "two") == ([], 0)
    assert await listed("a", limit=2, offset=1) == ([("a", "ready"), ("a", "resetting")], 4)
    assert await listed(pool="one", limit=1) == (of_one[:1], 5)
    assert await listed(limit=0) == ([], 6)
    assert await listed(offset=4) == (of_one[3:], 6)
    assert await listed("nobody") == ([], 0)


async def test_machines_are_as_they_were_after_opening_the_store_again(durable_url: str, clock: FakeClock):
    async with open_store(durable_url, clock=clock) as store:
        owner = await owner_of(store)
        record = await owner.go("m1", *STEPS_TO[MachineState.LEASED], address={"pid": 7}, holder="ro-1", reason="why")
        before = await all_of_machines(store)
    async with open_store(durable_url, clock=clock) as store:
        assert await all_of_machines(store) == before
        moves = (await store.query_machine_moves()).items
        with pytest.raises(InvalidInput, match="other content"):
            await store.write_machines("p", 1, 1, (replace(record, n_uses=9),), moves[::-1])
        await store.write_machines("p", 1, 1, (record,), moves[::-1])  # the last one of before, once more
        assert await all_of_machines(store) == before
        await owner_of(store)
        assert [pool.epoch for pool in await store.query_pools()] == [2]


async def test_of_several_that_open_a_pool_at_once_one_owns_it(durable_url: str):
    async with open_store(durable_url) as one, open_store(durable_url) as two:
        owners = await asyncio.gather(*(owner_of(store) for store in (one, two) for _ in range(4)))
        assert sorted(owner.epoch for owner in owners) == list(range(1, 9))
        outcomes = await asyncio.gather(
            *(owner.go(f"m{owner.epoch}", "creating") for owner in owners), return_exceptions=True
        )
        assert sum(isinstance(outcome, PoolLost) for outcome in outcomes) == 7
        assert [found.machine_id for found in await one.query_machines()] == ["m8"]


async def test_a_machine_that_two_pools_journal_at_once_becomes_one_of_them(durable_url: str):
    async with open_store(durable_url) as one, open_store(durable_url) as two:
        owners = [await owner_of(store, f"p{n}") for n, store in enumerate((one, two) * 4)]
        outcomes = await asyncio.gather(*(owner.go("m", "creating") for owner in owners), return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, InvalidInput)]
        assert len(refused) == 7
        (found,) = await one.query_machines()
        moves = await one.query_machine_moves()
        assert [move.pool for move in moves] == [found.pool]
        assert all(f"is in pool {found.pool!r}" in str(outcome) for outcome in refused)
