"""The conformance check: whether an environment keeps the contract that agents, workers and trainers rely on.

A user calls `check_environment` in a test of theirs. It plays episodes, sane and insane ones, and says what to fix.
"""

import asyncio
import inspect
import random
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from outrider.core.chat import Message, Role, ToolCall, assistant
from outrider.env.protocol import Environment, Observation, Step
from outrider.testing.clock import eventually
from outrider.testing.elsewhere import encoded, opening_of
from outrider.testing.shapes import Unfit, check_observation, check_score, check_step, check_tools

SETTLE_SECONDS = 2.0
"""How long what was closed may take to be gone."""

GARBAGE = (
    "",
    " \n\t ",
    "I would rather not.",
    "<answer></answer>",
    "<answer>💥 no such thing</answer>",
    f"<answer>{'9' * 5_000}</answer>",
    "<answer>" * 2_000,
    '{"action": [1, 2',
    "a" * 100_000,
    "NUL \x00 and \u202e bidi",
)
"""What models say when they lose the thread."""

_PROBE = 20_170_801
_ARGUMENTS = ("{not json", "[]", '"text"', "null")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conformance:
    """What was checked. `elsewhere`: why no other process was asked for the same opening; empty: one was."""

    n_steps: int
    elsewhere: str = ""


async def check_environment(
    make: Callable[[], Environment],
    *,
    actions: Sequence[str | Message] = (),
    seed: int = 0,
    call_seconds: float = 30.0,
) -> Conformance:
    """Raise AssertionError with everything that must be fixed in the environments that `make` returns.

    `actions` are played as one episode that makes sense; give some that reach the end. Each call may take
    `call_seconds`. If `make` is a function of a module, another process is asked for the opening of the same seed too.
    """
    played = [action if isinstance(action, Message) else assistant(action) for action in actions]
    checks = _Checks(make, played or [assistant(text) for text in GARBAGE[:3]], seed, call_seconds)
    problems: list[str] = []
    for check in (
        checks.each_is_new,
        checks.tools_are_described,
        checks.same_seed_same_episode,
        checks.global_random_is_left_alone,
        checks.garbage_is_answered,
        checks.tool_calls_are_answered,
        checks.a_score_at_any_time,
        checks.closing,
    ):
        try:
            await check()
        except Unfit as exc:
            problems.append(str(exc))
    reason = ""
    if not problems:
        try:
            reason = await checks.same_opening_elsewhere()
        except Unfit as exc:
            problems.append(str(exc))
    if problems:
        lines = "\n".join(f"- {problem}" for problem in dict.fromkeys(problems))
        raise AssertionError(f"this environment does not keep the contract:\n{lines}")
    return Conformance(n_steps=checks.n_steps, elsewhere=reason)


class _Watched:
    """One episode whose every answer is looked at. Its methods raise `Unfit`."""

    def __init__(self, env: Environment, seconds: float) -> None:
        self.env = env
        self.n_steps = 0
        self._seconds = seconds

    async def reset(self, seed: int) -> Observation:
        observation = await self._call("reset", self.env.reset, seed)
        check_observation(observation, "reset")
        if not observation:
            raise Unfit("reset returned no message, so the agent has nothing to answer; return at least one")
        opening: Observation = observation
        return opening

    async def step(self, action: Message) -> Step:
        self.n_steps += 1
        step = await self._call("step", self.env.step, action)
        checked = check_step(step, action)
        if not (checked.observation or checked.terminated or checked.truncated):
            raise Unfit(
                "step returned neither a message nor an end, so the agent has nothing to answer; "
                "return an observation, or terminated=True"
            )
        return checked

    async def score(self) -> None:
        check_score(await self._call("score", self.env.score))

    async def close(self) -> None:
        await self._call("close", self.env.close)

    async def _call(self, name: str, method: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        asked = f"{name}({_shown(args[0])})" if args else f"{name}()"
        try:
            async with asyncio.timeout(self._seconds) as scope:
                answer = method(*args)
                if inspect.isawaitable(answer):
                    return await answer
        except Exception as exc:
            if scope.expired():
                raise Unfit(f"{asked} did not return within {self._seconds:g} s; bound what it waits for") from exc
            hint = "; what an agent gets wrong belongs into the observation" if name == "step" else ""
            raise Unfit(f"{asked} raised {type(exc).__name__}: {exc}{hint}") from exc
        raise Unfit(f"{name} is not async; write `async def {name}`")


class _Checks:
    """One method a rule; each plays on environments of its own."""

    def __init__(
        self, make: Callable[[], Environment], actions: Sequence[Message], seed: int, call_seconds: float
    ) -> None:
        self.n_steps = 0
        self._make = make
        self._actions = actions
        self._seed = seed
        self._seconds = call_seconds

    @asynccontextmanager
    async def _episode(self) -> AsyncIterator[_Watched]:
        try:
            made = self._make()
        except Exception as exc:
            raise Unfit(f"make() raised {type(exc).__name__}: {exc}") from exc
        watched = _Watched(made, self._seconds)
        try:
            yield watched
        except BaseException:
            with suppress(Unfit):  # the first problem is the one to report
                await watched.close()
            raise
        finally:
            self.n_steps += watched.n_steps
        await watched.close()

    async def _play(self, watched: _Watched, actions: Sequence[Message]) -> list[Step]:
        steps = []
        for action in actions:
            steps.append(await watched.step(action))
            if steps[-1].terminated or steps[-1].truncated:
                break
        return steps

    async def each_is_new(self) -> None:
        async with self._episode() as first, self._episode() as second:
            if first.env is second.env:
                raise Unfit("make() returned the same environment twice; an environment is one episode, make a new one")

    async def tools_are_described(self) -> None:
        async with self._episode() as episode:
            check_tools(episode.env.tools)

    async def same_seed_same_episode(self) -> None:
        async with self._episode() as alone:
            opening = await alone.reset(self._seed)
            steps = await self._play(alone, self._actions)
        async with self._episode() as other, self._episode() as again:
            await other.reset(self._seed + 1)
            _same("opening", opening, await again.reset(self._seed))
            has_ended = False
            for i, action in enumerate(self._actions[: len(steps)]):
                if not has_ended:  # what another episode does in between must make no difference
                    aside = await other.step(action)
                    has_ended = aside.terminated or aside.truncated
                step = await again.step(action)
                _same(f"observation of step {i + 1}", steps[i].observation, step.observation)
                _same(f"reward and end of step {i + 1}", steps[i][1:4], step[1:4])

    async def same_opening_elsewhere(self) -> str:
        """Why no other process could be asked; empty if one gave the same opening."""
        async with self._episode() as here:
            opening = await here.reset(self._seed)
        found = await opening_of(self._make, self._seed, within_seconds=2 * self._seconds)
        if found.failure:
            raise Unfit(f"in another process the episode did not open: {found.failure}")
        if not found.unreachable and found.opening != encoded(opening):
            raise Unfit(
                f"seed {self._seed} opens otherwise in another process: here {_shown(opening)}, there "
                f"{found.opening[:200]}; do not depend on hash(), the order of sets, the time or the process"
            )
        return found.unreachable

    async def global_random_is_left_alone(self) -> None:
        with _probed_random() as is_untouched:
            async with self._episode() as episode:
                await episode.reset(self._seed)
                await self._play(episode, self._actions)
            if not is_untouched():
                raise Unfit(
                    "the global random state was used; episodes that run side by side would disturb each other: "
                    "keep a random.Random(seed) of your own"
                )

    async def garbage_is_answered(self) -> None:
        for text in GARBAGE:
            async with self._episode() as episode:
                await episode.reset(self._seed)
                await self._play(episode, [assistant(text)] * 2)

    async def tool_calls_are_answered(self) -> None:
        async with self._episode() as episode:
            check_tools(episode.env.tools)
            names = [tool.name for tool in episode.env.tools]
        wrong = [_call(0, "no_such_tool", "{}"), *(_call(i, name, "{not json") for i, name in enumerate(names, 1))]
        messages = [assistant("", tuple(wrong))]
        messages += [assistant("", (_call(0, name, arguments),)) for name in names for arguments in _ARGUMENTS]
        for message in messages:
            async with self._episode() as episode:
                await episode.reset(self._seed)
                await episode.step(message)

    async def a_score_at_any_time(self) -> None:
        async with self._episode() as untouched:
            await untouched.reset(self._seed)
            await untouched.score()
        async with self._episode() as episode:
            await episode.reset(self._seed)
            await self._play(episode, self._actions)
            await episode.score()

    async def closing(self) -> None:
        tasks, threads = _tasks(), _threads()
        async with self._episode() as episode:
            await episode.reset(self._seed)
            await self._play(episode, self._actions[:1])
            await episode.close()  # the block closes it once more
        async with self._episode() as episode:
            await episode.reset(self._seed)
            try:
                async with asyncio.timeout(0):
                    await episode.env.step(self._actions[0])
            except TimeoutError:
                pass  # a step that was cancelled must not keep the environment from closing
            except Exception as exc:
                raise Unfit(f"a step that was cancelled raised {type(exc).__name__}: {exc}") from exc

        async def is_tidy() -> bool:
            return _tasks() <= tasks and _threads() <= threads

        try:
            await eventually(is_tidy, within_seconds=SETTLE_SECONDS)
        except TimeoutError:
            left = [*(task.get_name() for task in _tasks() - tasks), *(thread.name for thread in _threads() - threads)]
            raise Unfit(f"close left tasks or threads running: {', '.join(left)}; stop and await them") from None


def _call(number: int, name: str, arguments: str) -> ToolCall:
    return ToolCall(id=f"call-{number}", name=name, arguments=arguments)


def _same(what: str, first: Any, second: Any) -> None:
    if first != second:
        raise Unfit(
            f"the {what} differs between two environments with the same seed and actions: {_shown(first)} and "
            f"{_shown(second)}; draw everything from the seed, and share no state between environments"
        )


def _shown(value: Any) -> str:
    """`value` in a line of an error message."""
    if isinstance(value, Message):
        value = value.content or list(value.tool_calls)
    elif isinstance(value, tuple):
        value = [item.content if isinstance(item, Message) and item.role is not Role.SYSTEM else item for item in value]
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"  # noqa: PLR2004 a readable length


@contextmanager
def _probed_random() -> Iterator[Callable[[], bool]]:
    """Put the global generators into a state that nobody would set, tell whether they are still in it, set them back.

    An environment that seeds them like the last one would otherwise leave no trace.
    """
    numpy = sys.modules.get("numpy")
    state, probe = random.getstate(), random.Random(_PROBE).getstate()
    random.setstate(probe)
    if numpy is not None:
        numpy_state, numpy_probe = numpy.random.get_state(), numpy.random.RandomState(_PROBE).get_state()
        numpy.random.set_state(numpy_probe)

    def is_untouched() -> bool:
        if numpy is not None and _plain_state(numpy.random.get_state()) != _plain_state(numpy_probe):
            return False
        return random.getstate() == probe

    try:
        yield is_untouched
    finally:
        random.setstate(state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)


def _plain_state(state: Any) -> tuple[bytes, int]:
    _, keys, position, *_ = state
    return keys.tobytes(), position


def _tasks() -> set["asyncio.Task[Any]"]:
    return asyncio.all_tasks()


def _threads() -> set[threading.Thread]:
    """All but those of the event loop's own pool, which live as long as the loop."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")}
