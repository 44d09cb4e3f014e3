"""Steering the scheduler: pauses, validation, acknowledging, giving up a wait, taking over and going on."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from leaks import no_leaks
from outrider.core.errors import BatchLate, InvalidInput, OutriderError
from outrider.core.ledger import PIN_KEY, GroupState
from outrider.core.status import RolloutStatus
from outrider.env import Environment
from outrider.store import Store
from outrider.train.config import EnvManagerConfig, SchedulerConfig
from training import LATENCY, Lab, TrackedGames, config_of, members_of, numbers_of, play, take_all, versions_of

AHEAD: dict[str, Any] = {"async_generation_ratio": 1.0, "max_staleness": 2}


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'runs.db'}"


async def states_of(store: Store) -> dict[int, GroupState]:
    return {entry.number: entry.state for entry in await store.query_groups("train")}


def test_no_model_call_begins_while_paused_and_all_goes_on_when_resumed(url: str):
    async def main(lab: Lab) -> None:
        async with lab.training(config_of(**AHEAD)) as scheduler:
            await scheduler.get_batch()
            await scheduler.publish()
            await scheduler.pause()
            await lab.sleep(10 * LATENCY)  # the news has reached the workers, and calls under way have ended
            before = lab.model.n_begun
            with pytest.raises(BatchLate, match="the scheduler is paused: call resume"):
                await take_all(scheduler, 0.3)
            await scheduler.publish()
            await lab.sleep(0.2)
            assert lab.model.n_begun == before
            assert scheduler.status().is_paused
            await scheduler.resume()
            assert (await scheduler.get_batch()).version == 2
            assert lab.model.n_begun > before

    play(url, main)


def validating(n_groups: int = 3, **settings: Any) -> SchedulerConfig:
    return config_of(val_env_manager=EnvManagerConfig(num_env_groups=n_groups), **AHEAD, **settings)


def test_a_validation_runs_in_the_same_slots_at_temperature_0_and_on_one_version(url: str):
    async def main(lab: Lab) -> None:
        async with lab.training(validating(), n_workers=1, slots=4) as scheduler:
            await scheduler.get_batch()
            await scheduler.publish()
            validation = asyncio.ensure_future(scheduler.validate())
            await asyncio.sleep(0)
            publishing = asyncio.ensure_future(scheduler.publish())
            await asyncio.wait([validation, publishing], return_when=asyncio.FIRST_COMPLETED)
            assert validation.done(), "the same endpoint is published anew only when the validation is over"
            assert await publishing == 2
            result = validation.result()
        assert (result.version, result.is_complete) == (1, True)
        assert (result.tags["FrozenLake"].n_scored, set(result.metrics)) == (
            3,
            {"val/seconds", "val/FrozenLake/reward", "val/FrozenLake/scored"},
        )
        rollouts = await lab.store.query_rollouts(mode="val")
        assert len({rollout.seed for rollout in rollouts}) == 3
        for rollout in rollouts:
            assert rollout.metadata[PIN_KEY] == 1
            assert set(await versions_of(lab.store, rollout.rollout_id)) == {1}
        cold = [sampling for sampling in lab.model.samplings if sampling is not None and sampling.temperature == 0]
        n_turns = sum([len(await versions_of(lab.store, rollout.rollout_id)) for rollout in rollouts])
        assert len(cold) == n_turns

    play(url, main)


class Endless(Environment):
    """Never returns from its reset."""

    async def reset(self, seed: int | None = None) -> Any:
        await asyncio.Event().wait()

    async def step(self, action: Any) -> Any:
        raise AssertionError


def test_what_a_validation_has_not_finished_at_its_deadline_is_cancelled_and_it_can_be_made_again(url: str):
    async def main(lab: Lab) -> None:
        games = lab.games["FrozenLake"]
        assert isinstance(games, TrackedGames)
        make = games._make
        games._make = lambda task: Endless()
        async with lab.scheduler(validating()) as scheduler, lab.workers(slots=4):
            await scheduler.pause()
            result = await scheduler.validate(timeout=0.3)
            assert (result.is_complete, result.tags["FrozenLake"].n_unfinished) == (False, 3)
            assert result.tags["FrozenLake"].reward is None
            assert result.seconds < 5
            rollouts = await lab.store.query_rollouts(mode="val")
            assert {rollout.status for rollout in rollouts} == {RolloutStatus.CANCELLED}
            games._make = make
            await scheduler.resume()
            again = await scheduler.validate(timeout=20)
            assert (again.is_complete, again.tags["FrozenLake"].n_scored) == (True, 3)
            assert (await scheduler.validate(timeout=20)).tags == again.tags, "the same seeds, at temperature 0"

    play(url, main)


def test_a_configuration_whose_validation_is_not_repeatable_is_warned_of(caplog: pytest.LogCaptureFixture):
    async def main(lab: Lab) -> None:
        manager = EnvManagerConfig(num_env_groups=2, group_size=4, temperature=0.7)
        with caplog.at_level(logging.WARNING):
            lab.scheduler(config_of(val_env_manager=manager))

    play("memory://", main)
    said = [record.getMessage() for record in caplog.records]
    assert any("group_size is 4" in line for line in said)
    assert any("temperature is 0.7" in line for line in said)


def test_a_batch_comes_again_until_it_is_acknowledged(url: str):
    async def main(lab: Lab) -> None:
        config = config_of(redundancy=1, **AHEAD)
        async with lab.workers():
            async with lab.scheduler(config) as scheduler:
                first, second = await scheduler.get_batch(), await scheduler.get_batch()
                await scheduler.publish(acknowledge=False)
                assert set((await states_of(lab.store)).values()) >= {GroupState.DELIVERED}
                with pytest.raises(InvalidInput, match="batch 5 was never delivered"):
                    await scheduler.acknowledge(_numbered(first, 5))
                await scheduler.acknowledge(second)
                await scheduler.acknowledge(second)
            async with lab.scheduler(config) as scheduler:
                assert scheduler.version == 1
                again = await scheduler.get_batch()
                assert (again.number, members_of(again)) == (0, members_of(first))
                assert list(members_of(again)) == list(members_of(first)), "in the same order"
                assert (await scheduler.get_batch()).number == 2
                await scheduler.publish()
        states = await states_of(lab.store)
        assert all(states[number] is GroupState.ACKNOWLEDGED for number in [*numbers_of(first), *numbers_of(second)])
        assert GroupState.DELIVERED not in states.values()

    play(url, main)


def _numbered(batch: Any, number: int) -> Any:
    return type(batch)(number=number, version=0, batch=batch.batch, metrics={}, tokens={})


def test_a_wait_that_is_given_up_at_any_moment_loses_nothing():
    async def main(lab: Lab) -> None:
        async with lab.training(config_of(**AHEAD)) as scheduler:
            for number in range(120):
                asking = asyncio.ensure_future(scheduler.get_batch())
                for _ in range(number):
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.wait([asking])
                batch = await scheduler.get_batch() if asking.cancelled() else asking.result()
                assert (batch.number, batch.version) == (number, number)
                assert int(batch.batch.staleness.max()) <= 2
                await scheduler.publish()

    play("memory://", main)


def test_a_deadline_that_passes_at_any_moment_loses_nothing(url: str):
    async def main(lab: Lab) -> None:
        async with lab.training(config_of(**AHEAD)) as scheduler:
            n_late = 0
            for number in range(12):
                batch = None
                for tenth in range(1000):
                    try:
                        batch = await scheduler.get_batch(timeout=0.0005 * tenth)
                        break
                    except BatchLate:
                        n_late += 1
                assert batch is not None
                assert batch.number == number
                await scheduler.publish()
        assert n_late > 0

    play(url, main)


def test_two_who_ask_at_once_are_refused(url: str):
    async def main(lab: Lab) -> None:
        async with no_leaks(), lab.training(config_of(**AHEAD)) as scheduler:
            first, second = await asyncio.gather(scheduler.get_batch(), scheduler.get_batch(), return_exceptions=True)
            assert not isinstance(first, BaseException)
            assert first.number == 0
            assert isinstance(second, InvalidInput)
            assert (await scheduler.get_batch()).number == 1

    play(url, main)


def test_a_batch_that_is_fetched_ahead_is_not_acknowledged_before_it_is_there(url: str):
    async def main(lab: Lab) -> None:
        async with lab.training(config_of(**AHEAD)) as scheduler:
            await scheduler.get_batch()
            for number in range(1, 10):
                ahead = asyncio.ensure_future(scheduler.get_batch())
                await lab.sleep(LATENCY * (number % 5))
                was_there = ahead.done()
                await scheduler.publish()
                states = {entry.state for entry in await lab.store.query_groups("train", batch=number)}
                assert was_there or ahead.done() or GroupState.ACKNOWLEDGED not in states
                batch = await ahead
                assert batch.number == number
                assert int(batch.batch.staleness.max()) <= 2

    play(url, main)


def test_impossible_batches_and_versions_are_refused_and_change_nothing(url: str):
    async def main(lab: Lab) -> None:
        scheduler = lab.scheduler(config_of())
        with pytest.raises(InvalidInput, match="not started"):
            await scheduler.get_batch()
        async with scheduler, lab.workers():
            for size in (0, -2, 3):
                with pytest.raises(InvalidInput, match="not a multiple of group_size 2"):
                    await scheduler.get_batch(size)
            await scheduler.get_batch()
            for version in (0, 2, -1):
                with pytest.raises(InvalidInput, match="publish 1 next"):
                    await scheduler.publish(version)
            with pytest.raises(InvalidInput, match="running already"):
                await scheduler.start()
            assert await scheduler.publish(1) == 1
        with pytest.raises(OutriderError, match="stopped"):
            await scheduler.get_batch()

    play(url, main)
