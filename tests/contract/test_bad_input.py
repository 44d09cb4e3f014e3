"""Bad input raises `InvalidInput` and changes nothing; odd but good input comes back as it was given."""

import asyncio
import enum
import inspect
from collections.abc import Awaitable, Callable
from datetime import date
from typing import Any

import pytest

from outrider.core.account import Account
from outrider.core.attempt import Failure
from outrider.core.errors import Boundary, InvalidInput
from outrider.core.event import Event, EventKind
from outrider.core.ledger import Ledger, LedgerWrite
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


NOT_TEXT = (5, 2.5, b"a", ["a"], {"a": 1}, object(), "", "\0", "\ud800", "x" * 513)
NOT_WORKER = (2.5, b"a", ["a"], object(), True, None, "", "\0")
NOT_WHOLE = ("1", 1.5, float("nan"), [1], object(), True, 2**70, -(2**70))
NOT_SECONDS = ("1", float("nan"), [1], object(), True, 2**70, 1e12, 10**400)
NOT_MAPPING = ("abc", 5, [1], object())
NOT_SEVERAL = (5, 2.5, "abc", b"abc", object(), [5], [None], ["\0"])
NOT_A_FLAG = ("yes", 1, [], object())
NOT_A_STATE = ("asleep", 5, b"failed", [], object())
NOT_OURS = ("abc", 5, {"a": 1}, object())

WRONG: dict[str, dict[str, tuple[object, ...]]] = {
    "enqueue_rollout": {
        "rollout_id": NOT_TEXT,
        "mode": NOT_A_STATE,
        "tag": NOT_TEXT,
        "seed": NOT_WHOLE,
        "group_id": NOT_TEXT,
        "priority": (*NOT_WHOLE, 2**40),
        "config": NOT_OURS,
        "metadata": NOT_MAPPING,
    },
    "enqueue_many_rollouts": {"requests": (None, 5, "abc", {"a": 1}, [5], [None], ["abc"], [{"input": 1}])},
    "start_rollout": {"worker_id": NOT_WORKER, "config": NOT_OURS, "seed": NOT_WHOLE, "mode": NOT_A_STATE},
    "dequeue_rollout": {
        "worker_id": NOT_WORKER,
        "wait": (None, *NOT_SECONDS),
        "tags": NOT_SEVERAL,
        "mode": NOT_A_STATE,
        "request_id": NOT_TEXT,
    },
    "dequeue_many_rollouts": {
        "isolated": (None, 1, "yes", object()),
        "limit": (None, 0, -1, *NOT_WHOLE),
        "worker_id": NOT_WORKER,
        "wait": (None, *NOT_SECONDS),
        "tags": NOT_SEVERAL,
        "mode": NOT_A_STATE,
        "request_id": NOT_TEXT,
    },
    "update_rollout": {
        "rollout_id": (None, *NOT_TEXT),
        "input": (object(),),
        "mode": NOT_A_STATE,
        "tag": NOT_TEXT,
        "seed": NOT_WHOLE,
        "priority": (None, *NOT_WHOLE, 2**40),
        "config": (None, *NOT_OURS),
        "metadata": (None, *NOT_MAPPING),
    },
    "update_attempt": {
        "rollout_id": (None, *NOT_TEXT),
        "attempt_id": (None, *NOT_TEXT),
        "status": NOT_A_STATE,
        "worker_id": [worker for worker in NOT_WORKER if worker is not None],
        "reward": ("1", float("nan"), float("inf"), [1], object(), 10**400),
        "error": NOT_OURS,
        "events": (None, 5, "abc", {"a": 1}, [5], [{"kind": "log"}]),
        "first_index": (-1, *NOT_WHOLE),
        "account": NOT_OURS,
        "metadata": (*NOT_MAPPING, {"big": "x" * (1 << 16)}),
    },
    "append_events": {
        "rollout_id": (None, *NOT_TEXT),
        "attempt_id": (None, *NOT_TEXT),
        "events": (None, 5, "abc", {"a": 1}, [5], [{"kind": "log"}]),
        "first_index": (-1, *NOT_WHOLE),
    },
    "heartbeat": {
        "worker_id": NOT_WORKER,
        "attempt_ids": (None, *NOT_SEVERAL),
        "wait": (None, *NOT_SECONDS),
        "stats": (*NOT_MAPPING, {"big": "x" * (1 << 16)}),
    },
    "revoke_leases": {
        "worker_id": NOT_WORKER,
        "reason": (None, 5, b"a", object(), "\0", "\ud800"),
        "how": (None, 5, b"lost", "nowhere", object()),
    },
    "cancel_rollouts": {"rollout_ids": (None, *NOT_SEVERAL)},
    "get_rollout_by_id": {"rollout_id": (None, *NOT_TEXT)},
    "get_latest_attempt": {"rollout_id": (None, *NOT_TEXT)},
    "query_rollouts": {
        "status": NOT_A_STATE,
        "status_in": NOT_SEVERAL,
        "mode": NOT_A_STATE,
        "tag": NOT_TEXT,
        "group_id": NOT_TEXT,
        "rollout_ids": NOT_SEVERAL,
        "sort_by": (None, "seq", 5, [], object()),
        "descending": (None, *NOT_A_FLAG),
        "limit": (None, -2, *NOT_WHOLE),
        "offset": (None, -1, *NOT_WHOLE),
    },
    "query_attempts": {
        "rollout_id": (None, *NOT_TEXT),
        "limit": (None, -2, *NOT_WHOLE),
        "offset": (None, -1, *NOT_WHOLE),
    },
    "query_workers": {"status": NOT_A_STATE, "limit": (None, -2, *NOT_WHOLE), "offset": (None, -1, *NOT_WHOLE)},
    "query_events": {
        "rollout_id": (None, *NOT_TEXT),
        "attempt_id": NOT_TEXT,
        "kind": NOT_A_STATE,
        "limit": (None, -2, *NOT_WHOLE),
        "offset": (None, -1, *NOT_WHOLE),
    },
    "wait_for_rollouts": {"rollout_ids": (None, *NOT_SEVERAL), "timeout": NOT_SECONDS},
    "finished_after": {
        "cursor": (None, -1, *NOT_WHOLE),
        "limit": (None, 0, *NOT_WHOLE),
        "wait": (None, *NOT_SECONDS),
    },
    "put_resources": {"resources": (None, *NOT_MAPPING), "resources_id": (None, *NOT_TEXT)},
    "get_latest_resources": {
        "resources_id": (None, *NOT_TEXT),
        "after": (None, -1, *NOT_WHOLE),
        "wait": (None, *NOT_SECONDS),
    },
    "get_resources": {"version": (0, -1, *NOT_WHOLE)},
    "query_resources": {
        "resources_id": NOT_TEXT,
        "descending": (None, *NOT_A_FLAG),
        "limit": (None, -2, *NOT_WHOLE),
        "offset": (None, -1, *NOT_WHOLE),
    },
    "open_ledger": {"name": (None, *NOT_TEXT), "settings": NOT_MAPPING},
    "write_ledger": {"ledger": (None, *NOT_OURS), "write": (None, *NOT_OURS)},
    "query_groups": {
        "ledger": (None, *NOT_TEXT),
        "states": NOT_SEVERAL,
        "batch": NOT_WHOLE,
        "group_ids": NOT_SEVERAL,
        "limit": (None, -2, *NOT_WHOLE),
        "offset": (None, -1, *NOT_WHOLE),
    },
    "count_groups": {"ledger": (None, *NOT_TEXT)},
    "ask_to_begin": {"asks": (None, 5, "abc", object(), [5], ["abc"], [("a",)], [("a", 5)], [("a", "\0")])},
    "asks_after": {
        "ledger": (None, *NOT_TEXT),
        "cursor": (None, -1, *NOT_WHOLE),
        "limit": (None, 0, *NOT_WHOLE),
        "wait": (None, *NOT_SECONDS),
    },
    "grants": {"attempt_ids": (None, *NOT_SEVERAL), "wait": (None, *NOT_SECONDS)},
    "leave_account": {"rollout_id": (None, *NOT_TEXT), "attempt_id": (None, *NOT_TEXT), "account": (None, *NOT_OURS)},
    "query_accounts": {"rollout_ids": (None, *NOT_SEVERAL)},
    "late_accounts": {"ledger": (None, *NOT_TEXT), "limit": (None, 0, *NOT_WHOLE)},
    "tally": {"ledger": (None, *NOT_TEXT)},
    "query_progress": {"ledger": (None, *NOT_TEXT)},
    "open_pool": {"name": (None, *NOT_TEXT)},
    "write_machines": {
        "pool": (None, *NOT_TEXT),
        "epoch": (None, 0, *NOT_WHOLE),
        "number": (None, 0, *NOT_WHOLE),
        "records": (None, 5, "abc", object(), [5], [{"machine_id": "m"}]),
        "moves": (None, 5, "abc", object(), [5], [{"machine_id": "m"}]),
    },
    "query_machines": {"pool": NOT_TEXT, "states": NOT_SEVERAL},
    "query_machine_moves": {
        "machine_id": NOT_TEXT,
        "pool": NOT_TEXT,
        "limit": (None, -2, *NOT_WHOLE),
        "offset": (None, -1, *NOT_WHOLE),
    },
}
"""What every argument of every method must refuse; what is not here can be anything that can be stored."""

FREE = {"input", "request", "self"}
WITHOUT_ARGUMENTS = {"close", "handle", "open", "query_ledgers", "query_pools", "statistics"}


def _right(claimed: AttemptedRollout) -> dict[str, dict[str, Any]]:
    """Arguments that each method needs, all of them right."""
    rollout = {"rollout_id": claimed.rollout_id}
    attempt = {**rollout, "attempt_id": claimed.attempt.attempt_id}
    pool = {"pool": "p", "epoch": 1, "number": 1, "records": [], "moves": []}
    ledger = Ledger(name="l", epoch=1, version=0, n_opened=0, n_batches=0, settings={}, opened_at=AT)
    return {
        "enqueue_rollout": {"input": 1},
        "start_rollout": {"input": 1, "worker_id": "w"},
        "dequeue_rollout": {"worker_id": "w"},
        "dequeue_many_rollouts": {"limit": 1, "worker_id": "w"},
        "update_rollout": {"rollout_id": "waiting"},
        "update_attempt": {**attempt, "status": "succeeded"},
        "append_events": {**attempt, "events": [log()]},
        "heartbeat": {"worker_id": "w"},
        "put_resources": {"resources": {}},
        "revoke_leases": {"worker_id": "w", "reason": "r"},
        "query_attempts": rollout,
        "query_events": rollout,
        "wait_for_rollouts": {"rollout_ids": [claimed.rollout_id]},
        "open_ledger": {"name": "l"},
        "write_ledger": {"ledger": ledger, "write": LedgerWrite()},
        "query_groups": {"ledger": "l"},
        "asks_after": {"ledger": "l"},
        "grants": {"attempt_ids": []},
        "leave_account": {**attempt, "account": Account()},
        "late_accounts": {"ledger": "l"},
        "write_machines": pool,
    }


def test_the_table_of_wrong_arguments_is_complete():
    methods = {name: method for name, method in inspect.getmembers(Store, inspect.isfunction) if name[0] != "_"}
    assert set(methods) - WITHOUT_ARGUMENTS == set(WRONG)
    for name, arguments in WRONG.items():
        taken = set(inspect.signature(methods[name]).parameters) - FREE
        assert taken == set(arguments) & taken, name


async def test_every_argument_of_every_method_refuses_what_is_no_such_thing(store: Store):
    claimed = await enqueue_and_claim(store, "claimed")
    await store.enqueue_rollout("waiting", rollout_id="waiting")
    right = _right(claimed)
    before = await everything(store)
    taken = []
    for method, arguments in WRONG.items():
        for argument, values in arguments.items():
            for value in values:
                call = getattr(store, method)(**{**right.get(method, {}), argument: value})
                try:
                    refusal = await _refusal(call)
                except Exception as exc:
                    taken.append(f"{method}({argument}={value!r:.40}): {exc!r:.100}")
                else:
                    if not refusal.isprintable() or not refusal:
                        taken.append(f"{method}({argument}={value!r:.40}) was taken")
        assert await everything(store) == before, (method, taken)
    assert not taken, "\n".join(taken)
    assert await store.get_latest_resources() is None
    assert await store.query_ledgers() == ()
    assert await store.query_pools() == ()


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
