import asyncio

import pytest

from outrider.agent.supply import Supply, while_held
from outrider.core.errors import MachineError
from outrider.pool import Lease, MachinePool, PoolConfig
from outrider.testing.fake_machines import FakeProvider


def lease_of(released: list[str] | None = None) -> Lease:
    return Lease(
        "m-1",
        1,
        holder="ro-1",
        address={},
        computer=None,  # type: ignore[arg-type]
        on_release=lambda lease: (released if released is not None else []).append(lease.machine_id),
    )


async def test_work_on_a_machine_comes_to_its_result():
    async def work() -> int:
        await asyncio.sleep(0)
        return 42

    assert await while_held(lease_of(), work()) == 42
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_work_that_fails_raises_its_own_error():
    async def work() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await while_held(lease_of(), work())


async def test_work_is_stopped_when_its_machine_is_lost():
    lease = lease_of()
    stopped: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append("stopped")

    holding = asyncio.create_task(while_held(lease, work()))
    await asyncio.sleep(0)
    lease.lose("it died")
    with pytest.raises(MachineError, match="machine m-1 was lost: it died"):
        await holding
    assert stopped == ["stopped"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_whoever_is_cancelled_cancels_the_work_and_waits_for_it():
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("ended")

    holding = asyncio.create_task(while_held(lease_of(), work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    assert ended == ["ended"]


async def test_a_supply_leases_in_the_name_of_its_run():
    async with MachinePool(FakeProvider(), PoolConfig(n_machines=1)) as pool:
        supply = Supply(machines=pool, run="r", wait_seconds=5)
        lease = await supply.lease("ro-7")
        assert pool.machines[0].holder == "ro-7"
        with pytest.raises(MachineError, match="no machine for ro-8 after 0"):
            await Supply(machines=pool, wait_seconds=0.01).lease("ro-8")
        lease.release()
