import asyncio
import functools
from contextlib import AsyncExitStack

import pytest

from outrider.core.errors import InvalidInput, MachineError
from outrider.core.machine import MachineState
from outrider.pool import Lease, MachinePool, PoolConfig
from outrider.testing import LoopClock, run_virtual
from outrider.testing.fake_machines import FakeProvider, Fault, MemoryJournal, Step

SLOW = {"create": 10.0, "reset": 2.0, "probe": 0.5, "destroy": 1.0}


def virtual(test):
    @functools.wraps(test)
    def run(*args, **kwargs):
        async def bounded():
            await test(*args, **kwargs)
            assert asyncio.all_tasks() == {asyncio.current_task()}, "a task is left behind"

        return run_virtual(bounded(), limit_seconds=1e6)

    return run


def provider_of(**seconds: float) -> FakeProvider:
    taken = SLOW | seconds
    return FakeProvider(lambda operation: Step(seconds=taken.get(operation, 0.0)))


def pool_of(provider: FakeProvider, n_machines: int = 1, *, journal: MemoryJournal | None = None, **settings):
    config = PoolConfig(name="p", n_machines=n_machines, **settings)
    return MachinePool(provider, config, journal=journal, clock=LoopClock())


def now() -> float:
    return asyncio.get_running_loop().time()


def states(pool: MachinePool) -> list[str]:
    return sorted(record.state for record in pool.machines)


@virtual
async def test_machines_are_made_in_parallel_and_nothing_is_left():
    provider = provider_of()
    async with pool_of(provider, 4) as pool:
        await pool.wait_until_ready(deadline=60)
        assert now() == pytest.approx(10.5)
        assert states(pool) == ["ready"] * 4
    assert provider.machines == {}
    assert provider.is_closed


@virtual
async def test_a_release_returns_at_once_and_the_next_gets_a_clean_machine():
    provider = provider_of()
    async with pool_of(provider) as pool:
        async with pool.acquire(deadline=60, holder="first") as lease:
            await lease.computer.write_file("work", b"mine")
            before = now()
        assert now() == before
        async with pool.acquire(deadline=60, holder="second") as second:
            assert await second.computer.read_file("work") is None
            assert (second.machine_id, second.epoch) == (lease.machine_id, lease.epoch + 1)
        assert now() == before + 2.5
    assert provider.n_made == 1


@virtual
async def test_an_old_holder_is_refused_before_and_during_a_call_and_told_why():
    provider = provider_of(call=5.0)
    async with pool_of(provider) as pool, pool.acquire(deadline=60, holder="old") as lease:
        machine = provider.machines[lease.machine_id]
        call = asyncio.create_task(lease.computer.write_file("late", b"click"))
        told = asyncio.create_task(lease.wait_until_lost())
        await asyncio.sleep(1)
        pool.revoke(lease.machine_id, "it was needed")
        assert await told == lease.lost == "it was needed"
        with pytest.raises(MachineError, match=r"the lease is over.*it was needed"):
            await call
        with pytest.raises(MachineError, match="the lease is over"):
            await lease.computer.screenshot()
        with pytest.raises(MachineError, match="the lease is over"):
            _ = lease.computer.screen_size
        async with pool.acquire(deadline=60, holder="new") as other:
            assert other.machine_id == lease.machine_id
            lease.release()
            await asyncio.sleep(20)
            assert machine.files == {}
            assert not other.is_over


@virtual
async def test_a_machine_is_not_reset_before_its_holders_last_call_has_ended():
    provider = provider_of()
    async with pool_of(provider, probe_seconds=5) as pool:
        (lease,) = await pool.take(deadline=60)
        stubborn = asyncio.Event()

        async def ignores_cancellation() -> bytes:
            while not stubborn.is_set():
                try:
                    await stubborn.wait()
                except asyncio.CancelledError:
                    continue
            return b""

        provider.machines[lease.machine_id].screenshot = ignores_cancellation
        call = asyncio.create_task(lease.computer.screenshot())
        await asyncio.sleep(0.1)
        lease.release()
        with pytest.raises(MachineError, match="the lease is over"):
            await call
        await asyncio.sleep(10)
        assert "quarantined" in states(pool), "it is never handed out again"
        stubborn.set()


@pytest.mark.parametrize(
    ("operation", "fault", "reason"),
    [
        ("reset", Fault.FAIL, "reset failed"),
        ("reset", Fault.HANG, "not done after 30 s"),
        ("reset", Fault.LEAVE, "still there"),
        ("probe", Fault.FAIL, "probe failed"),
        ("probe", Fault.HANG, "not done after 20 s"),
        ("plant", Fault.HANG, "not done after 20 s"),
        ("has", Fault.FAIL, "has failed"),
    ],
)
def test_a_machine_whose_reset_is_not_proved_is_put_away_and_replaced(operation, fault, reason):
    @virtual
    async def test():
        provider = provider_of()
        async with pool_of(provider, reset_seconds=30) as pool:
            (lease,) = await pool.take(deadline=60)
            provider.script(operation, fault)
            lease.release()
            await asyncio.sleep(31)
            [record] = pool.machines
            assert record.state is MachineState.QUARANTINED
            assert reason in record.reason
            async with pool.acquire(deadline=60) as other:
                assert other.machine_id != lease.machine_id
            assert pool.statistics().n_quarantines == 1

    test()


@virtual
async def test_a_machine_that_dies_in_its_holders_hands_is_replaced_and_the_holder_told():
    provider = provider_of()
    async with pool_of(provider) as pool:
        (lease,) = await pool.take(deadline=60, holder="h")
        provider.machines[lease.machine_id].die("power cut")
        assert "power cut" in await lease.wait_until_lost()
        with pytest.raises(MachineError, match="power cut"):
            await lease.computer.screenshot()
        async with pool.acquire(deadline=60) as other:
            assert other.machine_id != lease.machine_id


@virtual
async def test_a_provider_that_can_make_none_is_named_at_the_deadline_and_not_pestered():
    provider = provider_of(create=0.0)
    provider.script("create", *[Fault.FAIL] * 1000)
    async with pool_of(provider, 3) as pool:
        with pytest.raises(MachineError, match=r"no machine for h after 100 s: .*create failed"):
            await pool.take(deadline=100, holder="h")
        assert now() == 100
        assert pool.statistics().n_failures["create"] < 15


@virtual
async def test_a_waiter_that_is_late_or_cancelled_leaves_at_once():
    provider = provider_of()
    async with pool_of(provider) as pool, pool.acquire(deadline=60):
        waiter = asyncio.create_task(pool.take(deadline=1000))
        late = asyncio.create_task(pool.take(deadline=5))
        await asyncio.sleep(1)
        assert pool.statistics().n_waiting == 2
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert pool.statistics().n_waiting == 1
        with pytest.raises(MachineError, match="1 leased"):
            await late
        assert pool.statistics().n_waiting == 0
        assert now() == pytest.approx(15.5)


@virtual
async def test_a_machine_granted_to_a_waiter_in_the_moment_it_is_cancelled_comes_back():
    journal = MemoryJournal()
    async with pool_of(provider_of(), journal=journal) as pool:
        await pool.wait_until_ready(deadline=60)
        journal.seconds = 1.0
        waiter = asyncio.create_task(pool.take(deadline=60))
        await asyncio.sleep(0.5)
        assert states(pool) == ["leased"]
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert states(pool) == ["resetting"]
        async with pool.acquire(deadline=20):
            pass


@virtual
async def test_a_machine_granted_to_a_waiter_that_has_just_left_comes_back():
    async with pool_of(provider_of(), 2) as pool:
        await pool.wait_until_ready(deadline=60)
        async with pool.acquire(deadline=60):
            waiters = [asyncio.create_task(pool.take(n, deadline=60)) for n in (2, 1)]
            await asyncio.sleep(1)
            for waiter in waiters:  # as the first leaves it is the other's turn, which has not yet left
                waiter.cancel()
            await asyncio.wait(waiters)
            await asyncio.sleep(5)
            assert states(pool) == ["leased", "ready"]


@virtual
async def test_several_machines_come_together_or_not_at_all():
    provider = provider_of()
    async with pool_of(provider, 3) as pool:
        (lease,) = await pool.take(deadline=60)
        with pytest.raises(MachineError):
            await pool.take(3, deadline=5)
        assert states(pool).count("leased") == 1
        lease.release()
        async with pool.acquire_all(3, deadline=60) as leases:
            assert len({one.machine_id for one in leases}) == 3
        with pytest.raises(InvalidInput, match="4 machines were asked for"):
            await pool.take(4, deadline=5)


@virtual
async def test_a_task_that_kills_three_machines_is_refused_and_the_pool_goes_on():
    provider = provider_of()
    async with pool_of(provider, 2) as pool:
        for _ in range(3):
            (lease,) = await pool.take(deadline=100, holder="poison")
            provider.machines[lease.machine_id].die("panic")
            await lease.wait_until_lost()
        with pytest.raises(MachineError, match="poison gets no further machine"):
            await pool.take(deadline=100, holder="poison")
        async with pool.acquire(deadline=100, holder="other"):
            pass


@virtual
async def test_a_holder_that_never_releases_loses_its_machine():
    async with pool_of(provider_of(), max_hold_seconds=50) as pool:
        (lease,) = await pool.take(deadline=60, holder="sleeper")
        assert "held by sleeper for more than 50 s" in await lease.wait_until_lost()
        async with pool.acquire(deadline=5):
            pass


@virtual
async def test_a_jump_of_the_wall_clock_takes_no_machine_from_its_holder():
    clock = LoopClock()
    config = PoolConfig(name="p", n_machines=1, max_hold_seconds=50)
    async with MachinePool(provider_of(), config, clock=clock) as pool:
        (lease,) = await pool.take(deadline=60, holder="sleeper")
        began = now()
        for seconds in (3600, -7200):
            clock.jump(seconds)
            with pytest.raises(MachineError, match="1 leased"):  # whoever asks makes the pool look at what is due
                await pool.take(deadline=10, holder="other")
        await lease.wait_until_lost()
        assert now() - began == pytest.approx(50)


@virtual
async def test_more_machines_than_fit_are_refused_before_any_is_made():
    provider = FakeProvider(capacity=3)
    with pytest.raises(InvalidInput, match="room for 3"):
        async with pool_of(provider, 4):
            pass
    assert provider.is_closed
    provider = FakeProvider(capacity=3)
    async with pool_of(provider, 2) as pool:
        with pytest.raises(InvalidInput, match="room for 3"):
            await pool.resize(4)
        await pool.resize(3)
        await pool.wait_until_ready(deadline=10)
        assert len(provider.machines) == 3
        await pool.resize(1)
        await asyncio.sleep(10)
        assert len(provider.machines) == 1


@pytest.mark.parametrize("when", [0.5, 5.0, 10.2, 11.0, 15.0, 16.0])
def test_closing_in_the_middle_of_anything_leaves_nothing(when):
    @virtual
    async def test():
        provider = provider_of()
        waiters = []
        async with pool_of(provider, 2) as pool:
            waiters = [asyncio.create_task(_hold(pool, 4)) for _ in range(5)]
            await asyncio.sleep(when)
        assert provider.machines == {}
        ends = await asyncio.gather(*waiters, return_exceptions=True)
        assert any(isinstance(end, MachineError) and "the pool is closed" in str(end) for end in ends)
        with pytest.raises(MachineError, match="the pool is closed"):
            await pool.take(deadline=1)

    test()


async def _hold(pool: MachinePool, seconds: float) -> None:
    async with pool.acquire(deadline=100) as lease:
        await asyncio.sleep(seconds)
        await lease.computer.screenshot()


@virtual
async def test_a_cancelled_owner_still_ends_all_machines():
    provider = provider_of()

    async def own() -> None:
        async with pool_of(provider, 2):
            await asyncio.sleep(1000)

    owner = asyncio.create_task(own())
    await asyncio.sleep(20)
    owner.cancel()
    await asyncio.sleep(0.1)
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner
    assert provider.machines == {}


@virtual
async def test_a_machine_that_cannot_be_ended_is_reported_and_closing_ends_all_the_same(caplog):
    provider = provider_of()
    provider.script("destroy", *[Fault.HANG] * 100)
    journal = MemoryJournal()
    async with pool_of(provider, journal=journal, close_seconds=60) as pool:
        await pool.wait_until_ready(deadline=60)
        before = now()
    assert now() - before <= 100
    assert pool.statistics().n_leaks == 1
    [machine_id] = provider.machines
    assert f"could not be ended: {machine_id}" in caplog.text
    assert journal.records[machine_id].state is MachineState.DESTROYING
    provider.script("destroy")
    provider._scripted.clear()
    async with pool_of(provider, journal=journal) as after:
        await after.wait_until_ready(deadline=60)
        assert machine_id not in provider.machines, "the next pool ends it"


@virtual
async def test_a_lease_is_given_only_when_the_journal_knows_it():
    journal = MemoryJournal()
    journal.seconds = 0.25
    async with pool_of(provider_of(), journal=journal) as pool:
        (lease,) = await pool.take(deadline=60, holder="ro-1")
        record = journal.records[lease.machine_id]
        assert (record.state, record.holder, record.epoch) == (MachineState.LEASED, "ro-1", lease.epoch)
        assert journal.states_of(lease.machine_id) == ["creating", "resetting", "ready", "leased"]
        lease.release()
        await asyncio.sleep(10)
        journal.is_down = True
        with pytest.raises(MachineError, match="journal cannot be written"):
            await pool.take(deadline=5)
        journal.is_down = False
        async with pool.acquire(deadline=60):
            pass
    assert journal.states_of(lease.machine_id)[-2:] == ["destroying", "gone"]


@virtual
async def test_the_next_pool_of_the_name_adopts_resets_and_sweeps():
    provider, journal = provider_of(), MemoryJournal()
    dead = pool_of(provider, 3, journal=journal)
    await dead.start()
    await dead.wait_until_ready(deadline=60)
    (lease,) = await dead.take(deadline=60, holder="h")
    await lease.computer.write_file("work", b"dirty")
    gone, other = (record.machine_id for record in dead.machines if record.machine_id != lease.machine_id)
    await dead._jobs.stop(1)  # the process is gone, its machines are not
    dead._upkeep.halt()
    del provider.machines[gone]
    stray = await provider.create("stray", "p")
    foreign = await provider.create("foreign", "another pool")

    async with pool_of(provider, 3, journal=journal) as pool:
        assert provider.n_made == 5
        await pool.wait_until_ready(deadline=60)
        assert {lease.machine_id, other} < {record.machine_id for record in pool.machines}
        assert journal.records[gone].state is MachineState.GONE
        assert stray.machine_id not in provider.machines
        assert not provider.machines[lease.machine_id].is_dirty
        async with AsyncExitStack() as stack:
            held: list[Lease] = [await stack.enter_async_context(pool.acquire(deadline=9)) for _ in range(3)]
            [again] = [one for one in held if one.machine_id == lease.machine_id]
            assert again.epoch > lease.epoch
    assert list(provider.machines.values()) == [foreign]


@virtual
async def test_a_pool_does_not_start_beside_a_machine_that_it_cannot_count():
    provider = provider_of()
    await provider.create("stray", "p")
    provider.script("adopt", *[Fault.FAIL] * 3)
    with pytest.raises(MachineError, match=r"left behind at .*stray.* cannot be ended: adopt failed"):
        await pool_of(provider).start()
    assert provider.n_made == 1
    async with pool_of(provider) as pool:
        await pool.wait_until_ready(deadline=60)
    assert provider.machines == {}


@virtual
async def test_a_pool_that_was_taken_over_lets_go_and_ends_only_what_the_journal_does_not_know():
    provider, journal = provider_of(), MemoryJournal()
    async with pool_of(provider, 2, journal=journal) as old:
        await old.wait_until_ready(deadline=60)
        (lease,) = await old.take(deadline=60, holder="h")
        async with pool_of(provider, 2, journal=journal) as new:
            await new.wait_until_ready(deadline=60)
            lease.release()
            with pytest.raises(MachineError, match="belongs to another process"):
                await old.take(deadline=60)
            await asyncio.sleep(60)
            assert len(provider.machines) == 2
            async with new.acquire(deadline=5):
                pass


@virtual
async def test_a_mistake_in_the_program_ends_the_pool_and_is_raised_when_it_is_closed(monkeypatch):
    provider = provider_of()
    pool = pool_of(provider)
    await pool.start()
    await pool.wait_until_ready(deadline=60)
    monkeypatch.setattr(pool._fleet, "was_reset", None)
    (lease,) = await pool.take(deadline=60)
    lease.release()
    await asyncio.sleep(10)
    with pytest.raises(MachineError, match="the pool failed"):
        await pool.take(deadline=60)
    with pytest.raises(TypeError):
        await pool.close()
    assert provider.machines == {}


@virtual
async def test_statistics_tell_waits_holds_and_what_went_wrong():
    provider = provider_of()
    async with pool_of(provider, 2) as pool:
        await asyncio.gather(*[_hold(pool, 4) for _ in range(6)])
        await asyncio.sleep(5)
        found = pool.statistics()
    assert (found.n_leases, found.n_created, found.n_resets, found.n_leaks) == (6, 2, 6, 0)
    assert found.hold_seconds is not None
    assert found.hold_seconds.p50 == pytest.approx(4)
    assert found.reset_seconds is not None
    assert found.reset_seconds.p99 == pytest.approx(2.5)
    assert found.create_seconds is not None
    assert found.create_seconds.p50 == pytest.approx(10)
    assert found.wait_seconds is not None
    assert found.wait_seconds.greatest == pytest.approx(10.5 + 2 * 6.5)
    assert found.utilisation == pytest.approx(24 * 2 / (24 * 2 + 21 * 2 + 2.5 * 2 * 2 * 2), abs=0.2)
