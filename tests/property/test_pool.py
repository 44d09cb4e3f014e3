"""Thousands of leases on virtual time, with everything going wrong that can: what must never happen does not."""

import logging
from collections import Counter

import pytest

from outrider.store import Store, open_store
from outrider.testing import LoopClock, run_virtual
from outrider.testing.fake_machines import FakeMachine, MemoryJournal
from pool_world import World, Wrong
from soaking import seeds

N_LEASES = 1000
"""Of one seed; there are ten."""


class StoredJournal(MemoryJournal):
    """What a real store takes, which refuses what is out of order."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    async def open_pool(self, name: str) -> int:
        await super().open_pool(name)
        return await self._store.open_pool(name)

    async def query_machines(self, pool=None, states=None):
        found = await self._store.query_machines(pool, states)
        assert {one.machine_id: one for one in found} == {
            one.machine_id: one for one in await super().query_machines(pool, states)
        }
        return found

    async def write_machines(self, *step) -> None:
        await self._store.write_machines(*step)
        await super().write_machines(*step)


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Thousands of warnings are what is wanted here, not what is to be kept."""
    caplog.set_level(logging.ERROR, "outrider.pool")


@pytest.mark.parametrize("seed", seeds(3, 20))
def test_no_machine_is_leaked_dirty_or_shared_whatever_goes_wrong(seed):
    world = World(seed, N_LEASES)
    run_virtual(world.run(), limit_seconds=3e6)
    assert world.wrongs == Counter()
    assert world.n_leases >= N_LEASES


def test_machines_that_lie_about_what_is_left_in_them_are_found_out(monkeypatch):
    async def no(*_: object) -> bool:
        return False

    monkeypatch.setattr(FakeMachine, "has", no)
    world = World(0, 300)
    run_virtual(world.run(), limit_seconds=3e6)
    assert world.wrongs.keys() == {Wrong.DIRTY}


def test_a_store_takes_every_move_of_a_pool_that_dies_again_and_again():
    async def run() -> None:
        store = await open_store("memory://", clock=LoopClock())
        world = World(5, n_leases=500)
        world.journal = StoredJournal(store)
        world.pool = world.new_pool()
        try:
            await world.run()
            assert world.wrongs == Counter()
            moves = await store.query_machine_moves()
            assert moves.total == len(world.journal.moves) > 500
        finally:
            await store.close()

    run_virtual(run(), limit_seconds=3e6)


def test_the_same_seed_gives_the_same_moves():
    def moves() -> list[object]:
        world = World(77, n_leases=200)
        run_virtual(world.run(), limit_seconds=3e6)
        return world.journal.moves

    first, second = moves(), moves()
    assert len(first) > 200
    assert first == second
