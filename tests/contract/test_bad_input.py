"""Bad input raises `InvalidInput` and changes nothing; odd but good input comes back as it was given."""

import asyncio
import enum
from collections.abc import Awaitable, Callable
from datetime import date
from typing import Any

import pytest

from outrider.core.attempt import Failure
from outrider.core.errors import Boundary, InvalidInput
from outrider.core.event import Event, EventKind
from outrider.core.rollout import AttemptedRollout, RolloutConfig, RolloutRequest
from outrider.store import Store
from store_moves import AT, enqueue_and_claim, everything, finish, log, the

Call = Callable[[Store, AttemptedRollout], Awaitable[Any]]


class Colour(enum.Enum):
    RED = 1


BAD_VALUES = {
    "set": {1, 2},
    "object": object(),
    "too large": 2**70,
    "half a character": "\ud800",
    "half a character as key": {"\ud800": 1},
    "date": date(2026, 1, 1),
    "set inside": {"a": [(1, {2})]},
    "enum": Colour.RED,
    "error": ValueError("x"),
}
BAD_IDS = {
    "empty": "",
    "NUL": "a\0b",
    "half a character": "a\udcff",
    "too long": "x" * 513,
    "too long in bytes": "ü" * 257,
    "number": 5,
    "bytes": b"a",
}
GOOD_IDS = [
    "a'b",
    'a"; DROP TABLE rollouts; --',
    "%s {0} $1 :x ?1 \\",
    "line\nbreak\ttab",
    "日本語 🚀 é",
    " ",
    "x" * 512,
    "a/b",
    "NULL",
    "0",
]


def _enqueue(**fields: Any) -> Call:
    return lambda store, _: store.enqueue_rollout(**{"input": 1, **fields})


def _many(**fields: Any) -> Call:
    request = RolloutRequest(**{"input": 1, **fields})
    return lambda store, _: store.enqueue_many_rollouts([RolloutRequest(input=0), request])


def _start(**fields: Any) -> Call:
    return lambda store, _: store.start_rollout(**{"input": 1, "worker_id": "w", **fields})


def _claim(**fields: Any) -> Call:
    return lambda store, _: store.dequeue_many_rollouts(**{"limit": 1, "worker_id": "w", **fields})


def _report(**fields: Any) -> Call:
    return lambda store, claimed: store.update_attempt(
        **{"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id, **fields}
    )


def _append(event: Any, **fields: Any) -> Call:
    return lambda store, claimed: store.append_events(
        claimed.rollout_id, claimed.attempt.attempt_id, [log("good"), event], **fields
    )


def _failure(**fields: Any) -> Failure:
    return Failure(**{"boundary": Boundary.ENV, "kind": "K", "message": "m", **fields})


REFUSED: dict[str, Call] = {
    **{f"input: {name}": _enqueue(input=value) for name, value in BAD_VALUES.items()},
    **{f"metadata: {name}": _enqueue(metadata={"k": value}) for name, value in BAD_VALUES.items()},
    **{f"rollout_id: {name}": _enqueue(rollout_id=id) for name, id in BAD_IDS.items()},
    **{f"tag: {name}": _enqueue(tag=id) for name, id in BAD_IDS.items()},
    **{f"group_id: {name}": _enqueue(group_id=id) for name, id in BAD_IDS.items()},
    "mode": _enqueue(mode="training"),
    "seed too large": _enqueue(seed=2**63),
    "seed of text": _enqueue(seed=""),
    "seed of a fraction": _enqueue(seed=0.0),
    "priority too large": _enqueue(priority=2**31),
    "priority of a flag": _enqueue(priority=True),
    "metadata of text": _enqueue(metadata="abc"),
    "config of a dict": _enqueue(config={"max_attempts": 1}),
    "mode among many": _many(mode="training"),
    "config among many": _many(config=None),
    "metadata among many": _many(metadata=[1]),
    "input among many": _many(input={1}),
    "start without such a field": _start(colour="red"),
    "start with a bad id": _start(rollout_id=""),
    "start with a bad worker": _start(worker_id="\0"),
    "limit of 0": _claim(limit=0),
    "limit below 0": _claim(limit=-1),
    "limit too large": _claim(limit=2**70),
    "limit of a fraction": _claim(limit=1.5),
    "tags of text": _claim(tags="abc"),
    "tags with a number": _claim(tags=[5]),
    "tags with half a character": _claim(tags=["\ud800"]),
    "claim mode": _claim(mode="bogus"),
    **{f"worker_id: {name}": _claim(worker_id=id) for name, id in BAD_IDS.items() if isinstance(id, str)},
    **{f"request_id: {name}": _claim(request_id=id) for name, id in BAD_IDS.items()},
    "reward NaN": _report(status="succeeded", reward=float("nan")),
    "reward infinite": _report(status="succeeded", reward=float("inf")),
    "reward of text": _report(status="succeeded", reward="high"),
    "reward too large": _report(status="succeeded", reward=10**400),
    "status unknown": _report(status="done"),
    "status preparing": _report(status="preparing"),
    "status unresponsive": _report(status="unresponsive"),
    "error of text": _report(status="failed", error="boom"),
    "error with half a character": _report(status="failed", error=_failure(message="\ud800")),
    "error of no boundary": _report(status="failed", error=_failure(boundary="moon")),
    "report by a bad worker": _report(worker_id=""),
    **{f"report on rollout_id: {name}": _report(rollout_id=id) for name, id in BAD_IDS.items()},
    **{f"report on attempt_id: {name}": _report(attempt_id=id) for name, id in BAD_IDS.items()},
    **{f"event: {name}": _append(log(value=value)) for name, value in BAD_VALUES.items()},
    "event of no kind": _append(Event(kind="bang", at=AT)),
    "event at no time": _append(Event(kind=EventKind.LOG, at="now")),
    "event with a bad name": _append(log("\ud800")),
    "event with NUL": _append(log("a\0")),
    "event of data that is no mapping": _append(Event(kind=EventKind.LOG, at=AT, data=[1])),
    "event that is none": _append({"kind": "log"}),
    "first_index below 0": _append(log(), first_index=-1),
    "first_index too large": _append(log(), first_index=2**40),
    "heartbeat of text": lambda store, claimed: store.heartbeat("w", claimed.attempt.attempt_id),
    "heartbeat with a bad id": lambda store, _: store.heartbeat("w", ["\0"]),
    "heartbeat by a bad worker": lambda store, _: store.heartbeat(""),
    "revoke of a bad worker": lambda store, _: store.revoke_leases("", reason="x"),
    "cancel of text": lambda store, claimed: store.cancel_rollouts(claimed.rollout_id),
    "cancel of a bad id": lambda store, claimed: store.cancel_rollouts([claimed.rollout_id, "\ud800"]),
    "get by a bad id": lambda store, _: store.get_rollout_by_id("\0"),
    "latest attempt of a bad id": lambda store, _: store.get_latest_attempt("\ud800"),
    "attempts of a bad id": lambda store, _: store.query_attempts("\0"),
    "events of a bad id": lambda store, _: store.query_events("\ud800"),
    "events of a bad attempt": lambda store, claimed: store.query_events(claimed.rollout_id, attempt_id="\0"),
    "events of no kind": lambda store, claimed: store.query_events(claimed.rollout_id, kind="bang"),
    "query limit": lambda store, _: store.query_rollouts(limit=-2),
    "query limit too large": lambda store, _: store.query_rollouts(limit=2**70),
    "query offset": lambda store, _: store.query_rollouts(offset=-1),
    "query status": lambda store, _: store.query_rollouts(status="done"),
    "query status of text": lambda store, _: store.query_rollouts(status_in="failed"),
    "query mode": lambda store, _: store.query_rollouts(mode="bogus"),
    "query sort": lambda store, _: store.query_rollouts(sort_by="seq; DROP TABLE rollouts"),
    "query tag": lambda store, _: store.query_rollouts(tag="\0"),
    "query group": lambda store, _: store.query_rollouts(group_id="\ud800"),
    "query ids of text": lambda store, claimed: store.query_rollouts(rollout_ids=claimed.rollout_id),
    "query attempts limit": lambda store, claimed: store.query_attempts(claimed.rollout_id, limit=-2),
    "query workers status": lambda store, _: store.query_workers(status="asleep"),
    "query workers limit": lambda store, _: store.query_workers(offset=-1),
    "feed cursor": lambda store, _: store.finished_after(-1),
    "feed cursor too large": lambda store, _: store.finished_after(2**70),
    "feed limit": lambda store, _: store.finished_after(limit=0),
    "wait for a bad id": lambda store, _: store.wait_for_rollouts(["\0"], timeout=60),
    "wait for text": lambda store, claimed: store.wait_for_rollouts(claimed.rollout_id, timeout=60),
    "resources": lambda store, _: store.put_resources({"a": {1}}),
    "resources of text": lambda store, _: store.put_resources("abc"),
}


async def _refusal(call: Awaitable[object]) -> str:
    """Why it was refused; nothing if it was not."""
    try:
        await asyncio.wait_for(call, 30)
    except InvalidInput as exc:
        return str(exc)
    return ""


async def test_bad_input_is_refused_and_changes_nothing(store: Store):
    claimed = await enqueue_and_claim(store, "claimed")
    await store.enqueue_rollout("waiting")
    before = await everything(store)
    for name, call in REFUSED.items():
        refusal = await _refusal(call(store, claimed))
        assert refusal, f"{name} was taken"
        assert refusal.isprintable(), name
        assert await everything(store) == before, name
    assert await store.get_latest_resources() is None
    assert (await finish(store, claimed, reward=1.0)).reward == 1.0


@pytest.mark.parametrize("id", GOOD_IDS)
async def test_odd_but_good_text_works_everywhere(store: Store, id: str):
    rollout = await store.enqueue_rollout({id: id}, rollout_id=id, tag=id, group_id=id, metadata={id: id})
    assert (rollout.rollout_id, rollout.input, rollout.metadata) == (id, {id: id}, {id: id})
    claimed = await store.dequeue_rollout(worker_id=id, tags=[id], request_id=id)
    assert claimed is not None
    assert await store.dequeue_rollout(worker_id=id, tags=[id], request_id=id) == claimed
    failure = Failure(boundary=Boundary.AGENT, kind=id, message=id, stage=id, traceback=id)
    events = [Event(kind=EventKind.LOG, at=AT, name=id, data={id: id})]
    await finish(store, claimed, "failed", error=failure, events=events)
    assert await the(store, id) == (await store.query_rollouts(tag=id, group_id=id, rollout_ids=[id]))[0]
    assert (await the(store, id)).failure == failure
    assert [(event.name, event.data) for event in await store.query_events(id)] == [(id, {id: id})]
    assert [worker.worker_id for worker in await store.query_workers()] == [id]
    assert await store.cancel_rollouts([id]) == (id,)


async def test_ten_megabytes_of_input_come_back_whole(store: Store):
    text, data = "é" * 5_000_000, bytes(range(256)) * 40_000
    await store.enqueue_rollout({"text": text, "data": data}, rollout_id="big")
    claimed = await store.dequeue_rollout(worker_id="w")
    assert claimed is not None
    assert claimed.input == {"text": text, "data": data}
    await finish(store, claimed, events=[log(output=text)])
    assert (await store.query_events("big"))[0].data == {"output": text}


async def test_numbers_come_back_exactly(store: Store):
    numbers = [0, -1, 2**63, 2**64 - 1, -(2**63), 0.1, 1e308, -0.0, float("inf")]
    await store.enqueue_rollout(numbers, rollout_id="n", seed=-(2**63), priority=-(2**31))
    found = await the(store, "n")
    assert repr(found.input) == repr(numbers)
    assert (found.seed, found.priority) == (-(2**63), -(2**31))


def test_a_configuration_that_cannot_work_is_refused():
    bad: list[dict[str, Any]] = [
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"timeout_seconds": 0},
        {"timeout_seconds": float("nan")},
        {"timeout_seconds": "60"},
        {"unresponsive_seconds": float("inf")},
        {"unresponsive_seconds": -1},
        {"unresponsive_seconds": None},
        {"retry_condition": {"succeeded"}},
        {"retry_condition": "failed"},
    ]
    for fields in bad:
        with pytest.raises(InvalidInput):
            RolloutConfig(**fields)
