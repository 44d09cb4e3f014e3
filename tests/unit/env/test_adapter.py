import asyncio
import threading
from typing import Any

import pytest

from leaks import no_leaks
from outrider.core.chat import Role, ToolCall, assistant
from outrider.core.errors import EnvError, InvalidInput
from outrider.core.task import Task
from outrider.env import Environment, Step
from outrider.env import adapter as module
from outrider.env.adapter import ClassEnvironments

TASK = Task(task_id="t", question="how many?")


class Counter:
    """A plain class: counts up to a limit. Notes the threads it ran in."""

    threads: set[str]

    def __init__(self, limit: int = 2) -> None:
        self.threads = {threading.current_thread().name}
        self.limit = limit
        self.n = 0
        self.is_closed = False

    def reset(self, seed):
        self.threads.add(threading.current_thread().name)
        return f"seed {seed}"

    def step(self, action):
        self.threads.add(threading.current_thread().name)
        self.n += 1
        return f"{action}: {self.n}", 1, self.n == self.limit, False, {"threads": sorted(self.threads)}

    def close(self):
        self.is_closed = True


class AsyncCounter(Counter):
    """The same, asynchronous, in gymnasium's words."""

    async def reset(self, *, seed=None, options=None):
        await asyncio.sleep(0)
        return super().reset(seed), {"extra": 1}

    async def step(self, action):
        await asyncio.sleep(0)
        return super().step(action)

    async def close(self):
        await asyncio.sleep(0)
        super().close()


def made(kind: type, **config: Any) -> Environment:
    return ClassEnvironments(kind, name="my:Env", config=config).make(TASK)


@pytest.mark.parametrize("kind", [Counter, AsyncCounter])
async def test_a_plain_class_is_an_environment(kind: type):
    async with no_leaks():
        env = made(kind, limit=2)
        (opening,) = await env.reset(5)
        assert (opening.role, opening.content) == (Role.USER, "seed 5")
        first, second = await env.step(assistant("one")), await env.step(assistant("two"))
        assert (first.observation[0].content, first.reward, first.terminated) == ("one: 1", 1.0, False)
        assert (second.observation[0].content, second.terminated, second.truncated) == ("two: 2", True, False)
        assert await env.score() is None
        assert env.tools == ()
        await env.close()
        await env.close()


async def test_a_sync_class_is_used_in_one_thread_of_its_own_and_an_async_one_on_the_loop():
    here = threading.current_thread().name
    for kind, is_apart in ((Counter, True), (AsyncCounter, False)):
        env = made(kind)
        await env.reset(0)
        (thread,) = (await env.step(assistant(""))).info["threads"]
        assert (thread != here) is is_apart
        await env.close()


async def test_a_blocking_step_does_not_hold_up_the_loop():
    release = threading.Event()

    class Slow(Counter):
        def step(self, action):
            release.wait(10)
            return super().step(action)

    env, other = made(Slow), made(Counter)
    await env.reset(0)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        waiting = group.create_task(env.step(assistant("slow")))
        await other.reset(0)
        assert (await other.step(assistant("fast"))).reward == 1.0
        assert not waiting.done()
        release.set()
    assert waiting.result().observation[0].content == "slow: 1"
    await env.close()
    await other.close()


async def test_an_episode_cancelled_in_a_blocking_step_closes_when_the_step_returns():
    started, release, closed = threading.Event(), threading.Event(), threading.Event()

    class Slow(Counter):
        def step(self, action):
            started.set()
            release.wait(10)
            return super().step(action)

        def close(self):
            closed.set()

    async with no_leaks():
        env = made(Slow)
        await env.reset(0)
        stepping = asyncio.ensure_future(env.step(assistant("")))
        while not started.is_set():
            await asyncio.sleep(0.001)
        stepping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stepping
        release.set()
        await env.close()
        assert closed.is_set()


async def test_an_environment_whose_reset_was_cancelled_while_it_was_made_is_closed_all_the_same():
    started, release, closed = threading.Event(), threading.Event(), threading.Event()

    class Heavy(Counter):
        def __init__(self) -> None:
            started.set()
            release.wait(10)
            super().__init__()

        def close(self):
            closed.set()

    async with no_leaks():
        env = made(Heavy)
        opening = asyncio.ensure_future(env.reset(0))
        while not started.is_set():
            await asyncio.sleep(0.001)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        release.set()
        await env.close()
        assert closed.is_set()


@pytest.mark.parametrize("kind", [Counter, AsyncCounter])
async def test_a_step_outside_of_an_episode_is_refused(kind: type):
    env = made(kind)
    with pytest.raises(EnvError, match="has not begun, or is closed"):
        await env.step(assistant("x"))
    await env.reset(0)
    await env.close()
    with pytest.raises(EnvError, match="has not begun, or is closed"):
        await env.step(assistant("x"))


async def test_a_step_that_never_returns_does_not_keep_the_episode_from_ending(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.05)
    release = threading.Event()

    class Stuck(Counter):
        def step(self, action):
            release.wait(10)
            return super().step(action)

    async with no_leaks():
        env = made(Stuck)
        await env.reset(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await env.step(assistant(""))
        with pytest.raises(EnvError, match=r"my:Env has not returned for 0\.05 s"):
            await env.close()
        await env.close()
        release.set()  # the thread ends with its call


@pytest.mark.parametrize("error", [ValueError("bad"), StopIteration(3), SystemExit(1), KeyboardInterrupt()])
async def test_what_a_class_raises_is_raised_to_the_caller_and_the_process_lives(error: BaseException):
    class Failing(Counter):
        def step(self, action):
            raise error

    async with no_leaks():
        env = made(Failing)
        await env.reset(0)
        with pytest.raises((ValueError, EnvError)) as raised:
            await env.step(assistant(""))
        assert error in (raised.value, raised.value.__cause__)
        await env.close()


async def test_a_class_that_cannot_be_made_fails_in_reset_and_closes():
    class Failing(Counter):
        def __init__(self) -> None:
            raise OSError("no such device")

    async with no_leaks():
        env = made(Failing)
        with pytest.raises(OSError, match="no such device"):
            await env.reset(0)
        await env.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, r"step returned None; return \(obs, reward, terminated, truncated, info\)"),
        (("x", 1.0, True, {}), "step returned"),
        (["x", 1.0, True, False, {}], "step returned"),
        ((3, 1.0, True, False, {}), "an observation of type int; return a str"),
        (("x", "much", True, False, {}), "the reward 'much'; return a finite number"),
        (("x", None, True, False, {}), "the reward None"),
        (("x", float("nan"), True, False, {}), "the reward nan"),
        (("x", 1.0, None, False, {}), "None for terminated or truncated; return True or False"),
    ],
)
async def test_a_step_of_another_shape_is_told(answer: Any, reason: str):
    class Odd(Counter):
        def step(self, action):
            return answer

    env = made(Odd)
    await env.reset(0)
    with pytest.raises(EnvError, match=reason):
        await env.step(assistant(""))
    await env.close()


async def test_an_opening_of_another_shape_is_told():
    class Odd(Counter):
        def reset(self, seed):
            return {"obs": 1}

    env = made(Odd)
    with pytest.raises(EnvError, match="my:Env: reset returned an observation of type dict; return a str"):
        await env.reset(0)
    await env.close()


async def test_an_end_may_come_without_a_word_and_without_info():
    class Quiet(Counter):
        def step(self, action):
            return "", 0, False, True, None

    env = made(Quiet)
    await env.reset(0)
    assert await env.step(assistant("")) == Step((), 0.0, False, True, {})
    await env.close()


async def test_a_tool_call_is_answered_without_a_step():
    env = made(Counter)
    await env.reset(0)
    step = await env.step(assistant("", (ToolCall(id="a", name="add"),)))
    assert [(message.role, message.tool_call_id) for message in step.observation] == [(Role.TOOL, "a")]
    assert (await env.step(assistant("x"))).observation[0].content == "x: 1"
    await env.close()


async def test_a_class_that_takes_a_task_gets_it():
    class Asking(Counter):
        def __init__(self, task: Task, polite: bool = False) -> None:
            super().__init__()
            self.asked = f"{'please: ' if polite else ''}{task.question}"

        def reset(self, seed):
            return self.asked

    env = made(Asking, polite=True)
    assert (await env.reset(0))[0].content == "please: how many?"
    await env.close()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "my:Env has no reset; write `def reset"),
        ({"reset": lambda self, seed: ""}, "my:Env has no step; write `def step"),
        ({"reset": lambda self: "", "step": lambda self, action: ()}, "reset cannot be called with one argument"),
        ({"reset": lambda self, seed: "", "step": lambda self: ()}, "step cannot be called with one argument"),
    ],
)
def test_a_class_of_another_shape_is_refused_when_it_is_named(body: dict[str, Any], reason: str):
    with pytest.raises(InvalidInput, match=reason):
        ClassEnvironments(type("Env", (), body), name="my:Env", config={})


def test_a_configuration_that_lacks_something_is_refused():
    class Needy(Counter):
        def __init__(self, path: str) -> None:
            super().__init__()

    with pytest.raises(InvalidInput, match="missing a required argument: 'path'; it takes path"):
        ClassEnvironments(Needy, name="my:Env", config={})
