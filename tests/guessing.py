"""Two small worlds for tests of agents, one with tools and one without, and scripts that play them."""

import random
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from outrider import Runner, Store, open_store
from outrider.agent import AgentFunction, ChatAgent, EpisodeKit
from outrider.core.chat import Message, Role, ToolCall, ToolSpec, assistant, system, user
from outrider.core.event import EventKind, RecordedEvent
from outrider.core.rollout import Rollout
from outrider.core.task import Task
from outrider.env import Environment, Environments, Observation, Score, Step
from outrider.env.tools import answer_calls, tool
from outrider.policy import ChatPolicy, Completion, Probe, Sampling
from outrider.policy.scripted.policy import ScriptedPolicy, ScriptOptions
from outrider.policy.scripted.protocol import Script

HIGHEST = 100


class Guess(Struct):
    number: int


class GuessingGame(Environment):
    """Find the number: each guess is a call of a tool. Its worth is 1 for the number, whatever came before."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._tools = (tool("guess", "Guess the number.", Guess, self._guess),)
        self._secret = 0
        self._n_guesses = 0
        self._found = False
        self.closed = False

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools)

    async def reset(self, seed: int | None = None) -> Observation:
        self._secret = random.Random(seed).randint(1, HIGHEST)
        return (system("A guessing game."), user(self._task.question or f"Guess a number from 1 to {HIGHEST}."))

    async def step(self, action: Message) -> Step:
        if not action.tool_calls:
            return Step((user("Use the tool."),), info={"answer": action.content})
        answers, _ = await answer_calls(action.tool_calls, self._tools)
        return Step(answers, terminated=self._found, info={"n_guesses": self._n_guesses})

    async def score(self) -> Score:
        return Score(
            reward=float(self._found),
            output=self._secret if self._found else None,
            metrics={"guesses": float(self._n_guesses)},
            explanation=f"the number was {self._secret}",
        )

    async def close(self) -> None:
        self.closed = True

    async def _guess(self, guess: Guess) -> str:
        self._n_guesses += 1
        self._found = guess.number == self._secret
        return "right" if self._found else "higher" if self._secret > guess.number else "lower"


class CountingGame(Environment):
    """Count in plain text, from 1 on: each number in its turn is worth 1; after `limit` messages it is over."""

    def __init__(self, task: Task) -> None:
        self._limit = int(task.metadata.get("limit", 5))
        self._n_steps = 0
        self._next = 1

    async def reset(self, seed: int | None = None) -> Observation:
        return (system("A counting game."), user("Count, one number at a time."))

    async def step(self, action: Message) -> Step:
        self._n_steps += 1
        is_next = action.content.strip() == str(self._next)
        self._next += is_next
        return Step((user("good" if is_next else "no"),), float(is_next), truncated=self._n_steps >= self._limit)

    async def close(self) -> None: ...


class Games(Environments):
    """Makes environments by a class, and remembers them."""

    def __init__(self, make: Callable[[Task], Environment]) -> None:
        self._make = make
        self.made: list[Any] = []

    def make(self, task: Task) -> Environment:
        self.made.append(self._make(task))
        return self.made[-1]

    async def check(self) -> None: ...

    async def close(self) -> None: ...


class Bisecting(Script):
    """Knows how to guess, by tool calls or in the form of ReAct."""

    def understands(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        return messages[0].content.startswith("A guessing game.")

    def solve(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        low, high = 1, HIGHEST
        for message in messages:
            middle = (low + high) // 2
            if "higher" in message.content and message.role is not Role.SYSTEM:
                low = middle + 1
            elif "lower" in message.content and message.role is not Role.SYSTEM:
                high = middle - 1
        return self._say((low + high) // 2, messages, tools)

    def guess(self, messages: Sequence[Message], tools: Sequence[ToolSpec], rng: random.Random) -> Message:
        return self._say(rng.randint(1, HIGHEST), messages, tools)

    def _say(self, number: int, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        if tools:
            return assistant("", (call("guess", f'{{"number": {number}}}', id=f"call-{len(messages)}"),))
        return assistant(f'Thought: halve it\nAction: guess\nAction Input: {{"number": {number}}}')


class Counting(Script):
    """Knows how to count."""

    def understands(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        return messages[0].content.startswith("A counting game.")

    def solve(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        numbers = [int(message.content) for message in messages if re.fullmatch(r"\d+", message.content)]
        return assistant(str(len(numbers) + 1))

    def guess(self, messages: Sequence[Message], tools: Sequence[ToolSpec], rng: random.Random) -> Message:
        return assistant(str(rng.randint(1, 9)))


class Lines(Script):
    """Says what it was given, one message after the other; the last one again and again."""

    def __init__(self, *lines: str | Message) -> None:
        self._lines = [assistant(line) if isinstance(line, str) else line for line in lines]

    def understands(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        return True

    def solve(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        n_said = sum(message.role is Role.ASSISTANT for message in messages)
        return self._lines[min(n_said, len(self._lines) - 1)]

    def guess(self, messages: Sequence[Message], tools: Sequence[ToolSpec], rng: random.Random) -> Message:
        return self.solve(messages, tools)


def call(name: str, arguments: str = "{}", *, id: str = "call-1") -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


def scripted(*scripts: Script, **options: Any) -> ScriptedPolicy:
    """A scripted policy on these scripts, or on those of the two games."""
    chosen = scripts or (Bisecting(), Counting())
    named = {f"script {i}": script for i, script in enumerate(chosen)}
    return ScriptedPolicy(named, name="builtin:test", options=ScriptOptions(**options))


class Played:
    """A finished rollout and what was recorded of it."""

    def __init__(self, rollout: Rollout, events: Sequence[RecordedEvent]) -> None:
        self.rollout = rollout
        self.events = events

    def of(self, kind: EventKind) -> list[RecordedEvent]:
        return [event for event in self.events if event.kind is kind]


@asynccontextmanager
async def memory() -> AsyncIterator[Store]:
    async with open_store("memory://") as store:
        yield store


async def play(
    policy: ChatPolicy,
    agent: AgentFunction | None = None,
    *,
    environments: Mapping[str, Environments] | None = None,
    tag: str | None = "guessing",
    task: Any = None,
    sampling: Sampling | None = None,
    **request: Any,
) -> Played:
    """Run one rollout to its end, in a store in memory."""
    games = environments or {"guessing": Games(GuessingGame), "counting": Games(CountingGame)}
    kit = EpisodeKit(policy=policy, environments=games, agent=agent or ChatAgent(), sampling=sampling or Sampling())
    async with memory() as store:
        rollout = await Runner(store, episodes=kit.episodes).step(task or {"question": ""}, tag=tag, **request)
        return Played(rollout, list(await store.query_events(rollout.rollout_id)))


class Watched(ChatPolicy):
    """Passes calls on and remembers them."""

    def __init__(self, inner: ChatPolicy) -> None:
        self._inner = inner
        self.requests: list[tuple[Message, ...]] = []
        self.samplings: list[Sampling | None] = []
        self.sessions: list[str] = []
        self.tools: list[Sequence[ToolSpec]] = []
        self.closed = False

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling | None = None,
        session: str = "",
    ) -> Completion:
        self.requests.append(tuple(messages))
        self.samplings.append(sampling)
        self.sessions.append(session)
        self.tools.append(tools)
        return await self._inner.complete(messages, tools=tools, sampling=sampling, session=session)

    async def check(self, sampling: Sampling | None = None, probe: Probe | None = None) -> None: ...

    async def close(self) -> None:
        self.closed = True


class Failing(Watched):
    """Fails with the error it was given."""

    def __init__(self, error: Exception, inner: ChatPolicy | None = None) -> None:
        super().__init__(inner or scripted())
        self._error = error

    async def complete(self, messages: Sequence[Message], **_: Any) -> Completion:
        raise self._error


def result_of(played: Played) -> dict[str, Any]:
    [event] = [event for event in played.of(EventKind.REWARD) if event.name == "result"]
    return dict(event.data)
