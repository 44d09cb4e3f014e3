"""A user's function as an agent: `async def agent(task, ctx)`, or a plain `def` in a thread of its own."""

import asyncio
import contextvars
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, cast

from outrider.agent.chat import ChatAgent
from outrider.agent.context import Context
from outrider.agent.protocol import AgentFunction, EpisodeFactory, Result, no_stage, scored_already
from outrider.agent.react import ReActAgent
from outrider.core.errors import AgentError, InvalidInput, described
from outrider.core.forks import exit_if_forked
from outrider.core.loading import load, users_code

Call = Callable[[Any, Context], Awaitable[object]]
"""Calls an agent with a task, and returns what it does."""

BUNDLED: Mapping[str, Callable[..., AgentFunction]] = MappingProxyType({"chat": ChatAgent, "react": ReActAgent})
"""Agents that have a name."""


class FunctionEpisode:
    """One call of the function. It needs no machine and no environment, and its answer is its score."""

    def __init__(self, call: Call) -> None:
        self._call = call

    boot = setup = close = no_stage
    score = scored_already

    async def act(self, ctx: Context) -> Result:
        return _result_of(await self._call(ctx.rollout.input, ctx))


def episodes_of(agent: AgentFunction | str) -> EpisodeFactory:
    """Episodes that call `agent`, a function or its name as `module:function`."""
    function = load_function(agent) if isinstance(agent, str) else agent
    check_signature(function)
    call = caller_of(function)
    return lambda _: FunctionEpisode(call)


def agent_of(name: str, **settings: Any) -> AgentFunction:
    """The agent called `chat` or `react`, or the function or class named `module:function`.

    `settings` are those of a class, such as `max_turns`; a function has none.
    """
    if name not in BUNDLED and ":" not in name:
        raise InvalidInput(
            f"there is no agent {name!r}; name {', '.join(BUNDLED)}, team:NAME, or your own as module:function"
        )
    found: Any = BUNDLED.get(name) or load_function(name)
    if inspect.isclass(found):
        found = made(name, found, settings)
    elif settings:
        raise InvalidInput(f"agent {name!r} is a function and takes no settings, such as {next(iter(settings))}")
    check_signature(found)
    return cast("AgentFunction", found)


def caller_of(function: AgentFunction) -> Call:
    """How to call the agent; a function that is not `async` runs in a thread of its own."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return cast("Call", function)

    async def call(task: Any, ctx: Context) -> object:
        answer = await _in_thread(function, task, ctx)
        return await answer if inspect.isawaitable(answer) else answer

    return call


def load_function(name: str) -> AgentFunction:
    """The function named `module:function`."""
    return cast("AgentFunction", load(name, "agent", such_as="my_agents:solve"))


def made(name: str, kind: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    """What a class or function makes of `settings`; `InvalidInput` if it does not take them."""
    signature = inspect.signature(kind)
    try:
        signature.bind(**settings)
    except TypeError as exc:
        takes = ", ".join(signature.parameters) or "none"
        raise InvalidInput(f"agent {name!r} cannot be made with these settings: {exc}; it takes {takes}") from exc
    with users_code(f"agent {name!r}"):
        return kind(**settings)


def check_signature(function: AgentFunction) -> None:
    """Refuse what cannot be called as `agent(task, ctx)`."""
    if not callable(function):
        raise InvalidInput(f"agent {function!r} is not a function; give `async def agent(task, ctx)`")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as exc:
        name = getattr(function, "__name__", repr(function))
        raise InvalidInput(f"agent {name!r} cannot be called as agent(task, ctx): {exc}") from exc


def _result_of(answer: object) -> Result:
    if isinstance(answer, Result):
        return answer
    if answer is None or isinstance(answer, int | float):
        return Result(reward=None if answer is None else float(answer))
    raise AgentError(f"the agent returned {type(answer).__name__}; return a number, a Result or None", stage="agent")


async def _in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call a blocking function in a new daemon thread: one that never returns holds up neither a pool nor the exit."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not done.done():
            set_outcome(outcome)

    pid = os.getpid()

    def call() -> None:
        try:
            with exit_if_forked(pid):
                outcome, set_outcome = context.run(function, *args), done.set_result
        except BaseException as exc:  # noqa: BLE001 raised again in the coroutine that waits
            outcome, set_outcome = _carried(exc), done.set_exception
        try:
            loop.call_soon_threadsafe(settle, set_outcome, outcome)
        except RuntimeError:  # the loop has ended: nobody waits any more
            return

    threading.Thread(target=call, name=f"agent {getattr(function, '__name__', '')}", daemon=True).start()
    return await done


def _carried(error: BaseException) -> BaseException:
    """What a future carries to the loop: it cannot carry StopIteration, and SystemExit would end the loop there."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    carried = AgentError(f"the agent raised {described(error)}", stage="agent")
    carried.__cause__ = error
    return carried
