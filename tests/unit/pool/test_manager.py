import asyncio

import pytest

from leaks import no_leaks
from outrider.core.errors import InvalidInput, MachineError
from outrider.pool import MachinePool, PoolConfig, ThreadedVMPoolManager, VMPoolManager
from outrider.testing.fake_machines import FakeProvider, Fault


def manager_of(provider: FakeProvider, n_machines: int = 2) -> VMPoolManager:
    return VMPoolManager(MachinePool(provider, PoolConfig(n_machines=n_machines)))


async def test_the_known_names_work_together():
    provider = FakeProvider()
    async with no_leaks():
        manager = manager_of(provider)
        await manager.initialize(timeout=5)
        lease = await manager.allocate("worker-1", timeout=5)
        other = await manager.allocate("worker-2", timeout=5)
        with pytest.raises(MachineError, match="2 leased"):
            await manager.allocate("worker-3", timeout=0.01)
        status = await manager.get_status()
        assert (status["total"], status["states"]) == (2, {"leased": 2})
        with pytest.raises(InvalidInput, match="held by worker-1"):
            await manager.release(lease.machine_id, "worker-2")
        await manager.release(lease.machine_id, "worker-1")
        again = await manager.allocate("worker-3", timeout=5)
        assert again.machine_id == lease.machine_id
        await manager.reset(again.machine_id)
        assert again.lost == "asked to be reset"
        await manager.stop(other.machine_id)
        await asyncio.wait_for(other.wait_until_lost(), 5)
        assert (await manager.get_stats())["n_leases"] == 3
        with pytest.raises(InvalidInput, match="no machine 'nobody'"):
            await manager.stop("nobody")
        await manager.stop_all()
    assert provider.machines == {}


async def test_a_pool_that_cannot_start_says_why_and_leaves_nothing():
    provider = FakeProvider()
    provider.script("create", *[Fault.FAIL] * 100)
    async with no_leaks():
        with pytest.raises(MachineError, match="create failed"):
            await manager_of(provider).initialize(timeout=0.05)
    assert provider.machines == {}


async def test_threads_share_the_machines_and_no_two_hold_the_same():
    provider = FakeProvider()
    manager = manager_of(provider)
    await manager.initialize(timeout=5)
    threaded = ThreadedVMPoolManager(manager, asyncio.get_running_loop())
    held: set[str] = set()

    def work(worker: int) -> int:
        for n in range(20):
            lease = threaded.allocate(f"{worker}-{n}", timeout=20)
            assert lease.machine_id not in held
            held.add(lease.machine_id)
            assert threaded.call(lease.computer.screenshot()) == b"a picture"
            held.remove(lease.machine_id)
            threaded.release(lease.machine_id)
        return 20

    done = await asyncio.gather(*[asyncio.to_thread(work, worker) for worker in range(4)])
    assert sum(done) == threaded_leases(await manager.get_stats())
    with pytest.raises(MachineError, match="would wait for itself"):
        threaded.get_status()
    await manager.stop_all()


def threaded_leases(stats) -> int:
    return stats["n_leases"]
