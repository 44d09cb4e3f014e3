"""Schedules that a seed chooses: always the same for the same seed, and shrunk to the picks that matter."""

import asyncio

import pytest

from outrider.testing.simulation import Schedule, explore, run_seeded, shrink


async def told(seed: int) -> list[str]:
    """Who comes when, of three that each come twice."""
    came: list[str] = []

    async def come(name: str) -> None:
        for _ in range(2):
            came.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(*(come(name) for name in "abc"))
    return came


async def transfer(seed: int) -> None:
    """A withdrawal that looks first and takes later, beside others that have nothing to do with it."""
    balance = 1

    async def withdraw() -> None:
        nonlocal balance
        if balance > 0:
            await asyncio.sleep(0)
            balance -= 1

    async def idle() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def later() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await withdraw()

    await asyncio.gather(withdraw(), later(), *(idle() for _ in range(5)))
    assert balance >= 0, "taken twice"


def test_a_seed_always_gives_the_same_schedule_and_seeds_differ():
    first = {seed: run_seeded(told, seed) for seed in range(20)}
    assert first == {seed: run_seeded(told, seed) for seed in range(20)}
    assert len({tuple(came) for came in first.values()}) > 10


def test_without_picks_what_is_ready_runs_first_come_first_served():
    assert run_seeded(told, Schedule(seed=3, picks=frozenset())) == list("abcabc")


def test_a_race_is_found_and_shrunk_to_the_few_picks_it_takes():
    run_seeded(transfer, Schedule(seed=0, picks=frozenset()))
    failed = next(explore(transfer, range(200)))
    assert "taken twice" in str(failed)
    few = shrink(transfer, failed)
    assert len(few.schedule.picks or ()) <= 5 < len(failed.deviations)
    with pytest.raises(AssertionError, match="taken twice"):
        run_seeded(transfer, few.schedule)


def test_a_program_that_waits_for_what_never_comes_is_a_failure_of_its_seed():
    async def hang(seed: int) -> None:
        await asyncio.get_running_loop().create_future()

    (failed,) = explore(hang, [1])
    assert str(failed).startswith("seed 1: Deadlock: after 0 s nothing is ready")


def test_time_passes_only_when_nothing_is_ready():
    async def program(seed: int) -> tuple[float, list[str]]:
        came: list[str] = []

        async def come(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            came.append(name)

        await asyncio.gather(come("late", 3600.0), come("early", 1.0))
        return asyncio.get_running_loop().time(), came

    assert {str(run_seeded(program, seed)) for seed in range(10)} == {"(3600.0, ['early', 'late'])"}
