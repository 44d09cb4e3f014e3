"""A user's own class as an environment: gymnasium's shape in plain text, sync or async, or a subclass of ours."""

import asyncio
import contextvars
import inspect
import math
import queue
import threading
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any

from outrider.core.artifact import Artifact
from outrider.core.chat import Message, ToolSpec, user
from outrider.core.errors import EnvError, InvalidInput
from outrider.core.task import Task
from outrider.env.protocol import Environment, Environments, Needs, Observation, Score, Step
from outrider.env.tools import answer_calls
from outrider.pool.source import Machine

CLOSE_SECONDS = 10.0
"""How long a blocking environment may take to return from its last call and close."""

_STEP_SHAPE = "(obs, reward, terminated, truncated, info)"
_STEP_LENGTH = 5


class EpisodeThread:
    """One thread for all blocking calls of one episode, started with the first of them.

    Objects that may be used in one thread only (database connections, browsers) are thus safe, and a call that never
    returns holds up neither the event loop, nor other episodes, nor the exit of the process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What `function` returns or raises. If the caller is cancelled, the call goes on and its answer is dropped."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"env {self._name}", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def run() -> None:
            try:
                outcome, settle = context.run(function, *args, **kwargs), done.set_result
            except BaseException as exc:  # noqa: BLE001 raised again in the coroutine that waits
                outcome, settle = _carried(exc), done.set_exception
            try:
                loop.call_soon_threadsafe(lambda: None if done.done() else settle(outcome))
            except RuntimeError:  # the loop has ended: nobody waits any more
                return

        self._calls.put(run)
        return await done

    async def close(self, last: Callable[[], Any]) -> None:
        """Make the last call, if there was a first, and end the thread.

        Raises `EnvError` if a call that is under way does not return.
        """
        if self._thread is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.call(last)
        except TimeoutError:
            message = f"{self._name} has not returned for {CLOSE_SECONDS:g} s; its thread is left to end by itself"
            raise EnvError(message, stage="env.close") from None
        finally:
            self._calls.put(None)
            self._thread = None

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _carried(error: BaseException) -> BaseException:
    """A future cannot carry StopIteration, and SystemExit in an environment must not end the worker."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    carried = EnvError(f"the environment raised {type(error).__name__}: {error}")
    carried.__cause__ = error
    return carried


class TextEnvironment(Environment):
    """An object whose `reset(seed)` and `step(text)` speak text. Its observations are the user's messages.

    If its methods are `async` they run on the event loop; if not, it is made, used and closed in a thread of its own.
    """

    def __init__(self, make: Callable[[], Any], *, name: str, is_async: bool) -> None:
        self._make = make
        self._name = name
        self._thread = None if is_async else EpisodeThread(name)
        self._env: Any = None

    async def reset(self, seed: int | None = None) -> Observation:
        answer = await self._call(self._begin, seed)
        observation = answer[0] if isinstance(answer, tuple) and answer else answer
        return (user(self._text(observation, "reset")),)

    def _begin(self, seed: int | None) -> Any:
        # Kept at once, so that it is closed even if the one who waits for it has been cancelled.
        self._env = self._make()
        return _seeded(self._env.reset, seed)()

    async def step(self, action: Message) -> Step:
        if self._env is None:
            raise EnvError(f"{self._name}: the episode has not begun, or is closed", stage="env.step")
        if action.tool_calls:
            answers, _ = await answer_calls(action.tool_calls, ())
            return Step(answers)
        answer = await self._call(self._env.step, action.content)
        if not isinstance(answer, tuple) or len(answer) != _STEP_LENGTH:
            raise self._wrong("step", f"{answer!r:.80}", _STEP_SHAPE)
        observation, reward, terminated, truncated, info = answer
        if terminated is None or truncated is None:
            raise self._wrong("step", "None for terminated or truncated", "True or False")
        has_ended = bool(terminated or truncated)
        text = self._text(observation, "step")
        return Step(
            () if has_ended and not text else (user(text),),
            self._number(reward),
            bool(terminated),
            bool(truncated),
            {} if info is None else info,
        )

    async def close(self) -> None:
        if self._thread is not None:
            await self._thread.close(self._end)
        else:
            await self._call(self._end)

    def _end(self) -> Any:
        env, self._env = self._env, None
        close = getattr(env, "close", None)
        return None if close is None else close()

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        if self._thread is not None:
            return await self._thread.call(function, *args)
        answer = function(*args)
        return await answer if inspect.isawaitable(answer) else answer

    def _text(self, observation: object, method: str) -> str:
        if not isinstance(observation, str):
            raise self._wrong(method, f"an observation of type {type(observation).__name__}", "a str")
        return observation

    def _number(self, reward: Any) -> float:
        try:
            number = float(reward)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise self._wrong("step", f"the reward {reward!r:.40}", "a finite number")
        return number

    def _wrong(self, method: str, given: str, wanted: str) -> EnvError:
        error = EnvError(f"{self._name}: {method} returned {given}; return {wanted}", stage=f"env.{method}")
        error.stops_if_shared = method == "reset"
        return error


def _seeded(reset: Callable[..., Any], seed: int | None) -> Callable[[], Any]:
    """`reset` with its seed, by keyword where it has that name, as in gymnasium."""
    if "seed" in inspect.signature(reset).parameters:
        return partial(reset, seed=seed)
    return partial(reset, seed)


class FixedSeed(Environment):
    """An environment that begins from the seed its task fixes, whatever seed the rollout has."""

    def __init__(self, environment: Environment, seed: int) -> None:
        self._environment = environment
        self._seed = seed

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return self._environment.tools

    def board(self, machine: Machine) -> None:
        self._environment.board(machine)

    async def reset(self, seed: int | None = None) -> Observation:  # noqa: ARG002 the task's counts
        return await self._environment.reset(self._seed)

    async def step(self, action: Message) -> Step:
        return await self._environment.step(action)

    async def score(self) -> Score | None:
        return await self._environment.score()

    def artifacts(self) -> tuple[Artifact, ...]:
        return self._environment.artifacts()

    async def close(self) -> None:
        await self._environment.close()


def with_task_seed(environment: Environment, task: Task) -> Environment:
    """`environment`, with its seed fixed if the task's metadata has one."""
    seed = task.metadata.get("seed")
    if seed is None:
        return environment
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise InvalidInput(f"task {task.task_id!r}: metadata.seed must be a whole number, not {seed!r:.40}")
    return FixedSeed(environment, seed)


class ClassEnvironments(Environments):
    """One instance of a user's class per episode: a subclass of `Environment`, or text in gymnasium's shape.

    The class is called with the configuration as keywords, and with `task` if it takes an argument of that name.
    """

    def __init__(self, kind: type, *, name: str, config: Mapping[str, Any]) -> None:
        self._kind = kind
        self._name = name
        self._config = dict(config)
        self._takes_task = "task" in inspect.signature(kind).parameters
        self._speaks_text = Environment not in kind.__mro__
        if self._speaks_text:
            _check_shape(kind, name)
        check_arguments(kind, name, {**self._config, **({"task": None} if self._takes_task else {})})

    def make(self, task: Task) -> Environment:
        make = partial(self._kind, **self._config, **({"task": task} if self._takes_task else {}))
        if not self._speaks_text:
            environment: Environment = make()
            return with_task_seed(environment, task)
        is_async = any(map(inspect.iscoroutinefunction, (self._kind.reset, self._kind.step)))  # type: ignore[attr-defined]
        return with_task_seed(TextEnvironment(make, name=self._name, is_async=is_async), task)

    @property
    def needs(self) -> Needs | None:
        """What the class itself says, in an attribute of that name."""
        return getattr(self._kind, "needs", None)

    async def check(self) -> None: ...

    async def close(self) -> None: ...


def needs_task(kind: type) -> bool:
    """Whether the class cannot be made without a task."""
    task = inspect.signature(kind).parameters.get("task")
    return task is not None and task.default is task.empty


def check_arguments(kind: type, name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a configuration that the class cannot be called with."""
    signature = inspect.signature(kind)
    try:
        signature.bind(**arguments)
    except TypeError as exc:
        known = [known for known in signature.parameters if known != "task"]
        unknown = next((given for given in arguments if given not in signature.parameters), "")
        near = get_close_matches(unknown, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known) or 'nothing'}"
        raise InvalidInput(f"{name} cannot be made with this configuration: {exc}; {hint}") from exc


def _check_shape(kind: type, name: str) -> None:
    for method, example in {"reset": "reset(self, seed)", "step": "step(self, action)"}.items():
        function = getattr(kind, method, None)
        if not callable(function):
            raise InvalidInput(f"{name} has no {method}; write `def {example}`, or subclass outrider.env.Environment")
        try:
            inspect.signature(function).bind(None, None)
        except TypeError:
            if "seed" not in inspect.signature(function).parameters:
                raise InvalidInput(
                    f"{name}: {method} cannot be called with one argument; write `def {example}`"
                ) from None
