"""The policy behind OpenAI-compatible endpoints: tries, waits, moves to another server, and tries again."""

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence

import msgspec
from yarl import URL

from outrider.core.chat import Message, ToolSpec
from outrider.core.clock import Clock, SystemClock, sleep
from outrider.core.errors import InvalidInput, PolicyError
from outrider.policy.openai.address import base_urls, exposed_keys, key_variables, keys_of
from outrider.policy.openai.backoff import pause
from outrider.policy.openai.checking import fault_of, known_models
from outrider.policy.openai.deadline import Deadline
from outrider.policy.openai.endpoints import Endpoint, Endpoints
from outrider.policy.openai.failure import Refusal, Setback, UnknownModel, error_of, refusal_of
from outrider.policy.openai.gate import Permit
from outrider.policy.openai.reply import EmptyReply, MalformedReply, Reply, completion_of, decode
from outrider.policy.openai.request import Request
from outrider.policy.openai.transport import Exchange, HttpTransport, Transport
from outrider.policy.protocol import Completion, Sampling
from outrider.policy.spec import PolicySpec

log = logging.getLogger(__name__)

_DEFAULT = Sampling()
_ASKED_WRONGLY = frozenset({400, 422})


class OpenAIPolicy:
    """One client for all calls of a process, on one event loop.

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
    ) -> None:
        self._spec = spec
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
        spec = self._spec
        request = Request(
            model=spec.model, messages=messages, tools=tools, sampling=sampling or _DEFAULT, wants_stream=spec.stream
        )
        setback: PolicyError | None = None
        try:
            async with Deadline(self._clock) as deadline:
                for n_retries in range(spec.max_retries + 1):
                    endpoint = self._endpoints.choose(session)
                    try:
                        return await self._try(endpoint, request, n_retries, deadline)
                    except (Setback, MalformedReply) as exc:
                        setback = exc
                        log.info("%s: try %d failed: %s", endpoint.base_url, n_retries + 1, exc)
                    if n_retries < spec.max_retries:
                        await self._wait(endpoint, setback, n_retries, session, deadline)
        except TimeoutError as exc:
            before = "" if setback is None else f", before that: {setback}"
            raise PolicyError(f"no answer within {spec.deadline_seconds:g} s{before}", stage="policy.complete") from exc
        raise PolicyError(
            f"{setback} (given up after try {spec.max_retries + 1})", stage="policy.complete"
        ) from setback

    async def check(self) -> None:
        for warning in exposed_keys(self._key_variables):
            log.warning("%s", warning)
        async with asyncio.TaskGroup() as group:
            checks = [
                group.create_task(fault_of(endpoint, self._transport, self._spec, self._clock))
                for endpoint in self._endpoints
            ]
        faults = [fault for check in checks if (fault := check.result()) is not None]
        if faults:
            raise InvalidInput("; ".join(dict.fromkeys(faults)))

    async def close(self) -> None:
        """Calls that are under way fail."""
        self._is_closed = True
        for endpoint in self._endpoints:
            endpoint.gate.close()
        await self._transport.close()

    async def _try(self, endpoint: Endpoint, request: Request, n_retries: int, deadline: Deadline) -> Completion:
        came_at = self._clock.monotonic()
        async with endpoint.gate.permit(again=n_retries > 0) as permit:
            queue_seconds = max(self._clock.monotonic() - came_at, 0.0)
            if n_retries == 0:
                deadline.start(self._spec.deadline_seconds)
            try:
                reply, headers = await self._answer(endpoint, request)
                completion = completion_of(reply, headers)
            except PolicyError as exc:
                _note(endpoint, permit, exc)
                raise
            except asyncio.CancelledError:
                if deadline.has_expired:
                    endpoint.failed(is_gone=False)
                raise
            permit.succeeded()
        endpoint.answered()
        return msgspec.structs.replace(completion, n_retries=n_retries, queue_seconds=queue_seconds)

    async def _answer(self, endpoint: Endpoint, request: Request) -> tuple[Reply, Mapping[str, str]]:
        """The server's answer; asked again at once, in other words, if it does not take a field of the request."""
        while True:
            if self._is_closed:
                raise PolicyError("the policy is closed", stage="policy.complete")
            dialect = endpoint.dialect
            exchange = await self._transport.post(endpoint.chat_url, request.body(dialect))
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
            models = await known_models(endpoint, self._transport, self._spec, self._clock)
        return UnknownModel(f"{error}{models}", stage="policy.complete")

    async def _wait(
        self, endpoint: Endpoint, setback: PolicyError, n_retries: int, session: str, deadline: Deadline
    ) -> None:
        """Before the next try; not at all if that goes to another server because this one has failed."""
        if endpoint.has_failed and self._endpoints.choose(session) is not endpoint:
            return
        asked = setback.asked_seconds if isinstance(setback, Setback) else None
        seconds = pause(n_retries, asked, self._rng)
        if seconds >= deadline.left_seconds:
            left = f"the next try would be in {seconds:.3g} s, after the deadline of {self._spec.deadline_seconds:g} s"
            raise PolicyError(f"{setback} ({left})", stage="policy.complete") from setback
        await sleep(self._clock, seconds)


async def open_openai_policy(spec: PolicySpec, *, clock: Clock | None = None) -> OpenAIPolicy:
    """Raises `InvalidInput` for a base URL or key that cannot be one. No request is made: that is `check`'s part."""
    _refuse_nonsense(spec)
    used_clock = clock or SystemClock()
    urls = base_urls(spec)
    transport = HttpTransport(keys_of(spec), used_clock)
    return OpenAIPolicy(spec, urls, transport, used_clock, random.Random(), key_variables=key_variables(spec))


def _refuse_nonsense(spec: PolicySpec) -> None:
    for name, least in (("max_retries", 0), ("max_concurrency", 1)):
        if getattr(spec, name) < least:
            raise InvalidInput(f"{name} is {getattr(spec, name)}; it must be at least {least}")
    if not spec.deadline_seconds > 0:
        raise InvalidInput(f"deadline_seconds is {spec.deadline_seconds}; it must be more than 0")


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
