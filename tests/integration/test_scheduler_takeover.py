"""One ledger, one scheduler after the other: taking over, going on after a stop, going on after a kill."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.core.errors import InvalidInput, LedgerLost
from outrider.core.ledger import GroupState
from outrider.core.published import published_in
from outrider.core.status import LIVE, QUEUED
from outrider.store import Store
from outrider.train.filters import GroupResult
from outrider.train.scheduler import RolloutScheduler
from training import Lab, config_of, members_of, numbers_of, play

AHEAD: dict[str, Any] = {"async_generation_ratio": 1.0, "max_staleness": 2}


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'runs.db'}"


async def states_of(store: Store) -> dict[int, GroupState]:
    return {entry.number: entry.state for entry in await store.query_groups("train")}


async def published_by(store: Store) -> Any:
    resources = await store.get_latest_resources()
    return None if resources is None else (resources.version, published_in(resources.resources))


Act = Callable[[RolloutScheduler], Any]


def test_a_scheduler_whose_ledger_was_taken_over_is_refused_and_changes_nothing(url: str):
    async def main(lab: Lab) -> None:
        config = config_of(**AHEAD)
        acts: list[Act] = [lambda one: one.publish(), lambda one: one.pause(), lambda one: one.get_batch(timeout=20)]
        for act in acts:
            async with lab.workers():
                first = lab.scheduler(config, name="shared")
                await first.start()
                batch = await first.get_batch()
                async with lab.scheduler(config, name="shared") as second:
                    assert members_of(await second.get_batch()) == members_of(batch)
                    before = await published_by(lab.store)
                    with pytest.raises(LedgerLost, match="taken over"):
                        await act(first)
                    for late in acts:
                        with pytest.raises(LedgerLost):
                            await late(first)
                    assert await published_by(lab.store) == before
                    assert await second.publish() == batch.version + 1
                    assert (await second.get_batch()).number == batch.number + 1
                    await second.publish()
                await first.stop()

    play(url, main)


def test_what_was_begun_otherwise_is_not_gone_on_with(url: str):
    async def main(lab: Lab) -> None:
        async with lab.scheduler(config_of(seed=1)):
            pass
        for other, named in ((config_of(seed=2), "seed 1"), (config_of(seed=1, group_size=4), "group_size 2")):
            with pytest.raises(InvalidInput, match=f"was begun with {named}"):
                await lab.scheduler(other).start()
        async with lab.scheduler(config_of(seed=2), name="another"):
            pass

    play(url, main)


def test_what_was_open_when_a_scheduler_stopped_is_gone_on_with_by_the_next_one(url: str):
    async def main(lab: Lab) -> None:
        config = config_of(n_groups=6, redundancy=1, **AHEAD)
        delivered: list[int] = []
        async with lab.workers():
            for number in range(6):
                async with lab.scheduler(config) as scheduler:
                    batch = await scheduler.get_batch()
                    assert (batch.number, batch.version) == (number, number)
                    assert int(batch.batch.staleness.max()) <= 2
                    delivered += numbers_of(batch)
                    before = set(await states_of(lab.store))
                    await scheduler.publish()
                    assert set(await states_of(lab.store)) - before == set() or number < 6
        states = await states_of(lab.store)
        assert GroupState.DROPPED not in states.values()
        assert sorted(states) == list(range(len(states)))
        assert len(states) <= len(delivered) + 4, "none was opened in place of one that was open already"

    play(url, main)


@pytest.mark.parametrize(("ratio", "bound"), [(0.0, 0), (1.0, 1)])
def test_nothing_is_begun_too_early_while_a_batch_has_to_come_again(url: str, ratio: float, bound: int):
    async def main(lab: Lab) -> None:
        config = config_of(n_groups=6, async_generation_ratio=ratio, max_staleness=bound)
        async with lab.workers():
            for number in range(4):
                async with lab.scheduler(config) as scheduler:
                    first = await scheduler.get_batch()
                async with lab.scheduler(config) as scheduler:
                    await lab.sleep(0.3)
                    again = await scheduler.get_batch()
                    assert (again.number, members_of(again)) == (number, members_of(first))
                    assert int(again.batch.staleness.max()) <= bound
                    await lab.sleep(0.1)
                    await scheduler.publish()
                    assert not scheduler.status().dropped
        assert GroupState.DROPPED not in (await states_of(lab.store)).values(), "what was begun can be trained on"

    play(url, main)


class KilledHere(Exception): ...


class Dying:
    """A store as seen by a process that is killed in the n-th of its calls of one name."""

    def __init__(self, store: Store, name: str, n: int) -> None:
        self._store = store
        self._name = name
        self._n = n

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            self._n -= 1
        return self._die if self._n <= 0 else getattr(self._store, name)

    async def _die(self, *_: Any, **__: Any) -> None:
        raise KilledHere


@pytest.mark.parametrize(
    ("call", "n", "is_published"), [("put_resources", 1, False), ("write_ledger", 1, False), ("put_resources", 2, True)]
)
def test_whoever_dies_while_publishing_has_published_all_or_nothing(url: str, call: str, n: int, is_published: bool):
    async def main(lab: Lab) -> None:
        config = config_of(redundancy=1, async_generation_ratio=1.0)
        async with lab.workers():
            first = lab.scheduler(config)
            await first.start()
            for _ in range(3):
                await first.get_batch()
                await lab.until(lambda: first.status().n_complete >= 2)
                await first.publish()
            batch = await first.get_batch()
            await lab.until(lambda: first.status().n_complete >= 2)
            first._store = first._driver._store = Dying(lab.store, call, n)  # type: ignore[union-attr]
            with pytest.raises(KilledHere):
                await first.publish(model="another")
            await first.stop()
            async with lab.scheduler(config) as second:
                again = await second.get_batch()
                assert (again.number, again.version) == ((4, 4) if is_published else (3, 3))
                assert is_published or members_of(again) == members_of(batch)
                assert int(again.batch.staleness.max()) <= 1, "even of one that comes again"
                _, published = await published_by(lab.store)
                assert (published.version, published.model) == ((4, "another") if is_published else (3, None))
                for _ in range(3):
                    await second.publish()
                    assert int((await second.get_batch()).batch.staleness.max()) <= 1

    play(url, main)


def by_number(group: GroupResult) -> bool:
    return group.group_id == "train-0"


def test_members_that_a_killed_scheduler_did_not_come_to_cancel_are_cancelled_by_the_next_one(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    """They would wait for leave to begin in all slots, and nobody would ever give it."""
    monkeypatch.setitem(sys.modules, "some_filters", SimpleNamespace(by_number=by_number))

    async def main(lab: Lab) -> None:
        config = config_of(group_size=1, redundancy=3, filters=("some_filters:by_number",))
        async with lab.workers(n_workers=1, slots=2):
            first = RolloutScheduler(Dying(lab.store, "cancel_rollouts", 1), config, clock=lab.clock)
            await first.start()
            with pytest.raises(KilledHere):
                await first.get_batch()
            await first.stop()
            async with lab.scheduler(config) as second:
                for _ in range(3):
                    await second.get_batch()
                    await second.publish()
        left = await lab.store.query_rollouts(group_id="train-0", status_in=QUEUED | LIVE)
        assert not left.items

    play(url, main)
