"""The conformance check: our games pass, and each broken environment is caught with what to fix."""

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from msgspec import Struct

from leaks import no_leaks
from outrider.core.chat import Message, ToolCall, ToolSpec, assistant, tool_result, user
from outrider.core.task import Task
from outrider.env import Environment, Observation, Score, Step
from outrider.env.adapter import ClassEnvironments
from outrider.env.registry import environments_of
from outrider.env.tools import answer_calls, tool
from outrider.testing import check_environment

ACTIONS = ("<answer>Up</answer>", "<answer>Left</answer>", "<answer>Down</answer>", "<answer>Right</answer>")


class Add(Struct):
    number: int


class Sums(Environment):
    """Keeps the contract: draws numbers, has a tool to add to the sum, ends with the agent's message."""

    def __init__(self) -> None:
        self._rng = random.Random()
        self._sum = 0

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return (self._tool.spec,)

    @property
    def _tool(self) -> Any:
        return tool("add", "Add a number.", Add, self._add)

    async def _add(self, arguments: Add) -> str:
        self._sum += arguments.number
        return str(self._sum)

    async def reset(self, seed: int | None = None) -> Observation:
        self._rng = random.Random(seed)
        return (user(f"reach {self._rng.random():.6f}"),)

    async def step(self, action: Message) -> Step:
        if not action.tool_calls:
            return Step((user(f"{self._rng.random():.6f}"),), float(self._sum), terminated=self._sum > 1)
        answers, _ = await answer_calls(action.tool_calls, (self._tool,))
        return Step(answers)

    async def close(self) -> None: ...


async def problems(make: Callable[[], Environment], **options: Any) -> str:
    """What the check has to say; empty if it is content."""
    try:
        # A lambda is not looked for in another process, which would take long.
        await check_environment(lambda: make(), **options)  # noqa: PLW0108
    except AssertionError as exc:
        return str(exc)
    return ""


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("- ")]


@pytest.mark.parametrize("tag", ["FrozenLake", "SimpleSokoban", "LargerSokoban", "SokobanDifferentGridVocab"])
@pytest.mark.parametrize("actions", [(), ACTIONS * 3], ids=["without actions", "with actions"])
async def test_the_games_conform(tag: str, actions: tuple[str, ...]):
    environments = environments_of(tag)
    async with no_leaks():
        found = await check_environment(lambda: environments.make(Task(task_id="t")), actions=actions)
    assert found.n_steps > 20
    assert found.elsewhere == "`make` is not a function of a module, so another process cannot find it"


async def test_slippery_ice_conforms():
    environments = environments_of("FrozenLake", {"is_slippery": True, "size": 8})
    assert await problems(lambda: environments.make(Task(task_id="t")), actions=ACTIONS) == ""


async def test_an_environment_with_tools_conforms():
    call = assistant("", (ToolCall(id="x", name="add", arguments='{"number": 2}'),))
    assert await problems(Sums, actions=[call, "done"]) == ""


class Guess:
    """A plain class."""

    def reset(self, seed: int | None) -> str:
        self._number = random.Random(seed).randrange(10)
        return f"{self._number % 2}"

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "no", 0.0, action == str(self._number), False, {}


async def test_a_plain_class_conforms():
    environments = ClassEnvironments(Guess, name="my:Guess", config={})
    async with no_leaks():
        assert await problems(lambda: environments.make(Task(task_id="t")), actions=["1", "2"]) == ""


class Unseeded(Sums):
    async def reset(self, seed: int | None = None) -> Observation:
        self._rng = random.Random()
        return (user(f"{self._rng.random()}"),)


class UnseededLater(Sums):
    async def step(self, action: Message) -> Step:
        return (await super().step(action))._replace(reward=random.Random().random())


class Shared(Sums):
    counts: ClassVar[list[int]] = [0]

    async def reset(self, seed: int | None = None) -> Observation:
        self.counts[0] = 0
        return await super().reset(seed)

    async def step(self, action: Message) -> Step:
        self.counts[0] += 1
        return (await super().step(action))._replace(reward=float(self.counts[0]))


class GlobalRandom(Sums):
    async def reset(self, seed: int | None = None) -> Observation:
        random.seed(seed)
        return (user(f"{random.random()}"),)


class GlobalNumpy(Sums):
    async def reset(self, seed: int | None = None) -> Observation:
        import numpy as np

        np.random.seed(seed)  # noqa: NPY002
        return (user(f"{np.random.random()}"),)  # noqa: NPY002


class TextOpening(Sums):
    async def reset(self, seed: int | None = None) -> Any:
        return "hello"


class EmptyOpening(Sums):
    async def reset(self, seed: int | None = None) -> Observation:
        return ()


class AssistantOpening(Sums):
    async def reset(self, seed: int | None = None) -> Observation:
        return (assistant("hello"),)


class UnstorableOpening(Sums):
    async def reset(self, seed: int | None = None) -> Observation:
        return (user("half a character \ud800"),)


class FailingReset(Sums):
    async def reset(self, seed: int | None = None) -> Observation:
        raise OSError("no such level")


class SyncReset(Sums):
    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return (user("hello"),)


class Answering(Sums):
    """Answers with whatever `answer` says."""

    answer: ClassVar[Any] = None

    async def step(self, action: Message) -> Any:
        step = await super().step(action)
        return step._replace(**self.answer) if isinstance(self.answer, dict) else self.answer


def answering(**answer: Any) -> type[Answering]:
    return type("Odd", (Answering,), {"answer": answer})


class Silent(Sums):
    async def step(self, action: Message) -> Step:
        step = await super().step(action)
        return step if action.tool_calls else Step()


class Fragile(Sums):
    async def step(self, action: Message) -> Step:
        if "no such thing" in action.content:
            raise KeyError(action.content)
        return await super().step(action)


class DeafToCalls(Sums):
    async def step(self, action: Message) -> Step:
        return Step((user("what?"),))


class WrongIds(Sums):
    async def step(self, action: Message) -> Step:
        calls = [ToolCall(id="other", name=call.name) for call in action.tool_calls]
        return Step(tuple(tool_result(call, "ok") for call in calls) or (user("ok"),))


class OneAnswerForAll(Sums):
    async def step(self, action: Message) -> Step:
        return Step(tuple(tool_result(call, "ok") for call in action.tool_calls[:1]) or (user("ok"),))


class StrictTools(Sums):
    async def step(self, action: Message) -> Step:
        for call in action.tool_calls:
            if call.name != "add":
                raise ValueError(call.name)
        return await super().step(action)


class StrictArguments(Sums):
    async def step(self, action: Message) -> Step:
        import json

        for call in action.tool_calls:
            if call.name == "add":
                json.loads(call.arguments)["number"]
        return await super().step(action)


class ToolsAsMethod(Sums):
    def tools(self) -> Any:  # type: ignore[override]
        return ()


class TwinTools(Sums):
    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return (self._tool.spec, self._tool.spec)


class NoSchema(Sums):
    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return (ToolSpec(name="add", description="", parameters={"number": "int"}),)


class NoScoreYet(Sums):
    async def step(self, action: Message) -> Step:
        self._last = action
        return await super().step(action)

    async def score(self) -> Score:
        return Score(reward=float(len(self._last.content)))


class BareScore(Sums):
    async def score(self) -> Any:
        return 1.0


class EndlessScore(Sums):
    async def score(self) -> Score:
        return Score(reward=float("inf"))


class WordyMetrics(Sums):
    async def score(self) -> Score:
        return Score(reward=0.0, metrics={"mood": "good"})  # type: ignore[dict-item]


class UnstorableOutput(Sums):
    async def score(self) -> Score:
        return Score(reward=0.0, output={1, 2})


class ClosesOnce(Sums):
    _is_closed = False

    async def close(self) -> None:
        if self._is_closed:
            raise RuntimeError("already closed")
        self._is_closed = True


class NeedsReset(Sums):
    _connection: Any = None

    async def reset(self, seed: int | None = None) -> Observation:
        self._connection = asyncio.Event()
        return await super().reset(seed)

    async def close(self) -> None:
        self._connection.set()


class LeavesTask(Sums):
    left: ClassVar[list[Any]] = []

    async def reset(self, seed: int | None = None) -> Observation:
        self.left.append(asyncio.create_task(asyncio.Event().wait(), name="my forgotten task"))
        return await super().reset(seed)


class LeavesThread(Sums):
    stop: ClassVar[threading.Event] = threading.Event()

    async def reset(self, seed: int | None = None) -> Observation:
        threading.Thread(target=self.stop.wait, args=(20,), name="my forgotten thread", daemon=True).start()
        return await super().reset(seed)


class Hangs(Sums):
    async def step(self, action: Message) -> Step:
        await asyncio.Event().wait()
        return Step()


class CannotBeCancelled(Sums):
    async def step(self, action: Message) -> Step:
        try:
            await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            raise OSError("in the middle of something") from None
        return await super().step(action)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Unseeded, "the opening differs between two environments with the same seed and actions"),
        (UnseededLater, "the reward and end of step 1 differs"),
        (Shared, "share no state between environments"),
        (GlobalRandom, "the global random state was used"),
        (GlobalNumpy, "the global random state was used"),
        (TextOpening, "reset returned 'hello' as the observation; return a tuple of messages, such as (user('…'),)"),
        (EmptyOpening, "reset returned no message"),
        (AssistantOpening, "reset speaks as the assistant"),
        (UnstorableOpening, "the observation of reset cannot be stored"),
        (FailingReset, "reset(0) raised OSError: no such level"),
        (SyncReset, "reset is not async; write `async def reset`"),
        (type("Old", (Answering,), {"answer": (user("x"), 0.0, True, {})}), "return outrider.env.Step("),
        (type("Nothing", (Answering,), {"answer": None}), "step returned None"),
        (answering(observation="text"), "step returned 'text' as the observation"),
        (answering(observation=[user("x")]), "return a tuple of messages"),
        (answering(reward=float("nan")), "step returned the reward nan; return a finite number"),
        (answering(reward=None), "step returned the reward None"),
        (answering(reward=True), "step returned the reward True"),
        (answering(terminated=None), "step returned None as terminated; return True or False"),
        (answering(truncated=0), "step returned 0 as truncated"),
        (answering(info=None), "step returned None as info; return a mapping"),
        (answering(info={"seen": {1, 2}}), "the info of step cannot be stored"),
        (answering(info={"rng": random.Random(0)}), "the info of step cannot be stored"),
        (Silent, "step returned neither a message nor an end"),
        (Fragile, "raised KeyError"),
        (DeafToCalls, "tool calls ['call-0', 'call-1'] were answered by tool messages for []"),
        (WrongIds, "were answered by tool messages for ['other', 'other']"),
        (OneAnswerForAll, "were answered by tool messages for ['call-0']"),
        (StrictTools, "raised ValueError: no_such_tool; what an agent gets wrong belongs into the observation"),
        (StrictArguments, "raised JSONDecodeError"),
        (ToolsAsMethod, "it must be a tuple of ToolSpec, a property and not a method"),
        (TwinTools, "two tools have the same name: add, add"),
        (NoSchema, "the parameters of tool 'add' are no JSON schema of an object"),
        (NoScoreYet, "score() raised AttributeError"),
        (BareScore, "score returned 1.0; return outrider.env.Score(reward=…) or None"),
        (EndlessScore, "score returned the reward inf"),
        (WordyMetrics, "score returned the metrics {'mood': 'good'}"),
        (UnstorableOutput, "the output of the score cannot be stored"),
        (ClosesOnce, "close() raised RuntimeError: already closed"),
        (NeedsReset, "close() raised AttributeError"),
        (CannotBeCancelled, "a step that was cancelled raised OSError: in the middle of something"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
async def test_a_broken_environment_is_caught(kind: type[Environment], told: str):
    found = await problems(kind, actions=["a", "b", "c"])
    assert any(told in line for line in lines(found)), found


@pytest.mark.parametrize(("kind", "told"), [(LeavesTask, "my forgotten task"), (LeavesThread, "my forgotten thread")])
async def test_what_is_left_running_is_named(kind: type[Environment], told: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("outrider.testing.environment.SETTLE_SECONDS", 0.05)
    LeavesThread.stop.clear()
    found = await problems(kind)
    LeavesThread.stop.set()
    for task in LeavesTask.left:
        task.cancel()
    await asyncio.gather(*LeavesTask.left, return_exceptions=True)
    LeavesTask.left.clear()
    assert f"close left tasks or threads running: {told}" in found


async def test_a_step_that_hangs_is_caught():
    found = await problems(Hangs, call_seconds=0.01)
    assert "did not return within 0.01 s; bound what it waits for" in found


async def test_an_environment_that_times_out_by_itself_is_told_as_what_it_is():
    class TimesOut(Sums):
        async def step(self, action: Message) -> Step:
            raise TimeoutError("my own deadline")

    assert "raised TimeoutError: my own deadline" in await problems(TimesOut)


async def test_one_environment_for_all_episodes_is_caught():
    same = Sums()
    assert "make() returned the same environment twice" in await problems(lambda: same)


async def test_a_make_that_fails_is_told():
    def make() -> Environment:
        raise OSError("no such file")

    assert await problems(make) == (
        "this environment does not keep the contract:\n- make() raised OSError: no such file"
    )


async def test_all_problems_are_told_at_once():
    class Both(BareScore, ClosesOnce):
        pass

    found = lines(await problems(Both, actions=["a"]))
    assert len(found) == 2


async def test_the_check_leaves_the_global_generators_as_they_were():
    import numpy as np

    before = random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    assert await problems(Sums) == ""
    assert (random.getstate(), repr(np.random.get_state())) == before  # noqa: NPY002
