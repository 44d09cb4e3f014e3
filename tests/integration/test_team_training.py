"""Training a team of two policies: real workers, a scheduler, and a stream of batches for each policy."""

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from pyarrow import parquet

from conversations import trajectory_of
from outrider import local_workers, open_store
from outrider.core.chat import assistant, user
from outrider.core.errors import InvalidInput
from outrider.core.event import EventKind
from outrider.core.published import PublishedPolicy, published_in
from outrider.core.status import Mode
from outrider.core.task import Task
from outrider.core.trajectory import Trajectory
from outrider.core.turn import CallRecord, TurnRecord
from outrider.env.registry import environments_of
from outrider.orchestra import Agent, Boxed, Orchestra, Team, VerdictRule
from outrider.store import Store
from outrider.testing import LoopClock, eventually, run_virtual
from outrider.train import AdvantageRule, Batch, RolloutScheduler, SampledTrajectory, SchedulerConfig, Served
from outrider.train.atif import write_atif
from outrider.train.atif_reading import read_atif
from outrider.train.config import EnvManagerConfig
from outrider.train.export import exported, read_jsonl, write_jsonl
from outrider.train.parquet import read_parquet, write_parquet
from outrider.train.scheduler import NEXT_KEY
from playing import draw
from speaking import TokenSpeaker, team_kit
from training import config_of

TASKS = [Task(task_id=f"sum-{n}", question=f"What is {n} + 1?", answer=str(n + 1)) for n in range(3)]
BY_AGENT = AdvantageRule(key="group+agent")


async def play_rounds(team: Team) -> str:
    """Solver and verifier, at most two rounds."""
    for _ in team.rounds(2):
        solution = await team.call("solver")
        team.approve(await team.call("verifier"))
    return solution.text


def team() -> Orchestra:
    agents = [
        Agent(name="solver", prompt="{question} {context}", parse=Boxed()),
        Agent(name="verifier", prompt="Judge {context}", parse=VerdictRule(), policy="verifier"),
    ]
    return Orchestra(agents, play_rounds)


def solves(prompt: str, seed: int) -> str:
    number = int(prompt.split()[2]) + draw("solve", seed).choice([1, 1, 2])
    return rf"\boxed{{{number}}}"


def verifies(prompt: str, seed: int) -> str:
    return f"<verify>{draw('verify', seed).choice(['yes', 'no'])}</verify>"


class Players(dict[str, TokenSpeaker]):
    """Both policies, each as slow as chance will have it."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        super().__init__({name: TokenSpeaker(says, lambda _: rng.random()) for name, says in
                          (("", solves), ("verifier", verifies))})  # fmt: skip


def train(n_steps: int, *, n_workers: int = 1, seed: int = 0, **settings: Any) -> tuple[list[Batch], Players]:
    """So many steps, in each of which both policies get a new version."""
    players = Players(seed)
    config = config_of(tags=("math",), advantages=BY_AGENT, **settings)

    async def main() -> list[Batch]:
        clock = LoopClock()
        kit = team_kit(team(), players, {"math": environments_of("math")})
        batches = []
        async with (
            open_store("memory://", clock=clock) as store,
            local_workers(store, kit, n_workers=n_workers, max_env_num_per_worker=4, clock=clock),
            RolloutScheduler(store, config, tasks={"math": TASKS}, clock=clock) as scheduler,
        ):
            for _ in range(n_steps):
                batches.append((await scheduler.get_batch()).batch)
                version = await scheduler.publish()
                for player in players.values():
                    player.version = version
        return batches

    return run_virtual(main(), limit_seconds=10_000), players


def test_each_policy_of_a_team_gets_a_stream_of_its_rows_with_its_versions():
    batches, _ = train(4)
    assert {frozenset(batch.policies) for batch in batches} == {frozenset(("", "verifier"))}
    verdicts = set()
    for number, batch in enumerate(batches):
        assert len(batch.groups) == 2
        for name, agent in (("", "solver"), ("verifier", "verifier")):
            stream = batch.by_policy()[name]
            assert stream.agents == (agent,)
            assert {row.policy for row in stream.rows} == {name}
            arrays = stream.to_numpy()
            assert set(np.unique(arrays["versions"])) == {-1, number}, "synchronous: all by the version trained next"
            assert arrays["loss_mask"].sum() == stream.token_accounting().generated > 0
            assert stream.report.n_unused == 0
            verdicts |= {call.verdict for row in stream.rows for call in row.calls}
        assert sum(len(stream.rows) for stream in batch.by_policy().values()) == len(batch.rows)
    assert verdicts == {"", "approve", "reject"}
    assert any(batch.to_numpy()["row_advantage"].any() for batch in batches)


def test_rows_know_what_their_call_read_and_how_the_episode_ended():
    (batch,), _ = train(1, batch_groups=4)
    second = next(row for row in batch.rows if row.calls[0].id == "verifier.1.0")
    assert second.calls[0].reads == ("solver.0.0", "verifier.0.0", "solver.1.0")
    assert (second.agent, second.round, second.stop_reason) == ("verifier", 1, "terminated")
    assert batch.rule == BY_AGENT, "as the configuration says"


def samples(batches: list[Batch]) -> list[SampledTrajectory]:
    return sorted((one for batch in batches for one in batch.trajectories), key=lambda one: one.rollout_id)


def test_rows_are_the_same_with_one_worker_and_with_three():
    one, _ = train(3, n_workers=1, seed=1)
    three, _ = train(3, n_workers=3, seed=2)
    assert samples(one) == samples(three)
    assert len({one.rollout_id for one in samples(one)}) == 12


def test_ahead_of_the_trainer_no_token_of_either_policy_is_too_old():
    batches, _ = train(6, n_workers=2, async_generation_ratio=1.0, n_groups=6)
    ages = set()
    for batch in batches:
        for stream in batch.by_policy().values():
            staleness = stream.to_numpy()["staleness"]
            assert 0 <= staleness.min() <= staleness.max() <= 1
            ages |= set(np.unique(staleness))
    assert ages == {0, 1}


CRITIC = Served(model="critic-1", base_urls=("http://critic",))


async def published(store: Store) -> PublishedPolicy:
    resources = await store.get_latest_resources()
    assert resources is not None
    found = published_in(resources.resources)
    assert found is not None
    return found


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'runs.db'}"


CONFIG = SchedulerConfig()


async def test_where_further_policies_are_served_is_published_kept_and_known_to_the_next_scheduler(url: str):
    async with open_store(url) as store:
        async with RolloutScheduler(store, CONFIG) as scheduler:
            await scheduler.publish(policies={"critic": CRITIC})
            assert (await published(store)).further == {"critic": CRITIC}
            await scheduler.publish(model="own-2", policies={"critic": Served(model="critic-2")})
            moved = await published(store)
            assert (moved.version, moved.model) == (2, "own-2")
            assert moved.further == {"critic": Served(model="critic-2", base_urls=("http://critic",))}
            await scheduler.pause()
            assert (await published(store)).further == moved.further
            await scheduler.publish()
            assert (await published(store)).paused
            await scheduler.resume()
        async with RolloutScheduler(store, CONFIG) as scheduler:
            assert await published(store) == replace(moved, version=3)
            with pytest.raises(InvalidInput, match="policies has one without a name"):
                await scheduler.publish(policies={"": CRITIC})
            assert await scheduler.publish() == 4


async def test_a_policy_published_by_one_who_died_before_telling_is_told_by_the_next(url: str):
    async with open_store(url) as store:
        async with RolloutScheduler(store, CONFIG) as scheduler:
            await scheduler.publish()
            before = await store.get_latest_resources()
            await scheduler.publish(policies={"critic": CRITIC})
            after = await store.get_latest_resources()
        assert before is not None
        assert after is not None
        assert msgspec.convert(after.resources[NEXT_KEY], PublishedPolicy).further == {"critic": CRITIC}
        await store.put_resources({**before.resources, NEXT_KEY: after.resources[NEXT_KEY]})
        async with RolloutScheduler(store, CONFIG):
            found = await published(store)
            assert (found.version, found.further) == (2, {"critic": CRITIC})


async def test_publishing_waits_for_a_validation_unless_every_policy_moves():
    config = SchedulerConfig(val_env_manager=EnvManagerConfig(num_env_groups=1))
    async with open_store("memory://") as store, RolloutScheduler(store, config) as scheduler:
        await scheduler.publish(model="own-1", policies={"critic": CRITIC})
        validating = asyncio.create_task(scheduler.validate())

        async def has_begun() -> bool:
            return (await store.query_rollouts(mode=Mode.VAL)).total > 0

        await eventually(has_begun)
        waiting = asyncio.create_task(scheduler.publish(model="own-2"))
        await asyncio.wait([waiting], timeout=0.1)
        assert not waiting.done(), "the critic that is validated is about to be replaced where it is"
        assert await scheduler.publish(model="own-2", policies={"critic": Served(model="critic-2")}) == 2
        validating.cancel()
        assert await waiting == 3


def test_a_name_that_no_sample_has_is_warned_of(caplog: pytest.LogCaptureFixture):
    async def main() -> None:
        clock = LoopClock()
        kit = team_kit(team(), Players(0), {"math": environments_of("math")})
        async with (
            open_store("memory://", clock=clock) as store,
            local_workers(store, kit, max_env_num_per_worker=4, clock=clock),
            RolloutScheduler(store, config_of(tags=("math",)), tasks={"math": TASKS}, clock=clock) as scheduler,
        ):
            await scheduler.get_batch()
            await scheduler.publish(policies={"verifier": Served(model="v")})
            assert not caplog.records
            await scheduler.publish(policies={"verifer": Served(model="v")})

    run_virtual(main(), limit_seconds=10_000)
    assert "policy 'verifer' is published, and no sample so far is by it" in caplog.text


@pytest.mark.parametrize(("write", "read"), [(write_jsonl, read_jsonl), (write_parquet, read_parquet)])
def test_calls_come_back_from_files(tmp_path: Path, write: Any, read: Any):
    (batch,), _ = train(1)
    write(batch, tmp_path / "rows")
    assert list(read(tmp_path / "rows")) == list(exported(batch))
    judged = batch.by_policy()["verifier"]
    write(judged, tmp_path / "rows")
    assert [each.sample for each in read(tmp_path / "rows")] == list(judged.rows)


@pytest.mark.parametrize(("write", "read"), [(write_jsonl, read_jsonl), (write_parquet, read_parquet)])
def test_files_from_before_there_were_calls_are_read(tmp_path: Path, write: Any, read: Any):
    (batch,), _ = train(1)
    path = tmp_path / "rows"
    write(batch, path)
    if write is write_jsonl:
        path.write_text(path.read_text().replace('"calls":', '"unknown":'))
    else:
        parquet.write_table(parquet.read_table(path).drop_columns(["calls"]), path)
    assert {each.sample.calls for each in read(path)} == {()}


def test_calls_stand_in_a_document_and_come_back(tmp_path: Path):
    call = CallRecord(id="a.0.0", agent="a", order=(1,), policy="p", reads=("b.0.0",))
    record = TurnRecord(kept=0, added=(user("?"),), reply=assistant("!"), call=call)
    whole = trajectory_of(("a", record))
    write_atif(Trajectory(rollout=whole.rollout, attempt=None, events=whole.events), tmp_path / "a.json")
    back = read_atif(tmp_path / "a.json")
    assert [turn.record.call for turn in back.turns] == [call]
    assert all(event.kind is EventKind.TURN for event in whole.events)
