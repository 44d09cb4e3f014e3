"""Web episodes on browsers of a pool: solved as on a browser of their own, behind the same gate, and lost with them."""

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from leaks import _descriptors
from outrider.core.chat import ToolCall, assistant
from outrider.core.errors import MachineError
from outrider.core.task import Task
from outrider.env.protocol import Needs, Score
from outrider.env.registry import bundled_tasks
from outrider.env.web import WebConfig, WebEnvironments
from outrider.policy.scripted.web import WebScript
from outrider.pool.config import PoolConfig
from outrider.pool.lease import Lease
from outrider.pool.pool import MachinePool
from outrider.pool.provider import Ability
from outrider.pool.providers.browser import BrowserProvider
from outrider.testing import eventually

PAGE = """<title>Lab</title><script>
for (const way of [() => fetch('http://127.0.0.1:PORT/fetched'), () => new WebSocket('ws://127.0.0.1:PORT/'),
    () => new Image().src = 'http://localhost:PORT/image', () => navigator.sendBeacon('http://[::1]:PORT/')]) way()
</script><button onclick="document.title = 'pushed'">Push</button>"""


@asynccontextmanager
async def a_pool(n: int) -> AsyncIterator[MachinePool]:
    with tempfile.TemporaryDirectory(prefix="ob-") as name:
        provider = BrowserProvider(folder=Path(name) / "machines")
        async with MachinePool(provider, PoolConfig(name=f"web-{os.getpid()}", n_machines=n)) as pool:
            yield pool
        assert list(Path(name).iterdir()) == []


async def play(environments: WebEnvironments, task: Task, pool: MachinePool, held: list[str]) -> Score:
    async with pool.acquire(deadline=120, holder=task.task_id) as lease:
        held.append(lease.machine_id)
        env = environments.make(task)
        env.board(lease)
        try:
            messages = list(await env.reset(seed=0))
            assert "note: blocked" not in messages[1].content, "the browser goes somewhere by itself"
            for _ in range(40):
                messages.append(WebScript().solve(messages, env.tools))
                step = await env.step(messages[-1])
                messages.extend(step.observation)
                if step.terminated:
                    break
            score = await env.score()
            assert score is not None
            return score
        finally:
            await env.close()


def call(name: str, **arguments: object) -> object:
    return assistant(tool_calls=(ToolCall(id="1", name=name, arguments=json.dumps(arguments)),))


@asynccontextmanager
async def a_listener() -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that no task may visit, and what it is told."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1000))
        writer.close()

    server = await asyncio.start_server(serve, ["127.0.0.1"], 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heard


def lab(folder: Path, page: str) -> WebEnvironments:
    (folder / "lab").mkdir()
    (folder / "lab" / "index.html").write_text(page)
    return WebEnvironments(WebConfig(pages=str(folder), action_seconds=30))


TASK = Task(task_id="t", question="?", answer="a", metadata={"site": "lab"})


def test_web_episodes_want_a_browser_and_can_do_without():
    assert WebEnvironments(WebConfig()).needs == Needs(abilities=frozenset({Ability.DEVTOOLS}), optional=True)
    assert Ability.DEVTOOLS in BrowserProvider.abilities


@pytest.mark.soak
async def test_four_episodes_are_solved_on_two_browsers():
    tasks = bundled_tasks("web")[:4]
    held: list[str] = []
    before = _descriptors()
    environments = WebEnvironments(WebConfig(action_seconds=60))
    async with a_pool(2) as pool:
        scores = await asyncio.gather(*(play(environments, task, pool, held) for task in tasks))
        assert sum(pool.statistics().n_failures.values()) == 0
    assert environments._shared_browser().processes == frozenset()
    await environments.close()

    async def nothing_is_left() -> bool:
        return _descriptors() <= before

    await eventually(nothing_is_left)
    assert [score.reward for score in scores] == [1.0] * 4
    assert len(held) == 4
    assert len(set(held)) == 2


async def test_nothing_gets_past_the_gate_of_an_episode(tmp_path):
    async with a_listener() as (port, heard), a_pool(1) as pool, pool.acquire(deadline=60) as lease:
        environments = lab(tmp_path, PAGE.replace("PORT", str(port)))
        env = environments.make(TASK)
        env.board(lease)
        try:
            opening = (await env.reset())[1].content
            assert f"note: blocked: http://127.0.0.1:{port}/fetched" in opening
            assert f"note: blocked: http://localhost:{port}/image" in opening
            assert 'button "Push"' in (await env.step(call("read"))).observation[0].content
        finally:
            await env.close()
            await environments.close()
        assert heard == []


async def killed(_: MachinePool, lease: Lease) -> None:
    os.kill(lease.address["pid"], signal.SIGKILL)


async def revoked(pool: MachinePool, lease: Lease) -> None:
    pool.revoke(lease.machine_id, "it was needed elsewhere")

    async def is_reset() -> bool:
        return pool.statistics().states.get("ready") == 1

    await eventually(is_reset, within_seconds=30)


@pytest.mark.parametrize("lose", [killed, revoked])
async def test_the_loss_of_a_browser_is_the_machines_failure(tmp_path, lose):
    async with a_pool(1) as pool:
        (lease,) = await pool.take(deadline=60, holder="one")
        environments = lab(tmp_path, PAGE)
        env, late = environments.make(TASK), environments.make(TASK)
        env.board(lease)
        late.board(lease)
        try:
            await env.reset()
            await lose(pool, lease)
            for action in (call("read"), call("open", url="http://lab.test/")):
                with pytest.raises(MachineError, match="died"):
                    await env.step(action)
            with pytest.raises(MachineError, match="cannot be reached") as failure:
                await late.reset()
            assert lease.address["devtools"].rpartition("/")[2] not in str(failure.value)
        finally:
            await env.close()
            await late.close()
        (lease,) = await pool.take(deadline=60, holder="two")
        again = environments.make(TASK)
        again.board(lease)
        try:
            assert "lab.test" in (await again.reset())[1].content
        finally:
            await again.close()
            await environments.close()
            lease.release()
