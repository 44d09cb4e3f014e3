"""Whether an endpoint can be used at all: asked once, before thousands of calls are.

It is asked for what it is there for, one short answer in a chat. Its list of models says less: some servers have none
or a broken one, and proxies list what they cannot reach. It is only looked at to tell names that were perhaps meant.
"""

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from difflib import get_close_matches

from msgspec import Struct, structs

from outrider.core.chat import Role
from outrider.core.clock import Clock, sleep
from outrider.core.decoding import from_json
from outrider.core.errors import PolicyError
from outrider.policy.openai.address import URL_VARIABLE
from outrider.policy.openai.backoff import pause
from outrider.policy.openai.deadline import Deadline
from outrider.policy.openai.endpoints import Endpoint
from outrider.policy.openai.failure import Setback
from outrider.policy.openai.reply import MalformedReply
from outrider.policy.openai.request import Request
from outrider.policy.openai.transport import Transport
from outrider.policy.protocol import Probe

log = logging.getLogger(__name__)

LIST_SECONDS = 5.0
PROBE_SECONDS = 20.0
"""A server that takes longer for one token is perhaps loading its model."""

N_PROBES = 3
N_SHOWN = 5
SKIP = "--no-check runs nevertheless"

_LIMIT_PHRASES = ("max_tokens", "max_completion_tokens", "output limit", "max_new_tokens")
"""One token is too little for some models; that they say so is answer enough."""

Ask = Callable[[Endpoint, Request], Awaitable[object]]


class Model(Struct):
    """One that the server has."""

    id: str


class ModelList(Struct):
    """The answer to GET /models."""

    data: list[Model]


class Fault(Struct, frozen=True):
    """What is wrong with a server, and what to do about it. `is_of_request`: another request may be answered."""

    said: str
    advice: str = ""
    is_of_request: bool = False

    def __str__(self) -> str:
        return f"{self.said}{self.advice}"


Find = Callable[[Endpoint, Request], Awaitable[Fault | None]]


async def fault_of(endpoint: Endpoint, request: Request, probe: Probe, find: Find) -> str | None:
    """What is wrong and what to do about it, or None. A server that is merely busy or slow counts as usable.

    `request` asks for one token, with all that the policy adds to its requests and what `probe` holds: what the server
    will refuse, it refuses now. If it does, it is asked without those parts, to find out which of them it refuses.
    """
    fault = await find(endpoint, request)
    said = [message for message in request.messages if message.role is not Role.SYSTEM]
    plain = structs.replace(request, messages=said, tools=())
    if fault is None or not fault.is_of_request or not (request.tools or probe.has_system):
        return None if fault is None else str(fault)
    if (fault_of_plain := await find(endpoint, plain)) is not None:
        return str(fault_of_plain)
    ways = []
    if request.tools and await find(endpoint, structs.replace(request, messages=said)) is not None:
        ways.append(f"It answers without tools: {probe.without_tools}")
    if probe.has_system and await find(endpoint, structs.replace(request, tools=())) is not None:
        ways.append(f"It answers without system messages: {probe.without_system}")
    return f"{'. '.join([fault.said, *ways])}; {SKIP}" if ways else str(fault)


async def find_fault(
    endpoint: Endpoint, request: Request, ask: Ask, transport: Transport, clock: Clock
) -> Fault | None:
    """What one request shows to be wrong with the server."""
    try:
        async with Deadline(clock) as limit:
            limit.start(PROBE_SECONDS)
            await _probe(endpoint, request, ask, clock)
    except TimeoutError:
        silence = await _silence(endpoint, request.model, transport, clock)
        return None if silence is None else Fault(silence)
    except Setback as exc:
        return await _setback(exc, endpoint, request.model, transport, clock)
    except MalformedReply as exc:
        return Fault(
            f"{endpoint.base_url} does not answer with chat completions: {exc}. Is it the right base URL? {SKIP}"
        )
    except PolicyError as exc:
        return _refusal(exc)
    return None


def _refusal(error: PolicyError) -> Fault | None:
    if any(phrase in str(error) for phrase in _LIMIT_PHRASES):
        return None
    if error.stops_run:
        return Fault(str(error), is_of_request="tool" in str(error))  # OpenRouter answers 404 then
    return Fault(str(error), f". All such calls would be refused; {SKIP}", is_of_request=True)


async def _setback(error: Setback, endpoint: Endpoint, model: str, transport: Transport, clock: Clock) -> Fault | None:
    """What to make of a server that fails: some do so where the key or the model is wrong."""
    if error.is_gone:
        return Fault(f"{error}. Start the server, or give the right address with --base-url or {URL_VARIABLE}")
    if error.is_overload:
        return None
    models = await known_models(endpoint, transport, model, clock)
    has_model = model in (endpoint.models or ())
    asked = "Is the server well" if has_model else f"Does it have the model {model!r}"
    key = ", and does it want a key (--api-key-env)" if endpoint.key_variable is None else ""
    said = " ".join(str(error).split()).rstrip(".")
    advice = f". {asked}{key}? Its log may say more{'' if has_model else models}; {SKIP}"
    return Fault(said, advice, is_of_request=has_model)


async def _probe(endpoint: Endpoint, request: Request, ask: Ask, clock: Clock) -> None:
    for number in range(N_PROBES):
        try:
            await ask(endpoint, request)
        except (Setback, MalformedReply) as exc:
            is_lasting = isinstance(exc, Setback) and (exc.is_overload or exc.is_gone)
            if is_lasting or number == N_PROBES - 1:
                raise
        else:
            return
        await sleep(clock, pause(number, None, random.Random()))


async def _silence(endpoint: Endpoint, model: str, transport: Transport, clock: Clock) -> str | None:
    """What to make of a server that did not answer in time: it is well if it has the model, or does not tell."""
    url = endpoint.base_url
    try:
        names = await _names(endpoint, transport, clock)
    except (TimeoutError, PolicyError):
        return f"{url} does not answer; is it the right address, and is the server well? {SKIP}"
    if names and model not in names:
        return f"{url} does not answer, and does not list the model {model!r}{_shown(names, model)}. {SKIP}"
    log.warning("%s takes more than %g s for a first token; it may be loading its model", url, PROBE_SECONDS)
    return None


async def known_models(endpoint: Endpoint, transport: Transport, model: str, clock: Clock) -> str:
    """Some models of the server, those with names like the wanted one first, as the end of a message."""
    if endpoint.models is None:
        try:
            endpoint.models = tuple(await _names(endpoint, transport, clock))
        except (PolicyError, TimeoutError):
            endpoint.models = ()
    return _shown(endpoint.models, model)


async def _names(endpoint: Endpoint, transport: Transport, clock: Clock) -> list[str]:
    """The server's models; none if it has no list of them."""
    async with Deadline(clock) as limit:
        limit.start(LIST_SECONDS)
        exchange = await transport.get(endpoint.url("models"))
    if exchange.status != 200:  # noqa: PLR2004
        return []
    try:
        return [model.id for model in from_json(exchange.body, ModelList).data]
    except (ValueError, RecursionError):
        return []


def _shown(names: Sequence[str], wanted: str) -> str:
    if not names:
        return ""
    like = get_close_matches(wanted, names, n=N_SHOWN, cutoff=0.3)
    shown = list(dict.fromkeys([*like, *names]))[:N_SHOWN]
    more = "" if len(names) <= len(shown) else f", and {len(names) - len(shown)} more"
    return f"; it has {', '.join(shown)}{more}"
