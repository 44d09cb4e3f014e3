"""The policy behind OpenAI-compatible endpoints: tries, waits, moves to another server, and tries again."""

import asyncio
import logging
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from yarl import URL

from outrider.core.chat import Message, ToolSpec
from outrider.core.clock import Clock, SystemClock
from outrider.core.errors import ContextOverflow, InvalidInput, PolicyError
from outrider.policy.extras import extras_of
from outrider.policy.openai.address import base_urls, key_variables, keys_of
from outrider.policy.openai.backoff import pause
from outrider.policy.openai.checking import Fault, fault_of, find_fault, known_models
from outrider.policy.openai.course import Course
from outrider.policy.openai.deadline import Deadline
from outrider.policy.openai.endpoints import Endpoint, Endpoints
from outrider.policy.openai.exposure import check_one_origin
from outrider.policy.openai.failure import Refusal, Setback, UnknownModel, error_of, refusal_of
from outrider.policy.openai.gate import Permit
from outrider.policy.openai.reply import EmptyReply, MalformedReply, Reply, completion_of, decode
from outrider.policy.openai.request import Request
from outrider.policy.openai.transport import Exchange, Heard, HttpTransport, Transport
from outrider.policy.openai.tries import Tries, Try
from outrider.policy.protocol import Completion, Probe, Sampling
from outrider.policy.spec import PolicySpec

log = logging.getLogger(__name__)

_DEFAULT = Sampling()
_ASKED_WRONGLY = frozenset({400, 422})


class OpenAIPolicy:
    """One client for all calls of a process, on one event loop.

    A call never returns to a server that has failed or refused it while another is left: it moves on at once.
    `spec.max_retries` counts how often it pauses when all have failed it, and then asks them again.

    From outside, a long answer and a server that hangs look the same until something comes. So a call is never cut
    while it waits: once the server has been silent to all its calls for `spec.silence_seconds`, or to this one for half
    of its deadline, the call is sent to another server too. The first answer counts, and the other try is cancelled.

    `spec.deadline_seconds` bounds a call with its retries. It begins when the call is first let through to a server:
    the wait before that is in our own queue, first come, first served, and who is ahead in it has a deadline too.
    """

    def __init__(
        self,
        spec: PolicySpec,
        urls: Sequence[URL],
        transport: Transport,
        clock: Clock,
        rng: random.Random,
        *,
        key_variables: Mapping[URL, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        self._spec = spec
        has_others = len(urls) > 1
        self._own_seconds = spec.deadline_seconds / 2 if has_others else math.inf
        self._silence_seconds = min(spec.silence_seconds, self._own_seconds) if has_others else math.inf
        self._extra_body = extra_body or {}
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._key_variables = key_variables or {}
        self._endpoints = Endpoints(
            [
                Endpoint(url, spec.max_concurrency, clock, key_variable=self._key_variables.get(url.origin()))
                for url in urls
            ]
        )
        self._asking_models = asyncio.Lock()
        self._is_closed = False

    @property
    def endpoints(self) -> Endpoints:
        return self._endpoints

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling | None = None,
        session: str = "",
    ) -> Completion:
        request = self._request(messages, tools=tools, sampling=sampling, wants_stream=self._spec.stream)
        course = Course(self._endpoints, session)
        try:
            async with Deadline(self._clock) as deadline, Tries(self._clock) as tries:
                try:
                    completion = await self._first(request, course, tries, deadline)
                except asyncio.CancelledError:  # the deadline, or that of whoever waits for us
                    for one in tries.under_way:
                        self._given_up(one, session)
                    raise
                for one in tries.under_way:
                    if completion is not None and one.number <= completion.n_retries:  # it was sent earlier
                        self._fail_if_silent(one, session)
        except TimeoutError as exc:
            before = "" if course.setback is None else f", before that: {course.setback}"
            raise PolicyError(
                f"no answer within {self._spec.deadline_seconds:g} s{before}", stage="policy.complete"
            ) from exc
        if completion is None:
            raise course.error()
        return completion

    async def check(self, sampling: Sampling | None = None, probe: Probe | None = None) -> None:
        probe = probe or Probe()
        one_token = msgspec.structs.replace(sampling or _DEFAULT, max_tokens=1)
        request = self._request(probe.messages, tools=probe.tools, sampling=one_token)
        async with asyncio.TaskGroup() as group:
            checks = [
                group.create_task(fault_of(endpoint, request, probe, self._find_fault)) for endpoint in self._endpoints
            ]
        faults = [fault for check in checks if (fault := check.result()) is not None]
        if faults:
            raise InvalidInput("; ".join(dict.fromkeys(faults)))

    async def _find_fault(self, endpoint: Endpoint, request: Request) -> Fault | None:
        return await find_fault(endpoint, request, self._answer, self._transport, self._clock)

    async def close(self) -> None:
        """Calls that are under way fail."""
        self._is_closed = True
        for endpoint in self._endpoints:
            endpoint.gate.close()
        await self._transport.close()

    def _request(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling | None,
        wants_stream: bool = False,
    ) -> Request:
        return Request(
            model=self._spec.model,
            messages=messages,
            tools=tools,
            sampling=sampling or _DEFAULT,
            extra=self._extra_body,
            wants_stream=wants_stream,
        )

    async def _first(self, request: Request, course: Course, tries: Tries, deadline: Deadline) -> Completion | None:
        """The first answer, from wherever it comes; None if the call is given up."""
        spec = self._spec
        while True:
            may_pause = course.n_pauses < spec.max_retries
            endpoint = course.next(may_pause=may_pause)
            if endpoint is not None:
                one = Try(endpoint, course.begin(endpoint), self._clock)
                tries.begin(one, self._try(one, request, deadline))
                ended = await self._ended_or_silent(one, tries)
            elif may_pause and course.may_repeat:
                ended = await tries.ended(self._pause(course, deadline, is_over=not tries))
                if ended is None:
                    course.paused()
            elif tries:
                ended = await tries.ended(self._silence_seconds)  # another server may be back by then
            else:
                return None
            if ended is None:
                continue
            one, task = ended
            try:
                return task.result()
            except ContextOverflow:
                raise
            except PolicyError as exc:
                course.failed(one.endpoint, exc)
                log.info("%s: try %d failed: %s", one.endpoint.base_url, one.number, exc)

    async def _ended_or_silent(self, newest: Try, tries: Tries) -> "tuple[Try, asyncio.Task[Completion]] | None":
        """A try that has ended; None if `newest` has been left waiting for too long."""
        while True:
            seconds = newest.patience(endpoint_seconds=self._silence_seconds, own_seconds=self._own_seconds)
            if seconds <= 0:
                return None
            if (ended := await tries.ended(seconds)) is not None:
                return ended

    def _given_up(self, one: Try, session: str) -> None:
        """Nobody waits for this try any more, though it has got no answer."""
        if self._fail_if_silent(one, session) or one.sent_at is None:
            return
        one.endpoint.given_up(one.sent_at)
        self._endpoints.leave(session, one.endpoint)

    def _fail_if_silent(self, one: Try, session: str) -> bool:
        """The call is over while this try is under way. Whether its endpoint was silent for so long that it rests."""
        if one.sent_at is None or one.endpoint.silent_seconds < self._silence_seconds:
            return False
        one.endpoint.failed(is_gone=True)
        self._endpoints.leave(session, one.endpoint)
        return True

    async def _try(self, one: Try, request: Request, deadline: Deadline) -> Completion:
        endpoint, came_at = one.endpoint, self._clock.monotonic()
        async with endpoint.gate.permit(again=one.number > 1) as permit:
            queue_seconds = max(self._clock.monotonic() - came_at, 0.0)
            if not deadline.is_set:
                deadline.start(self._spec.deadline_seconds)
            one.sent()
            try:
                reply, headers = await self._answer(endpoint, request, one.heard)
                completion = completion_of(reply, headers)
            except PolicyError as exc:
                _note(endpoint, permit, exc)
                raise
            permit.succeeded()
        endpoint.answered()
        return msgspec.structs.replace(completion, n_retries=one.number - 1, queue_seconds=queue_seconds)

    async def _answer(
        self, endpoint: Endpoint, request: Request, heard: Heard | None = None
    ) -> tuple[Reply, Mapping[str, str]]:
        """The server's answer; asked again at once, in other words, if it does not take a field of the request."""
        while True:
            if self._is_closed:
                raise PolicyError("the policy is closed", stage="policy.complete")
            dialect = endpoint.dialect
            exchange = await self._transport.post(endpoint.chat_url, request.body(dialect), heard or endpoint.heard)
            outcome = _read(exchange)
            if isinstance(outcome, Reply):
                endpoint.dialect = endpoint.dialect.after_reply(outcome)
                return outcome, exchange.headers
            now = endpoint.dialect  # another call may have learned something since we asked
            other = now.after_refusal(outcome.message, request)
            if outcome.status not in _ASKED_WRONGLY or (other is None and now == dialect):
                raise await self._error(endpoint, outcome, exchange.headers)
            endpoint.dialect = other or now

    async def _error(self, endpoint: Endpoint, refusal: Refusal, headers: Mapping[str, str]) -> PolicyError:
        error = error_of(
            refusal,
            headers,
            model=self._spec.model,
            key_variable=endpoint.key_variable,
            url=str(endpoint.base_url),
            now=self._clock.time(),
        )
        if not isinstance(error, UnknownModel):
            return error
        async with self._asking_models:  # one asks for all that failed at once
            models = await known_models(endpoint, self._transport, self._spec.model, self._clock)
        return UnknownModel(f"{error}{models}", stage="policy.complete")

    def _pause(self, course: Course, deadline: Deadline, *, is_over: bool) -> float:
        """Seconds before those that have failed this call are asked again. `is_over`: no answer can come before."""
        setback = course.setback
        asked = setback.asked_seconds if isinstance(setback, Setback) else None
        seconds = pause(course.n_pauses, asked, self._rng)
        if is_over and seconds >= deadline.left_seconds:
            left = f"the next try would be in {seconds:.3g} s, after the deadline of {self._spec.deadline_seconds:g} s"
            raise PolicyError(f"{setback} ({left})", stage="policy.complete") from setback
        return seconds


async def open_openai_policy(spec: PolicySpec, *, clock: Clock | None = None) -> OpenAIPolicy:
    """Raises `InvalidInput` for an address, key or header that cannot be one, or a secret that is for no one server.

    No request is made: `check` does that.
    """
    used_clock = clock or SystemClock()
    urls = base_urls(spec)
    extras = extras_of(spec)
    check_one_origin(spec)
    transport = HttpTransport(keys_of(spec), used_clock, headers=extras.headers, secrets=extras.secrets)
    return OpenAIPolicy(
        spec,
        urls,
        transport,
        used_clock,
        random.Random(),
        key_variables=key_variables(spec),
        extra_body=extras.body,
    )


def _read(exchange: Exchange) -> Reply | Refusal:
    """An error may also come with status 200: in the middle of a stream, or from a proxy."""
    if exchange.status != 200:  # noqa: PLR2004
        return refusal_of(exchange.status, exchange.body)
    if exchange.stream is not None:
        error = exchange.stream.error
        return exchange.stream.reply() if error is None else refusal_of(exchange.status, error)
    reply = decode(exchange.body)
    return refusal_of(exchange.status, exchange.body) if reply.error is not None and not reply.choices else reply


def _note(endpoint: Endpoint, permit: Permit, error: PolicyError) -> None:
    """What a failed try tells about the endpoint."""
    if isinstance(error, MalformedReply) and not isinstance(error, EmptyReply):
        endpoint.failed(is_gone=False)
        return
    if not isinstance(error, Setback):
        if error.stops_run:  # the key, the model or the address is wrong there; others may do
            endpoint.failed(is_gone=True)
        else:
            endpoint.answered()
        return
    if error.is_overload:
        permit.refused()
        if error.asked_seconds is not None:
            endpoint.gate.hold(error.asked_seconds)
    if error.is_fault or error.is_gone:
        endpoint.failed(is_gone=error.is_gone)
    else:
        endpoint.answered()
