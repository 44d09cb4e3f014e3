"""Checks a recorded history of store calls against what every engine promises.

*An attempt may run more than once, a rollout has exactly one accepted result, and nothing accepted is lost.*

Record with `OUTRIDER_HISTORY=FOLDER` (see `outrider.store.history`), read the store to its end with `observe`, and
`check` what was recorded; or `python -m outrider.testing.history FOLDER`. The rules:

- `attempts`: an attempt number of a rollout belongs to one attempt, which was granted to one worker.
- `fence`: no write or heartbeat of an attempt is accepted that began after a later attempt's grant was answered,
  unless it repeats one that was, or may have been, carried out before.
- `claim`: claims with one `request_id` grant one set of attempts, at least as long as one of them is held.
- `revoked`: no write or heartbeat of an attempt is accepted that began after its lease was revoked, unless it repeats
  one, or hands the rollout back, which the revocation has done.
- `result`: a rollout has at most one result, and every read that shows one shows that one.
- `final`: once somebody has seen a rollout ended, nobody sees it open any more.
- `lost`: what was answered is there: rollouts with their inputs, results, events.
- `invented`: nothing is there that nobody asked for: no rollout, no event more than was appended, and no attempt has
  resources that nobody published.
- `changed`: a rollout is changed only before it has ended, and what is claimed or read after a change is what it said.
- `order`: no claim takes a rollout while a better one (higher priority, or older) waits throughout the call, unless a
  claim that is just being sent twice may hold that one for a moment.
- `feed`: all readers of the completion feed see one order, and no cursor skips or repeats.
- `resources`: versions grow in the order of the calls, no read goes back, and a version never changes; an attempt was
  claimed with one version.
- `ledger`, `pool`: no write of an epoch is accepted that began after a later epoch was answered; a group is delivered
  in one batch, and no staler than allowed.

All of it takes time linear in the calls, but for the sorting.
"""

import argparse
import math
import sys
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, pairwise, permutations
from pathlib import Path
from typing import Any

from outrider.core.decoding import from_json
from outrider.core.errors import OutriderError
from outrider.core.ledger import GroupState
from outrider.core.status import AttemptStatus, RolloutStatus
from outrider.store import Store
from outrider.store.history import CallAnswered, CallBegun, HistoryLine, Outcome, recorded

NEVER = math.inf
ENDS = frozenset({AttemptStatus.SUCCEEDED, AttemptStatus.FAILED, AttemptStatus.TIMEOUT})
CLAIMS = frozenset({"dequeue_rollout", "dequeue_many_rollouts", "start_rollout"})
N_SHOWN = 10

UNKNOWN_SECONDS = 5.0
"""How long a claim whose caller is gone may go on in a database, so that others pass over what it has locked."""


class HistoryViolated(OutriderError):
    """The history breaks a rule; the message shows the first violations."""

    def __init__(self, violations: Sequence["Violation"]) -> None:
        self.violations = tuple(violations)
        shown = "\n".join(f"  {violation}" for violation in violations[:N_SHOWN])
        super().__init__(f"{len(violations)} violations in the history of the store:\n{shown}")


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken, by what, and how."""

    rule: str
    subject: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call as its caller saw it, in nanoseconds. A call that was never answered has no end."""

    client: str
    method: str
    arguments: Mapping[str, Any]
    begun: int
    ended: float
    outcome: Outcome
    answer: Any = None
    store: str = ""

    def __str__(self) -> str:
        return f"{self.method} by {self.client} at {self.begun}"


class MemoryRecorder:
    """Keeps a history in memory."""

    def __init__(self) -> None:
        self.lines: list[HistoryLine] = []

    def write(self, line: HistoryLine) -> None:
        self.lines.append(line)

    def close(self) -> None:
        """The lines stay."""

    def record(self, store: Store) -> Store:
        """The store, with its calls recorded here."""
        return recorded(store, self)


def read_lines(folder: Path) -> Iterator[HistoryLine]:
    """All lines of all files of a history; a last line that was cut off by a full disk is passed over."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_bytes().split(b"\n")[:-1]:
            yield from_json(line, HistoryLine)


def calls_of(lines: Iterable[HistoryLine]) -> list[Call]:
    """The calls, in the order they began."""
    begun: dict[tuple[str, int], CallBegun] = {}
    answered: dict[tuple[str, int], CallAnswered] = {}
    for line in lines:
        if isinstance(line, CallBegun):
            begun[line.client, line.number] = line
        else:
            answered[line.client, line.number] = line
    return sorted((_call(line, answered.get(key)) for key, line in begun.items()), key=lambda call: call.begun)


def _call(begun: CallBegun, answered: CallAnswered | None) -> Call:
    return Call(
        client=begun.client,
        method=begun.method,
        arguments=begun.arguments,
        begun=begun.at,
        ended=NEVER if answered is None else answered.at,
        outcome=Outcome.UNKNOWN if answered is None else answered.outcome,
        answer=None if answered is None else answered.answer,
        store=begun.store,
    )


async def observe(store: Store) -> None:
    """Read everything there is, through a store that is being recorded: what the history is compared with."""
    for rollout in (await store.query_rollouts()).items:
        for attempt in await store.query_attempts(rollout.rollout_id):
            await store.query_events(rollout.rollout_id, attempt_id=attempt.attempt_id, limit=0)
    cursor, page = -1, await store.finished_after(0, limit=1)
    while page.cursor != cursor:
        cursor, page = page.cursor, await store.finished_after(page.cursor, limit=1)


async def check_store(store: Store, folder: Path, *, max_staleness: int | None = None) -> int:
    """Observe a store whose history is in `folder` and check it; how many calls were checked."""
    recorder = MemoryRecorder()
    await observe(recorder.record(store))
    calls = calls_of([*read_lines(folder), *recorder.lines])
    check(calls, max_staleness=max_staleness)
    return len(calls)


def check(calls: Sequence[Call], *, max_staleness: int | None = None) -> None:
    """Raise `HistoryViolated` if the history, which ends with an observation, breaks a rule."""
    if violations := violations_of(calls, max_staleness=max_staleness):
        raise HistoryViolated(violations)


def violations_of(calls: Sequence[Call], *, max_staleness: int | None = None) -> list[Violation]:
    """All that is wrong with a history, store by store."""
    by_store: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        by_store[call.store].append(call)
    return [violation for own in by_store.values() for violation in _violations_of(own, max_staleness)]


def _violations_of(calls: Sequence[Call], max_staleness: int | None) -> list[Violation]:
    rollouts = _Rollouts.of(calls)
    return [
        *rollouts.check_attempts(),
        *rollouts.check_fence(),
        *rollouts.check_claims(),
        *rollouts.check_revoked(),
        *rollouts.check_results(),
        *rollouts.check_lost(),
        *_check_order(rollouts),
        *_check_feed(calls),
        *_check_resources(calls),
        *_check_versions(rollouts, calls),
        *_check_epochs(calls, "ledger", opened=_opened_ledger, written=_written_ledger),
        *_check_epochs(calls, "pool", opened=_opened_pool, written=_written_pool),
        *_check_groups(calls, rollouts, max_staleness),
    ]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A rollout or an attempt as an answer showed it."""

    call: Call
    facts: Mapping[str, Any]


@dataclass(slots=True)
class _Rollout:
    """All that a history says of one rollout."""

    rollout_id: str
    asked: list[_Seen] = field(default_factory=list)
    """The calls that enqueued it, answered or not."""
    grants: list[_Seen] = field(default_factory=list)
    writes: list[Call] = field(default_factory=list)
    """Accepted and unknown reports and events."""
    reads: list[_Seen] = field(default_factory=list)
    attempts: list[_Seen] = field(default_factory=list)
    n_events: dict[str, int] = field(default_factory=dict)
    """By attempt, as last observed."""
    cancelled: list[Call] = field(default_factory=list)
    changed: list[Call] = field(default_factory=list)
    """Accepted and unknown changes of what it is."""

    def number_of(self, attempt_id: str) -> int | None:
        for seen in (*self.attempts, *self.grants):
            if seen.facts["attempt_id"] == attempt_id:
                number: int = seen.facts["sequence_id"]
                return number
        return None


class _Rollouts:
    """The rollouts of a history, and the rules that are about one rollout at a time."""

    def __init__(self) -> None:
        self.by_id: dict[str, _Rollout] = {}
        self.claims: list[Call] = []
        self.heartbeats: list[Call] = []
        self.revoked: dict[str, Call] = {}
        """By attempt, the first call that was answered with it."""
        self.nameless: Counter[str] = Counter()
        """Rollouts that were asked for without an id, and perhaps enqueued: nobody was told which id they got."""
        self.observed: set[str] | None = None
        """What there is in the end, if somebody has listed all of it."""

    @classmethod
    def of(cls, calls: Iterable[Call]) -> "_Rollouts":
        rollouts = cls()
        for call in calls:
            rollouts._add(call)
        return rollouts

    def rollout(self, rollout_id: str) -> _Rollout:
        if rollout_id not in self.by_id:
            self.by_id[rollout_id] = _Rollout(rollout_id)
        return self.by_id[rollout_id]

    def _add(self, call: Call) -> None:
        if call.outcome is Outcome.REFUSED:
            return
        self._add_enqueues(call)
        if call.method in CLAIMS:
            self._add_claim(call)
        elif call.method in ("update_attempt", "append_events"):
            self.rollout(call.arguments["rollout_id"]).writes.append(call)
        elif call.method == "update_rollout":
            self.rollout(call.arguments["rollout_id"]).changed.append(call)
        elif call.method == "cancel_rollouts":
            for rollout_id in call.arguments["rollout_ids"]:
                self.rollout(rollout_id).cancelled.append(call)
        elif call.outcome is Outcome.OK:
            self._add_read(call)

    def _add_enqueues(self, call: Call) -> None:
        for place, request in enumerate(_requests_in(call)):
            if request.get("rollout_id"):
                self.rollout(request["rollout_id"]).asked.append(_Seen(call, request | {"place": place}))
            else:
                self.nameless[request["digest"]] += 1

    def _add_claim(self, call: Call) -> None:
        self.claims.append(call)
        for facts in _listed(call.answer):
            self.rollout(facts["rollout_id"]).grants.append(_Seen(call, facts["attempt"] | {"rollout": facts}))

    def _add_read(self, call: Call) -> None:
        if call.method == "heartbeat":
            self.heartbeats.append(call)
        elif call.method == "revoke_leases":
            for attempt_id in call.answer:
                self.revoked.setdefault(attempt_id, call)
        elif call.method == "query_attempts":
            for facts in call.answer["items"]:
                self.rollout(facts["rollout_id"]).attempts.append(_Seen(call, facts))
        elif call.method == "query_events":
            if attempt_id := call.arguments.get("attempt_id"):
                self.rollout(call.arguments["rollout_id"]).n_events[attempt_id] = call.answer["total"]
        else:
            for facts in _read_by(call):
                self.rollout(facts["rollout_id"]).reads.append(_Seen(call, facts))
        if call.method == "query_rollouts" and not call.arguments:
            self.observed = {facts["rollout_id"] for facts in call.answer["items"]}

    def finishing(self, rollout_id: str) -> str:
        """The attempt that ended a rollout, as anybody has seen it; an empty text if nobody has."""
        reads = self.by_id[rollout_id].reads if rollout_id in self.by_id else []
        return next((seen.facts["attempt_id"] or "" for seen in reads if _is_final(seen.facts)), "")

    def check_attempts(self) -> Iterator[Violation]:
        for rollout in self.by_id.values():
            ids: dict[int, str] = {}
            workers: dict[str, str] = {}
            for seen in (*rollout.grants, *rollout.attempts):
                number, attempt_id = seen.facts["sequence_id"], seen.facts["attempt_id"]
                if ids.setdefault(number, attempt_id) != attempt_id:
                    message = f"attempt {number} is {ids[number]} and {attempt_id} ({seen.call})"
                    yield Violation("attempts", rollout.rollout_id, message)
            for seen in rollout.grants:
                attempt_id, worker_id = seen.facts["attempt_id"], seen.facts["worker_id"]
                if workers.setdefault(attempt_id, worker_id) != worker_id:
                    message = f"{attempt_id} was granted to {workers[attempt_id]} and {worker_id} ({seen.call})"
                    yield Violation("attempts", rollout.rollout_id, message)

    def check_fence(self) -> Iterator[Violation]:
        holders: dict[str, tuple[_Rollout, int]] = {}
        fences: dict[str, _Fence] = {}
        for rollout in self.by_id.values():
            fence = fences[rollout.rollout_id] = _Fence(rollout)
            holders |= {seen.facts["attempt_id"]: (rollout, seen.facts["sequence_id"]) for seen in rollout.grants}
            for write, number in fence.numbered(rollout.writes):
                if write.outcome is Outcome.OK and fence.is_late(write, number) and not _repeats(write, rollout.writes):
                    message = f"a write of attempt {number} was accepted after a later one was granted ({write})"
                    yield Violation("fence", rollout.rollout_id, message)
        for beat in self.heartbeats:
            for attempt_id in _renewed(beat) & holders.keys():
                rollout, number = holders[attempt_id]
                if fences[rollout.rollout_id].is_late(beat, number):
                    message = f"the lease of attempt {number} was renewed after a later one was granted ({beat})"
                    yield Violation("fence", rollout.rollout_id, message)

    def check_claims(self) -> Iterator[Violation]:
        by_request: dict[str, list[Call]] = defaultdict(list)
        for claim in self.claims:
            if claim.outcome is Outcome.OK and (request_id := claim.arguments.get("request_id")) is not None:
                by_request[request_id].append(claim)
        for request_id, same in by_request.items():
            for one, other in combinations(same, 2):
                if not (self._may_repeat(one, other) or (_overlap(one, other) and self._may_repeat(other, one))):
                    message = f"granted {sorted(_granted(one))}, and then {sorted(_granted(other))} ({other})"
                    yield Violation("claim", request_id, message)

    def _may_repeat(self, claim: Call, again: Call) -> bool:
        """Whether `again` may have come second: it granted what was left of the first, or that was held no longer."""
        before = _granted(claim)
        return _granted(again).keys() <= before.keys() or not any(
            self._is_held_after(again.ended, *ids) for ids in before.items()
        )

    def _is_held_after(self, at: float, attempt_id: str, rollout_id: str) -> bool:
        """Whether a call that began later shows that the attempt held its lease."""
        writes = self.by_id[rollout_id].writes
        return any(
            write.begun > at
            and write.outcome is Outcome.OK
            and write.arguments["attempt_id"] == attempt_id
            and not _repeats(write, writes)
            for write in writes
        ) or any(beat.begun > at and attempt_id in _renewed(beat) for beat in self.heartbeats)

    def check_revoked(self) -> Iterator[Violation]:
        for rollout in self.by_id.values():
            for write in rollout.writes:
                revocation = self.revoked.get(write.arguments["attempt_id"])
                if revocation is None or write.outcome is not Outcome.OK or write.begun <= revocation.ended:
                    continue
                hands_back = write.arguments.get("status") == AttemptStatus.CANCELLED
                if not hands_back and not _repeats(write, rollout.writes):
                    yield Violation("revoked", rollout.rollout_id, f"a write came after {revocation} ({write})")
        for beat in self.heartbeats:
            for attempt_id in _renewed(beat) & self.revoked.keys():
                if beat.begun > (revocation := self.revoked[attempt_id]).ended:
                    yield Violation("revoked", attempt_id, f"its lease was renewed after {revocation} ({beat})")

    def check_results(self) -> Iterator[Violation]:
        for rollout in self.by_id.values():
            yield from _check_one_result(rollout)
            yield from _check_final(rollout)
            yield from _check_changed(rollout)

    def check_lost(self) -> Iterator[Violation]:
        if self.observed is None:
            return
        nameless = Counter(self.nameless)
        for rollout in self.by_id.values():
            is_there = rollout.rollout_id in self.observed
            if is_there and not rollout.asked and not rollout.changed:
                digest = rollout.reads[-1].facts["digest"]
                if not nameless[digest]:
                    yield Violation("invented", rollout.rollout_id, "is in the store, and nobody enqueued it")
                nameless[digest] -= 1
            if not is_there and any(seen.call.outcome is Outcome.OK for seen in rollout.asked):
                yield Violation("lost", rollout.rollout_id, "was enqueued, and is not in the store")
            if is_there:
                yield from _check_kept(rollout)


class _Fence:
    """When the attempts of a rollout were granted."""

    def __init__(self, rollout: _Rollout) -> None:
        self._rollout = rollout
        granted: dict[int, float] = {}
        for seen in rollout.grants:
            number = seen.facts["sequence_id"]
            granted[number] = min(granted.get(number, NEVER), seen.call.ended)
        self._granted = sorted(granted.items(), reverse=True)

    def numbered(self, writes: Iterable[Call]) -> Iterator[tuple[Call, int]]:
        """Writes with the number of their attempt; one of an attempt that nobody was told of is passed over."""
        numbers = {write.arguments["attempt_id"]: 0 for write in writes}
        for attempt_id in numbers:
            numbers[attempt_id] = self._rollout.number_of(attempt_id) or 0
        return ((write, numbers[write.arguments["attempt_id"]]) for write in writes)

    def is_late(self, call: Call, number: int) -> bool:
        """Whether the call began after a later attempt's grant was answered."""
        return any(answered < call.begun for later, answered in self._granted if later > number > 0)


def _renewed(beat: Call) -> set[str]:
    """The attempts whose leases a heartbeat has renewed."""
    return set(beat.arguments.get("attempt_ids", ())) & set(beat.answer["held"]) - set(beat.answer["lost"])


def _granted(claim: Call) -> dict[str, str]:
    """The attempts that a claim granted, and their rollouts."""
    return {facts["attempt"]["attempt_id"]: facts["rollout_id"] for facts in _listed(claim.answer)}


def _repeats(write: Call, writes: Sequence[Call]) -> bool:
    """Whether the same report was, or may have been, carried out before."""
    return any(
        other.begun < write.begun and other.method == write.method and other.arguments == write.arguments
        for other in writes
    )


def _check_one_result(rollout: _Rollout) -> Iterator[Violation]:
    ends = [write for write in rollout.writes if write.arguments.get("status") in ENDS and write.outcome is Outcome.OK]
    succeeded = {write.arguments["attempt_id"] for write in ends if write.arguments["status"] == "succeeded"}
    if len(succeeded) > 1:
        yield Violation("result", rollout.rollout_id, f"succeeded by {len(succeeded)} attempts: {sorted(succeeded)}")
    results = {_result(seen.facts): seen.call for seen in rollout.reads if _is_final(seen.facts)}
    if len(results) > 1:
        yield Violation(
            "result", rollout.rollout_id, f"was read with {len(results)} results: {sorted(map(str, results))}"
        )
    for write in ends:
        if write.arguments["status"] != "succeeded":
            continue
        expected = ("succeeded", write.arguments["attempt_id"], write.arguments.get("reward"))
        for result in results:
            if result != expected:
                yield Violation("result", rollout.rollout_id, f"accepted {expected}, but {result} was read ({write})")
        if stale := [seen for seen in rollout.reads if seen.call.begun > write.ended and not _is_final(seen.facts)]:
            yield Violation(
                "final", rollout.rollout_id, f"is open in a read after its end was answered ({stale[0].call})"
            )


def _check_final(rollout: _Rollout) -> Iterator[Violation]:
    ended = min((seen.call.ended for seen in rollout.reads if _is_final(seen.facts)), default=NEVER)
    for seen in rollout.reads:
        if seen.call.begun > ended and not _is_final(seen.facts):
            yield Violation("final", rollout.rollout_id, f"was seen ended, then {seen.facts['status']} ({seen.call})")
    by_end = sorted(rollout.reads, key=lambda seen: seen.call.ended)
    most, answered = 0, iter(by_end)
    upcoming = next(answered, None)
    for seen in sorted(rollout.reads, key=lambda seen: seen.call.begun):
        while upcoming is not None and upcoming.call.ended < seen.call.begun:
            most = max(most, upcoming.facts["n_attempts"])
            upcoming = next(answered, None)
        if seen.facts["n_attempts"] < most:
            message = f"had {most} attempts, then {seen.facts['n_attempts']} ({seen.call})"
            yield Violation("final", rollout.rollout_id, message)


def _check_changed(rollout: _Rollout) -> Iterator[Violation]:
    ended = min((seen.call.ended for seen in rollout.reads if _is_final(seen.facts)), default=NEVER)
    for change in rollout.changed:
        if change.outcome is Outcome.OK and change.begun > ended:
            yield Violation("changed", rollout.rollout_id, f"was changed after it was seen ended ({change})")
    inputs = [change for change in rollout.changed if "input" in change.arguments]
    shown = [*rollout.reads, *(_Seen(seen.call, seen.facts["rollout"]) for seen in rollout.grants)]
    for seen in shown if inputs else ():
        before = [change for change in inputs if change.outcome is Outcome.OK and change.ended < seen.call.begun]
        newest = max(before, key=lambda change: change.begun, default=None)
        if newest is None:
            continue
        # Those that were under way together with the newest, or with the read, may have come after it.
        later = {change.arguments["input"] for change in inputs if change.ended > newest.begun}
        if seen.facts["digest"] not in later:
            yield Violation("changed", rollout.rollout_id, f"is not what it was changed to ({seen.call})")


def _check_kept(rollout: _Rollout) -> Iterator[Violation]:
    last = max(rollout.reads, key=lambda seen: seen.call.begun).facts
    for seen in rollout.asked:
        digest = seen.facts.get("digest")
        if seen.call.outcome is Outcome.OK and digest and digest != last["digest"] and not rollout.changed:
            yield Violation("lost", rollout.rollout_id, f"has another input than was enqueued ({seen.call})")
    for write in rollout.writes:
        if write.method == "append_events" and write.outcome is Outcome.OK:
            kept = rollout.n_events.get(write.arguments["attempt_id"])
            if kept is not None and kept < write.answer:
                yield Violation(
                    "lost", rollout.rollout_id, f"{write.answer} events were kept, {kept} are there ({write})"
                )

    for attempt_id, n_kept in rollout.n_events.items():
        if n_kept > (most := _most_events(rollout, attempt_id)):
            message = f"{n_kept} events of {attempt_id} are there, at most {most} were appended"
            yield Violation("invented", rollout.rollout_id, message)


def _most_events(rollout: _Rollout, attempt_id: str) -> int:
    """How many events an attempt has at most: one for each place that was named, and one for each without a place."""
    places: set[int] = set()
    n_without = 0
    for write in rollout.writes:
        n_events = len(write.arguments.get("events", ()))
        if write.arguments["attempt_id"] != attempt_id or not n_events:
            continue
        first = write.arguments.get("first_index")
        if first is None:
            n_without += n_events
        else:
            places.update(range(first, first + n_events))
    return len(places) + n_without


def _requests_in(call: Call) -> list[dict[str, Any]]:
    """The rollouts that a call asked for, with the ids that its answer gave them."""
    if call.method == "enqueue_many_rollouts":
        requests = [dict(request) for request in call.arguments["requests"]]
        for request, facts in zip(requests, call.answer or (), strict=False):
            request["rollout_id"] = facts["rollout_id"]
        return requests
    if call.method in ("enqueue_rollout", "start_rollout"):
        given = call.arguments
        rollout_id = given.get("rollout_id") or (call.answer or {}).get("rollout_id")
        names = ("mode", "tag", "priority", "group_id")
        return [{name: given.get(name) for name in names} | {"rollout_id": rollout_id, "digest": given.get("input")}]
    if call.method == "write_ledger":
        return list(call.arguments["write"]["members"])
    return []


def _listed(answer: Any) -> list[Mapping[str, Any]]:
    if answer is None:
        return []
    return answer if isinstance(answer, list) else [answer]


def _read_by(call: Call) -> list[Mapping[str, Any]]:
    """The rollouts that an answer shows as they stand."""
    if call.method in ("query_rollouts", "finished_after"):
        items: list[Mapping[str, Any]] = call.answer["items"]
        return items
    if call.method in ("get_rollout_by_id", "wait_for_rollouts"):
        return _listed(call.answer)
    return []


def _is_final(facts: Mapping[str, Any]) -> bool:
    return RolloutStatus(facts["status"]).is_final


def _result(facts: Mapping[str, Any]) -> tuple[str, str | None, float | None]:
    return facts["status"], facts["attempt_id"], facts["reward"]


@dataclass(frozen=True, slots=True)
class _Wait:
    """A rollout that surely waited for its first claim from `since` to `until`, enqueued in the call `asked`."""

    rollout_id: str
    lane: tuple[str, str | None]
    priority: int
    place: tuple[int, int]
    """When it was asked for, and where in that call."""
    asked: Call
    since: float
    until: float

    @property
    def key(self) -> tuple[int, tuple[int, int]]:
        """Sorts what comes first to the front."""
        return -self.priority, self.place

    def precedes(self, other: "_Wait") -> bool:
        """Whether it surely comes before the other: two that were enqueued at the same time have no order."""
        if self.priority != other.priority:
            return self.priority > other.priority
        return self.place < other.place if self.asked is other.asked else self.asked.ended < other.asked.begun


def _check_order(rollouts: _Rollouts) -> Iterator[Violation]:
    waits = {wait.rollout_id: wait for wait in _waits(rollouts)}
    unknown = [call for call in rollouts.claims if call.outcome is Outcome.UNKNOWN]
    doubled = _doubled(rollouts.claims)
    lanes: dict[tuple[str, str | None], list[_Wait]] = defaultdict(list)
    upcoming = iter(sorted(waits.values(), key=lambda wait: wait.since))
    pending = next(upcoming, None)
    for claim in rollouts.claims:
        while pending is not None and pending.since <= claim.begun:
            insort(lanes[pending.lane], pending, key=lambda wait: wait.key)
            pending = next(upcoming, None)
        taken = [waits[facts["rollout_id"]] for facts in _listed(claim.answer) if facts["rollout_id"] in waits]
        if claim.method == "start_rollout" or not taken or any(_may_be_under_way(other, claim) for other in unknown):
            continue
        if any(_overlap(other, claim) for other in doubled):
            continue
        last = max(taken, key=lambda wait: wait.key)
        for lane, waiting in lanes.items():
            passed_over = _passed_over(claim, waiting, last) if _takes(claim, lane) else None
            if passed_over is not None:
                message = f"was taken while {passed_over.rollout_id} waited, which comes before it ({claim})"
                yield Violation("order", last.rollout_id, message)


def _waits(rollouts: _Rollouts) -> Iterator[_Wait]:
    first_unknown = min((call.begun for call in rollouts.claims if call.outcome is Outcome.UNKNOWN), default=NEVER)
    for rollout in rollouts.by_id.values():
        if len(rollout.asked) != 1 or rollout.asked[0].call.outcome is not Outcome.OK or rollout.changed:
            continue
        call, facts = rollout.asked[0].call, rollout.asked[0].facts
        firsts: list[float] = [seen.call.begun for seen in rollout.grants if seen.facts["sequence_id"] == 1]
        ends = [*(firsts or [first_unknown]), *(cancel.begun for cancel in rollout.cancelled)]
        yield _Wait(
            rollout_id=rollout.rollout_id,
            lane=(facts.get("mode") or "train", facts.get("tag")),
            priority=facts.get("priority") or 0,
            place=(call.begun, facts["place"]),
            asked=call,
            since=call.ended,
            until=min(ends),
        )


def _may_be_under_way(unknown: Call, claim: Call) -> bool:
    return unknown.begun < claim.ended and claim.begun < min(unknown.ended, unknown.begun) + UNKNOWN_SECONDS * 1e9


def _doubled(claims: Iterable[Call]) -> list[Call]:
    """Claims sent twice at once: the one that loses may hold the heads of the queue until it sees the other's."""
    by_request: dict[Any, list[Call]] = defaultdict(list)
    for claim in claims:
        if (request_id := claim.arguments.get("request_id")) is not None:
            by_request[request_id].append(claim)
    same = chain.from_iterable(permutations(sent, 2) for sent in by_request.values() if len(sent) > 1)
    return [claim for claim, other in same if _overlap(claim, other)]


def _overlap(one: Call, other: Call) -> bool:
    return one.begun < other.ended and other.begun < one.ended


def _takes(claim: Call, lane: tuple[str, str | None]) -> bool:
    mode, tag = lane
    tags = claim.arguments.get("tags")
    return claim.arguments.get("mode") in (None, mode) and (tags is None or (tag or "") in tags)


def _passed_over(claim: Call, waiting: list[_Wait], taken: _Wait) -> _Wait | None:
    """The first that should have been taken instead; who waits no longer leaves the list."""
    place = 0
    while place < len(waiting) and waiting[place].key < taken.key:
        wait = waiting[place]
        if wait.until <= claim.begun:
            del waiting[place]
            continue
        if wait.until >= claim.ended and wait.precedes(taken):
            return wait
        place += 1
    return None


def _check_feed(calls: Iterable[Call]) -> Iterator[Violation]:
    """Cursors are places in one sequence: what two readers saw between the same cursors must be the same."""
    reads = [call for call in calls if call.method == "finished_after" and call.outcome is Outcome.OK]
    order: dict[str, int] = {}
    standing: dict[int, str] = {}
    places: dict[int, int] = {0: 0}
    by_cursor = sorted(reads, key=lambda call: (call.arguments.get("cursor", 0), -len(call.answer["items"])))
    for call in by_cursor:
        cursor, ids = call.arguments.get("cursor", 0), [facts["rollout_id"] for facts in call.answer["items"]]
        if cursor not in places:
            continue
        begin = places[cursor]
        for place, rollout_id in enumerate(ids, start=begin):
            if order.setdefault(rollout_id, place) != place:
                message = f"stands at place {place} of the feed and at {order[rollout_id]} ({call})"
                yield Violation("feed", rollout_id, message)
                return
            if standing.setdefault(place, rollout_id) != rollout_id:
                message = f"stands at place {place} of the feed, and so does {standing[place]} ({call})"
                yield Violation("feed", rollout_id, message)
                return
        end = begin + len(ids)
        if places.setdefault(call.answer["cursor"], end) != end:
            message = f"is {end} rollouts from the start, or {places[call.answer['cursor']]} ({call})"
            yield Violation("feed", f"cursor {call.answer['cursor']}", message)
            return
    for (early, before), (late, after) in pairwise(sorted(places.items())):
        if after < before:
            yield Violation("feed", f"cursor {late}", f"is before cursor {early}")


def _check_resources(calls: Iterable[Call]) -> Iterator[Violation]:
    seen = [(call, facts) for call in calls if call.outcome is Outcome.OK for facts in _resources_in(call)]
    versions = [facts["version"] for call, facts in seen if call.method == "put_resources"]
    if len(set(versions)) < len(versions):
        yield Violation("resources", "versions", f"were given twice: {sorted(versions)}")
    contents: dict[int, tuple[str, str]] = {}
    for call, facts in seen:
        content = facts["id"], facts["digest"]
        if facts["digest"] and contents.setdefault(facts["version"], content) != content:
            yield Violation("resources", f"version {facts['version']}", f"is not what it was before ({call})")
    # A version that was put is known in the whole store, one that was read in those of its id.
    newest: dict[str, int] = defaultdict(int)
    upcoming = iter(sorted(seen, key=lambda pair: pair[0].ended))
    done = next(upcoming, None)
    for call, facts in seen:
        while done is not None and done[0].ended < call.begun:
            ids = (ANY, done[1]["id"]) if done[0].method == "put_resources" else (done[1]["id"],)
            for id in ids:
                newest[id] = max(newest[id], done[1]["version"])
            done = next(upcoming, None)
        version = facts["version"]
        if call.method == "get_resources":
            continue
        known = newest[ANY] if call.method == "put_resources" else newest[facts["id"]]
        if version < known or (version == known and call.method == "put_resources"):
            yield Violation("resources", f"version {version}", f"came after version {known} was known ({call})")


def _check_versions(rollouts: _Rollouts, calls: Sequence[Call]) -> Iterator[Violation]:
    put = [call for call in calls if call.method == "put_resources"]
    is_known = all(call.outcome is not Outcome.UNKNOWN for call in put)
    published = {facts["version"] for call in calls for facts in _resources_in(call) if call.outcome is Outcome.OK}
    for rollout in rollouts.by_id.values():
        versions: dict[str, int | None] = {}
        for seen in (*rollout.grants, *rollout.attempts):
            attempt_id, version = seen.facts["attempt_id"], seen.facts.get("resources_version")
            if versions.setdefault(attempt_id, version) != version:
                message = f"{attempt_id} has resources {versions[attempt_id]} and {version} ({seen.call})"
                yield Violation("resources", rollout.rollout_id, message)
            if is_known and version is not None and version not in published:
                message = f"{attempt_id} has resources {version}, which nobody published ({seen.call})"
                yield Violation("invented", rollout.rollout_id, message)


ANY = ""
"""Stands for the resources of all ids."""


def _resources_in(call: Call) -> list[Mapping[str, Any]]:
    """The resources that an answer shows."""
    if call.method in ("put_resources", "get_latest_resources", "get_resources"):
        return _listed(call.answer)
    return []


Epoch = tuple[str, int]
"""The name of a ledger or pool, and which of its epochs."""


def _opened_ledger(call: Call) -> Epoch | None:
    return (call.answer["name"], call.answer["epoch"]) if call.method == "open_ledger" else None


def _written_ledger(call: Call) -> Epoch | None:
    ledger = call.arguments["ledger"] if call.method == "write_ledger" else None
    return None if ledger is None else (ledger["name"], ledger["epoch"])


def _opened_pool(call: Call) -> Epoch | None:
    return (call.arguments["name"], call.answer) if call.method == "open_pool" else None


def _written_pool(call: Call) -> Epoch | None:
    return (call.arguments["pool"], call.arguments["epoch"]) if call.method == "write_machines" else None


def _check_epochs(
    calls: Iterable[Call],
    rule: str,
    *,
    opened: Callable[[Call], Epoch | None],
    written: Callable[[Call], Epoch | None],
) -> Iterator[Violation]:
    accepted = [call for call in calls if call.outcome is Outcome.OK]
    answered: dict[str, dict[int, float]] = defaultdict(dict)
    for call in accepted:
        if (epoch := opened(call)) is not None:
            name, number = epoch
            if number in answered[name]:
                yield Violation(rule, name, f"epoch {number} was given twice ({call})")
            answered[name][number] = call.ended
    for call in accepted:
        if (epoch := opened(call) or written(call)) is not None:
            name, number = epoch
            if any(later > number and ended < call.begun for later, ended in answered[name].items()):
                yield Violation(rule, name, f"epoch {number} was accepted after a later one was answered ({call})")


def _check_groups(calls: Iterable[Call], rollouts: _Rollouts, max_staleness: int | None) -> Iterator[Violation]:
    batches: dict[str, int] = {}
    grants: dict[str, int] = {}
    published: dict[str, int] = defaultdict(int)
    for call in calls:
        if call.method != "write_ledger" or call.outcome is not Outcome.OK:
            continue
        write, ledger = call.arguments["write"], call.arguments["ledger"]["name"]
        grants |= {attempt_id: version for _, attempt_id, version in write["granted"]}
        for group_id, state, batch, members in write["moved"]:
            if state != GroupState.DELIVERED:
                continue
            if batches.setdefault(group_id, batch) != batch:
                yield Violation(
                    "ledger", group_id, f"was delivered in batch {batches[group_id]} and in {batch} ({call})"
                )
            # What an attempt that did not come to its end was granted does not matter: nobody trains on it.
            finishing = (rollouts.finishing(rollout_id) for rollout_id in members)
            clocks = [grants[attempt_id] for attempt_id in finishing if attempt_id in grants]
            staleness = published[ledger] - min(clocks, default=published[ledger])
            if max_staleness is not None and staleness > max_staleness:
                message = f"was delivered at a staleness of {staleness}, over {max_staleness} ({call})"
                yield Violation("ledger", group_id, message)
        if write["version"] is not None:
            published[ledger] = write["version"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the history in a folder; the exit code is 1 if it breaks a rule."""
    parser = argparse.ArgumentParser(prog="python -m outrider.testing.history", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="where OUTRIDER_HISTORY was recorded")
    parser.add_argument("--max-staleness", type=int, help="how stale a delivered group may be")
    given = parser.parse_args(arguments)
    calls = calls_of(read_lines(given.folder))
    violations = violations_of(calls, max_staleness=given.max_staleness)
    n_unknown = sum(call.outcome is Outcome.UNKNOWN for call in calls)
    lines = [f"{len(calls)} calls, {n_unknown} of unknown outcome, {len(violations)} violations", *map(str, violations)]
    sys.stdout.write("\n".join([*lines, ""]))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
