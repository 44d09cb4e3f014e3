"""Whether an endpoint can be used at all: asked once, before thousands of calls are."""

from collections.abc import Sequence
from difflib import get_close_matches

from msgspec import Struct

from outrider.core.chat import user
from outrider.core.clock import Clock
from outrider.core.decoding import from_json
from outrider.core.errors import PolicyError
from outrider.policy.openai.address import URL_VARIABLE
from outrider.policy.openai.deadline import Deadline
from outrider.policy.openai.endpoints import Endpoint
from outrider.policy.openai.failure import Setback, UnknownModel, error_of, refusal_of
from outrider.policy.openai.request import Request
from outrider.policy.openai.transport import Exchange, Transport
from outrider.policy.protocol import Sampling
from outrider.policy.spec import PolicySpec

LIST_SECONDS = 5.0
PROBE_SECONDS = 10.0
N_SHOWN = 5
_HAS_NO_LIST = frozenset({404, 405, 501})


class Model(Struct):
    """One that the server has."""

    id: str


class ModelList(Struct):
    """The answer to GET /models."""

    data: list[Model]


async def fault_of(endpoint: Endpoint, transport: Transport, spec: PolicySpec, clock: Clock) -> str | None:
    """What is wrong and what to do about it, or None. A server that is merely busy counts as usable."""
    url = endpoint.base_url
    try:
        names = await _names(endpoint, transport, spec, clock)
        if names is None or spec.model not in names:
            # Not every model is on the list: aliases and adapters are not. The server itself knows best.
            await _probe(endpoint, transport, spec, clock, must_answer=bool(names))
    except TimeoutError:
        return f"{url} does not answer; is it the right address, and is the server well?"
    except UnknownModel as exc:
        return f"{exc}{_shown(names or (), spec.model)}"
    except Setback as exc:
        if exc.is_overload:
            return None
        return f"{exc}. Start the server, or give the right address with --base-url or {URL_VARIABLE}"
    except PolicyError as exc:
        return str(exc)
    return None


async def known_models(endpoint: Endpoint, transport: Transport, spec: PolicySpec, clock: Clock) -> str:
    """Some models of the server, those with names like the wanted one first, as the end of a message."""
    if endpoint.models is None:
        try:
            endpoint.models = tuple(await _names(endpoint, transport, spec, clock) or ())
        except (PolicyError, TimeoutError):
            endpoint.models = ()
    return _shown(endpoint.models, spec.model)


async def _names(endpoint: Endpoint, transport: Transport, spec: PolicySpec, clock: Clock) -> list[str] | None:
    """The server's models; None if it has no list of them."""
    async with Deadline(clock) as limit:
        limit.start(LIST_SECONDS)
        exchange = await transport.get(endpoint.url("models"))
    if exchange.status in _HAS_NO_LIST:
        return None
    if exchange.status != 200:  # noqa: PLR2004
        raise _error(exchange, endpoint, spec, clock)
    try:
        return [model.id for model in from_json(exchange.body, ModelList).data]
    except (ValueError, RecursionError):
        return None


async def _probe(
    endpoint: Endpoint, transport: Transport, spec: PolicySpec, clock: Clock, *, must_answer: bool
) -> None:
    """Ask for one token. A server that takes longer has at least taken the model and the key."""
    request = Request(model=spec.model, messages=[user("Hi")], sampling=Sampling(max_tokens=1))
    try:
        async with Deadline(clock) as limit:
            limit.start(PROBE_SECONDS)
            exchange = await transport.post(endpoint.chat_url, request.body(endpoint.dialect))
    except TimeoutError:
        if must_answer:
            raise UnknownModel(
                f"{endpoint.base_url} does not list the model {spec.model!r}", stage="policy.complete"
            ) from None
        return
    error = None if exchange.status == 200 else _error(exchange, endpoint, spec, clock)  # noqa: PLR2004
    if error is not None and (error.stops_run or isinstance(error, Setback)):
        raise error


def _error(exchange: Exchange, endpoint: Endpoint, spec: PolicySpec, clock: Clock) -> PolicyError:
    return error_of(
        refusal_of(exchange.status, exchange.body),
        exchange.headers,
        model=spec.model,
        key_variable=endpoint.key_variable,
        url=str(endpoint.base_url),
        now=clock.time(),
    )


def _shown(names: Sequence[str], wanted: str) -> str:
    if not names:
        return ""
    like = get_close_matches(wanted, names, n=N_SHOWN, cutoff=0.3)
    shown = list(dict.fromkeys([*like, *names]))[:N_SHOWN]
    more = "" if len(names) <= len(shown) else f", and {len(names) - len(shown)} more"
    return f"; it has {', '.join(shown)}{more}"
