"""Single requests made into batches, for an engine that takes nothing else.

A batch is sent `wait_seconds` after its first request came, or as soon as it has `max_batch`; while the engine is busy
with one, the next is collected, and goes when the engine is free and its time has come.

Invariants:
- The engine is called once at a time.
- Every request ends: with its reply, with an error of its own, or with one for all that were in the call.
- Who is cancelled leaves at once; a request that has been sent already is answered to nobody.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from outrider.core.clock import Clock, TimerHandle
from outrider.core.errors import ContextOverflow, PolicyError, PolicyUnusable
from outrider.policy.engine.calling import Calls
from outrider.policy.engine.protocol import TokenReply, TokenRequest

STAGE = "policy.complete"


@dataclass(slots=True, eq=False)
class _Caller:
    """Who waits for a reply."""

    request: TokenRequest
    reply: "asyncio.Future[TokenReply]"
    came_at: float
    queue_seconds: float = 0.0


class Coalescer:
    """Belongs to one event loop."""

    def __init__(
        self,
        calls: Calls,
        *,
        max_batch: int,
        wait_seconds: float,
        max_waiting: int,
        deadline_seconds: float,
        clock: Clock,
    ) -> None:
        self.sizes: Counter[int] = Counter()
        self.queue_seconds = 0.0
        self.engine_seconds = 0.0
        self.n_failed = 0
        self._calls = calls
        self._max_batch = max_batch
        self._wait_seconds = wait_seconds
        self._max_waiting = max_waiting
        self._deadline_seconds = deadline_seconds
        self._clock = clock
        self._waiting: OrderedDict[_Caller, None] = OrderedDict()
        self._sent: Sequence[_Caller] | None = None
        self._wait: TimerHandle | None = None
        self._deadline: TimerHandle | None = None
        self._is_due = False
        self._has_given_up = False
        self._is_closed = False

    async def ask(self, request: TokenRequest) -> tuple[TokenReply, float]:
        """The engine's reply, and how many seconds the request waited to be sent."""
        if self._is_closed:
            raise PolicyError("the policy is closed", stage=STAGE)
        if len(self._waiting) >= self._max_waiting:
            raise PolicyError(
                f"{self._max_waiting} requests wait for the engine already; run fewer rollouts at once, or raise "
                "max_waiting",
                stage=STAGE,
            )
        caller = _Caller(request, asyncio.get_running_loop().create_future(), self._clock.monotonic())
        self._waiting[caller] = None
        self._go_on()
        try:
            return await caller.reply, caller.queue_seconds
        except asyncio.CancelledError:
            self._waiting.pop(caller, None)
            self._go_on()
            raise

    async def close(self) -> None:
        """Whoever waits fails."""
        self._is_closed = True
        waiting = [*(self._sent or ()), *self._waiting]
        self._waiting.clear()
        self._stop_waiting()
        if self._deadline is not None:
            self._deadline.cancel()
        for caller in waiting:
            self._settle(caller, PolicyError("the policy was closed before the engine replied", stage=STAGE))
        await self._calls.close()

    def _go_on(self) -> None:
        """Send a batch if its time has come; else see to it that it will."""
        if not self._waiting:
            self._stop_waiting()
        elif self._sent is None and (self._is_due or len(self._waiting) >= self._max_batch):
            self._send()
        elif self._wait is None and not self._is_due:
            self._wait = self._clock.call_later(self._wait_seconds, self._waited)

    def _waited(self) -> None:
        self._wait = None
        self._is_due = True
        self._go_on()

    def _stop_waiting(self) -> None:
        self._is_due = False
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None

    def _send(self) -> None:
        self._stop_waiting()
        batch = tuple(islice(self._waiting, self._max_batch))
        now = self._clock.monotonic()
        for caller in batch:
            del self._waiting[caller]
            caller.queue_seconds = max(now - caller.came_at, 0.0)
            self.queue_seconds += caller.queue_seconds
        self._sent = batch
        self._has_given_up = False
        self.sizes[len(batch)] += 1
        call = self._calls.begin([caller.request for caller in batch])
        self._deadline = self._clock.call_later(self._deadline_seconds, self._overdue)
        call.add_done_callback(partial(self._ended, batch, now))
        self._go_on()

    def _overdue(self) -> None:
        """Fail the batch; and if the engine has not even returned by the next time, whatever was collected since.

        The engine is not called again until it returns.
        """
        late = list(self._waiting if self._has_given_up else self._sent or ())
        for caller in late:
            self._waiting.pop(caller, None)
            error = f"the engine has not returned within its deadline of {self._deadline_seconds:g} s"
            self._settle(caller, PolicyError(error, stage=STAGE))
        self._has_given_up = True
        self._deadline = self._clock.call_later(self._deadline_seconds, self._overdue)
        self._calls.give_up()

    def _ended(self, batch: Sequence[_Caller], began_at: float, call: "asyncio.Future[Any]") -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.engine_seconds += max(self._clock.monotonic() - began_at, 0.0)
        self._sent = None
        for caller, outcome in zip(batch, _outcomes(call, len(batch)), strict=True):
            self._settle(caller, outcome)
        self._go_on()

    def _settle(self, caller: _Caller, outcome: TokenReply | PolicyError) -> None:
        """Unless the caller has left, or has failed already."""
        if caller.reply.done():
            return
        if isinstance(outcome, TokenReply):
            caller.reply.set_result(outcome)
        else:
            self.n_failed += 1
            caller.reply.set_exception(outcome)


def _outcomes(call: "asyncio.Future[Any]", n_requests: int) -> Iterable[TokenReply | PolicyError]:
    """What each of the requests gets; an error of the whole call is made anew for each."""
    if call.cancelled():
        return [PolicyError("the call of the engine was cancelled", stage=STAGE) for _ in range(n_requests)]
    error = call.exception()
    if error is not None:
        return [_error_of(error, PolicyUnusable) for _ in range(n_requests)]
    replies = call.result()
    if isinstance(replies, Sequence) and len(replies) == n_requests:
        return [
            reply if isinstance(reply, TokenReply) else _error_of(reply, PolicyUnusable, ContextOverflow)
            for reply in replies
        ]
    given = f"{len(replies)} replies" if isinstance(replies, Sequence) else type(replies).__name__
    return [
        PolicyError(f"the engine returned {given} for {n_requests} requests; it must be one each", stage=STAGE)
        for _ in range(n_requests)
    ]


def _error_of(given: object, *kinds: type[PolicyError]) -> PolicyError:
    """The engine's error as ours, and as one of `kinds` if it is one."""
    if not isinstance(given, BaseException):
        return PolicyError(f"the engine returned {type(given).__name__} in place of a TokenReply", stage=STAGE)
    kind = next((kind for kind in kinds if isinstance(given, kind)), PolicyError)
    said = str(given) if isinstance(given, PolicyError) else f"the engine failed: {type(given).__name__}: {given}"
    error = kind(said, stage=STAGE)
    error.__cause__ = given
    return error
