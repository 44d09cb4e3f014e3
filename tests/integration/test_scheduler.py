"""The scheduler with real workers: whole batches, staleness, seeds, redundancy, filters, tokens."""

import asyncio
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.core.account import Fate
from outrider.core.errors import InvalidInput
from outrider.core.ledger import GroupState
from outrider.core.status import AttemptStatus, RolloutStatus
from outrider.train.batch import Batch
from outrider.train.filters import GroupResult
from training import LATENCY, Lab, TrackedGames, config_of, members_of, numbers_of, play, versions_of

AHEAD: dict[str, Any] = {"async_generation_ratio": 1.0, "max_staleness": 2}


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'runs.db'}"


def check_whole(batch: Batch, *, n_groups: int, group_size: int) -> None:
    assert len(batch.groups) == n_groups
    for group in batch.groups:
        assert len({one.rollout_id for one in group.trajectories}) == group_size
        assert {(one.tag, one.seed, one.group_id) for one in group.trajectories} == {
            (group.tag, group.seed, group.group_id)
        }
        assert all(one.reward is not None for one in group.trajectories)


def test_batches_are_whole_groups_of_the_asked_number_in_order_and_none_comes_twice(url: str):
    async def main(lab: Lab) -> None:
        lab.games["SimpleSokoban"] = TrackedGames("SimpleSokoban", {"max_steps": 4})
        config = config_of(n_groups=6, group_size=3, tags=("FrozenLake", "SimpleSokoban"), **AHEAD)
        seen: Counter[str] = Counter()
        async with lab.training(config) as scheduler:
            for number, n_groups in enumerate((2, 2, 1, 4, 2)):
                batch = await scheduler.get_batch(3 * n_groups)
                assert (batch.number, batch.version, len(batch)) == (number, number, 3 * n_groups)
                check_whole(batch.batch, n_groups=n_groups, group_size=3)
                seen.update(batch.group_ids)
                assert await scheduler.publish() == number + 1
        assert set(seen.values()) == {1}
        states = {entry.group_id: entry.state for entry in await lab.store.query_groups("train")}
        assert {states[group_id] for group_id in seen} == {GroupState.ACKNOWLEDGED}

    play(url, main)


@pytest.mark.parametrize("is_synchronous", [True, False])
def test_model_calls_go_on_between_batch_and_publish_only_in_asynchronous_mode(url: str, is_synchronous: bool):
    async def main(lab: Lab) -> None:
        async with lab.training(config_of(async_generation_ratio=0.0 if is_synchronous else 2.0)) as scheduler:
            went_on = []
            for _ in range(5):
                await scheduler.get_batch()
                before = lab.model.n_begun
                await lab.sleep(10 * LATENCY)
                went_on.append(lab.model.n_begun > before)
                await scheduler.publish()
        assert not any(went_on) if is_synchronous else any(went_on)

    play(url, main)


@pytest.mark.parametrize(
    ("engine", "bound", "ratio"),
    [
        ("memory", 0, 0.0),
        ("memory", 1, 0.5),
        ("memory", 1, 1.0),
        ("memory", 2, 1.5),
        ("memory", "unbounded", 3.0),
        ("sqlite", 1, 1.0),
        ("sqlite", 2, 1.5),
    ],
)
def test_neither_a_trajectory_nor_a_token_is_staler_than_the_bound_under_a_slow_trainer(
    tmp_path: Path, engine: str, bound: Any, ratio: float
):
    url = "memory://" if engine == "memory" else f"sqlite:///{tmp_path / 'runs.db'}"
    most = 1000 if bound == "unbounded" else bound
    found: list[int] = []

    async def main(lab: Lab) -> None:
        config = config_of(n_groups=5, redundancy=1, max_staleness=bound, async_generation_ratio=ratio)
        async with lab.training(config) as scheduler:
            for step in range(30):
                batch = await scheduler.get_batch()
                await check_ages(lab, batch.batch, most)
                found.append(int(batch.batch.staleness.max()))
                assert batch.metrics["staleness/max"] == found[-1]
                await lab.sleep((0.0, 0.03, 0.1)[step % 3] / (1 if url == "memory://" else 3))
                await scheduler.publish()

    play(url, main)
    assert max(found) >= (2 if bound == "unbounded" else bound), "the bound was never reached, so nothing was shown"


async def check_ages(lab: Lab, batch: Batch, most: int) -> None:
    assert 0 <= batch.staleness.min() <= batch.staleness.max() <= most
    for one in batch.trajectories:
        versions = await versions_of(lab.store, one.rollout_id)
        assert versions == sorted(versions), "the policy never goes back"
        assert all(batch.version - most <= version <= batch.version for version in versions)


def test_of_complete_groups_the_oldest_are_delivered_first(url: str):
    async def main(lab: Lab) -> None:
        async with lab.training(config_of(max_staleness="unbounded", async_generation_ratio=5.0)) as scheduler:
            await scheduler.get_batch()
            await lab.until(lambda: scheduler.status().n_complete == 12)
            delivered = []
            for _ in range(6):
                delivered += numbers_of(await scheduler.get_batch())
        assert delivered == sorted(delivered)

    play(url, main)


def test_tags_tasks_and_seeds_are_the_same_whatever_the_workers_and_in_every_run(tmp_path: Path):
    runs = []

    async def main(lab: Lab, n_workers: int) -> None:
        lab.games["SimpleSokoban"] = TrackedGames("SimpleSokoban", {"max_steps": 3})
        config = config_of(n_groups=5, tags=("FrozenLake", "SimpleSokoban"), seed=7, **AHEAD)
        async with lab.training(config, n_workers=n_workers, slots=12 // n_workers) as scheduler:
            for _ in range(6):
                await scheduler.get_batch()
                await scheduler.publish()
        groups = (await lab.store.query_groups("train", limit=12)).items
        members = {rollout.rollout_id: rollout for rollout in await lab.store.query_rollouts()}
        runs.append([(one.number, one.tag, one.seed, members[f"{one.group_id}.0"].input) for one in groups])

    for url, n_workers in (
        ("memory://", 1),
        ("memory://", 4),
        ("memory://", 4),
        (f"sqlite:///{tmp_path / 'a.db'}", 1),
        (f"sqlite:///{tmp_path / 'b.db'}", 4),
    ):
        play(url, partial(main, n_workers=n_workers))
    assert all(run == runs[0] for run in runs)
    assert len({seed for _, _, seed, _ in runs[0]}) == len(runs[0]) == 12
    assert Counter(tag for _, tag, _, _ in runs[0][:10]) == {"FrozenLake": 6, "SimpleSokoban": 4}


def test_surplus_members_are_cancelled_down_to_their_model_call_and_their_environment(url: str):
    async def main(lab: Lab) -> None:
        games = lab.games["FrozenLake"]
        assert isinstance(games, TrackedGames)
        never = asyncio.Event()

        async def hang(session: str) -> None:
            if session.endswith(":2"):
                await never.wait()

        lab.model.before = hang
        async with lab.training(config_of(n_groups=2, redundancy=1)) as scheduler:
            batch = await scheduler.get_batch()
            assert all(not one.endswith(".2") for members in members_of(batch).values() for one in members)
            await lab.until(lambda: lab.model.n_cancelled == 2 and games.n_closed == 6)
            surplus = await lab.store.query_rollouts(rollout_ids=["train-0.2", "train-1.2"])
            assert {rollout.status for rollout in surplus} == {RolloutStatus.CANCELLED}
            assert {(await lab.store.query_attempts(one.rollout_id)).items[0].status for one in surplus} == {
                AttemptStatus.CANCELLED
            }
            live = await lab.store.query_progress("train")
            assert {one.rollout_id for one in live}.isdisjoint({one.rollout_id for one in surplus})

    play(url, main)


def by_number(group: GroupResult) -> bool | str:
    return "an even number" if int(group.group_id.rpartition("-")[2]) % 2 == 0 else False


def broken_filter(group: GroupResult) -> bool:
    return group.rewards[9] > 0


@pytest.fixture
def filters(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(sys.modules, "some_filters", SimpleNamespace(by_number=by_number, broken_filter=broken_filter))
    return "some_filters"


def test_a_filtered_group_is_dropped_with_its_reason_and_its_replacement_runs_beside_the_others(url: str, filters: str):
    async def main(lab: Lab) -> None:
        config = config_of(n_groups=4, filters=(f"{filters}:by_number",), async_generation_ratio=1.0)
        async with lab.training(config) as scheduler:
            batches = []
            for _ in range(3):
                batches.append(await scheduler.get_batch())
                await scheduler.publish()
            assert all(number % 2 for batch in batches for number in numbers_of(batch))
            dropped = list(await lab.store.query_groups("train", states=[GroupState.DROPPED]))
            assert all(entry.number % 2 == 0 for entry in dropped)
            assert {entry.reason for entry in dropped} == {f"filtered: {filters}:by_number: an even number"}
            assert scheduler.status().dropped[Fate.FILTERED] >= len(dropped)  # it goes on meanwhile
            assert sum(batch.tokens.get(Fate.FILTERED, 0) for batch in batches) > 0
        entries = {entry.number: entry for entry in await lab.store.query_groups("train")}
        for entry in dropped:
            replaced_at = min(later.opened_at for number, later in entries.items() if number > entry.number + 3)
            assert (replaced_at - entry.moved_at).total_seconds() < 1, "a replacement is opened at once"

    play(url, main)


def test_a_filter_that_fails_is_told_to_whoever_waits(filters: str):
    async def main(lab: Lab) -> None:
        async with lab.training(config_of(filters=(f"{filters}:broken_filter",))) as scheduler:
            with pytest.raises(InvalidInput, match="broken_filter failed on group train-"):
                await scheduler.get_batch()
            with pytest.raises(InvalidInput, match="broken_filter failed"):
                await scheduler.publish()

    play("memory://", main)


def test_every_token_that_the_model_made_is_in_the_tally_once_and_in_the_flow_of_one_batch(url: str):
    async def main(lab: Lab) -> None:
        flows: Counter[Fate] = Counter()
        config = config_of(n_groups=6, redundancy=1, filters=("zero_variance",), **AHEAD)
        async with lab.training(config) as scheduler:
            for _ in range(4):
                flows.update((await scheduler.get_batch()).tokens)
                await lab.sleep(0.01)
                await scheduler.publish()
            await scheduler.publish()  # out of turn: what was begun long ago is too stale now
            await scheduler.publish()
            await scheduler.publish()
            await scheduler.stop(abort=True)
            tally = await scheduler.tally()
            rest = scheduler.status().tokens
        assert tally.generated == lab.model.n_tokens > 0
        assert tally.tokens[None] == 0, "each has its fate"
        assert {fate: n for fate, n in tally.tokens.items() if n} == {fate: n for fate, n in rest.items() if n}
        assert all(flows[fate] <= tally.tokens[fate] for fate in Fate)
        assert flows[Fate.TRAINED] == tally.tokens[Fate.TRAINED]
        assert tally.tokens[Fate.FILTERED] > 0
        assert tally.tokens[Fate.SURPLUS] > 0
        assert tally.tokens[Fate.ABORTED] + tally.tokens[Fate.STALE] > 0
        states = {entry.state for entry in await lab.store.query_groups("train")}
        assert states == {GroupState.ACKNOWLEDGED, GroupState.DROPPED}

    play(url, main)


def test_versions_published_without_a_batch_drop_what_is_too_stale_and_batches_keep_coming(url: str):
    async def main(lab: Lab) -> None:
        async with lab.training(config_of(n_groups=4, async_generation_ratio=1.0)) as scheduler:
            for _ in range(3):
                await scheduler.get_batch()
                await lab.until(lambda: scheduler.status().n_complete >= 2)
                for _ in range(3):
                    await scheduler.publish()
            batch = await scheduler.get_batch()
            assert (batch.number, batch.version) == (3, 9)
            assert int(batch.batch.staleness.max()) <= 1
            assert scheduler.status().dropped[Fate.STALE] > 0

    play(url, main)


def test_a_full_buffer_holds_new_groups_until_a_batch_is_taken(url: str):
    async def main(lab: Lab) -> None:
        config = config_of(n_groups=8, max_staleness="unbounded", async_generation_ratio=5.0, max_buffer_bytes=10)
        async with lab.training(config, n_workers=1, slots=2) as scheduler:
            await lab.until(lambda: scheduler.status().n_bytes > 0)
            n_open = (await lab.store.query_groups("train", limit=0)).total
            await lab.sleep(1.0)
            status = scheduler.status()
            assert status.n_bytes > config.max_buffer_bytes
            assert (await lab.store.query_groups("train", limit=0)).total == n_open
            for number in range(8):  # more than what was open when the buffer became full
                assert (await scheduler.get_batch()).number == number
                await scheduler.publish()

    play(url, main)
