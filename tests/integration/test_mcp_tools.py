"""Tools from real MCP servers, in processes of their own."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from guessing import Bisecting, CountingGame, Games, GuessingGame, Lines, call, memory, scripted
from leaks import no_leaks
from outrider import Runner
from outrider.agent import ChatAgent, EpisodeKit
from outrider.agent.mcp import McpEnvironment, McpServer, McpTools, _client_of, open_mcp_tools
from outrider.core.chat import Image, Message, Role, assistant
from outrider.core.errors import InvalidInput
from outrider.core.task import Task
from outrider.core.turn import turns_of
from outrider.testing import eventually

PROGRAM = str(Path(__file__).parent.parent / "mcp_server.py")


def far(url: str, **settings: Any) -> McpServer:
    return McpServer(**{"name": "far", "url": url, **settings})


def stdio(**settings: Any) -> McpServer:
    return McpServer(**{"name": "tests", "command": sys.executable, "args": (PROGRAM,), **settings})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def http_server(port: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, PROGRAM, str(port)], stderr=subprocess.DEVNULL)
    with process:
        try:
            yield process
        finally:
            process.kill()


async def listening(port: int) -> None:
    async def answers() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True

    await eventually(answers, within_seconds=30)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that most tests share, for starting one takes a while."""
    port = free_port()
    with http_server(port):
        asyncio.run(listening(port))
        yield f"http://127.0.0.1:{port}/mcp"


@asynccontextmanager
async def opened(*servers: McpServer) -> AsyncIterator[McpTools]:
    tools = await open_mcp_tools(servers)
    try:
        yield tools
    finally:
        await tools.close()


async def answer(tools: McpTools, name: str, arguments: str = "{}") -> str:
    return (await tools.answer(call(name, arguments))).content


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def written(note: Path) -> int:
    async def is_there() -> bool:
        return note.exists() and note.read_text() != ""

    await eventually(is_there, within_seconds=30)
    return int(note.read_text())


async def test_a_servers_tools_are_offered_and_called(url: str):
    async with opened(far(url)) as tools:
        assert [spec.name for spec in tools.specs] == ["add", "pid", "variable", "fail", "picture", "hang"]
        add = tools.specs[0]
        assert add.description == "Add two numbers."
        assert set(add.parameters["properties"]) == {"a", "b"}
        assert await tools.answer(call("add", '{"a": 2, "b": 3}', id="x")) == Message(
            role=Role.TOOL, content="5", tool_call_id="x"
        )
        assert await asyncio.gather(*(answer(tools, "add", f'{{"a": {i}, "b": 1}}') for i in range(50))) == [
            str(i + 1) for i in range(50)
        ]
        [image] = (await tools.answer(call("picture"))).images
        assert image == Image(data=b"\x89PNG", media_type="image/png")


async def test_what_is_wrong_with_a_call_is_told_to_the_model(url: str):
    async with opened(far(url)) as tools:
        assert (await answer(tools, "fail")).startswith("error: ")
        assert "out of order" in await answer(tools, "fail")
        assert (await answer(tools, "add", '{"a": 1}')).startswith("error: ")
        assert (await answer(tools, "add", '{"a": 1')).startswith("error: the arguments of add cannot be used")
        assert (await answer(tools, "add", "[1, 2]")).startswith("error: the arguments of add cannot be used")
        pid = await answer(tools, "pid")
        assert (await answer(tools, "add", '{"a": {}, "b": []}')).startswith("error: ")
        assert await answer(tools, "pid") == pid, "a bad call does not cost the server its life"


async def test_a_killed_server_is_an_error_to_read_and_is_back_for_the_next_call(tmp_path: Path):
    async with opened(stdio()) as tools:
        calls = [asyncio.ensure_future(answer(tools, "hang", f'{{"note": "{tmp_path / str(i)}"}}')) for i in range(3)]
        [pid] = {await written(tmp_path / str(i)) for i in range(3)}
        os.kill(pid, signal.SIGKILL)
        for answered in await asyncio.wait_for(asyncio.gather(*calls), 20):
            assert answered == "error: the server of hang has gone away; call it again"
        assert await answer(tools, "add", '{"a": 2, "b": 3}') == "5"

        pid = int(await answer(tools, "pid"))
        os.kill(pid, signal.SIGKILL)
        answers = [await answer(tools, "pid") for _ in range(3)]
        assert all(text.startswith("error: ") or int(text) != pid for text in answers)
        assert answers[-1] == answers[-2] != str(pid)


async def test_a_call_given_up_or_cancelled_leaves_the_server_alone_and_closing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ITS_KEY", "1")
    monkeypatch.setenv("OUR_KEY", "2")
    async with no_leaks():
        async with opened(stdio(call_seconds=3.0, variables=("ITS_KEY",))) as tools:
            pid = int(await answer(tools, "pid"))
            given_up = asyncio.ensure_future(answer(tools, "hang", f'{{"note": "{tmp_path / "a"}"}}'))
            cancelled = asyncio.ensure_future(answer(tools, "hang", f'{{"note": "{tmp_path / "b"}"}}'))
            await written(tmp_path / "b")
            cancelled.cancel()
            assert await given_up == "error: hang did not answer within 3 s"
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert int(await answer(tools, "pid")) == pid
            assert await answer(tools, "variable", '{"name": "ITS_KEY"}') == "1"
            assert await answer(tools, "variable", '{"name": "OUR_KEY"}') == "unset", "it gets no others"
        assert not is_alive(pid)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (stdio(command="no-such-program"), "cannot be used: .*no-such-program"),
        (stdio(args=("-c", "print('hello'); raise SystemExit('no licence')")), "it said: no licence"),
        (stdio(args=("-c", "import time; time.sleep(60)"), start_seconds=0.5), "did not start within 0.5 s"),
        (stdio(variables=("NO_SUCH_KEY",)), "NO_SUCH_KEY is not set"),
        (far("http://127.0.0.1:9", bearer_variable="NO_SUCH_KEY"), "NO_SUCH_KEY is not set"),
        (McpServer(name="away", url="http://127.0.0.1:9/mcp"), "'away' cannot be used"),
    ],
)
async def test_a_server_that_cannot_be_used_is_refused_before_anything_runs(url: str, server: McpServer, message: str):
    async with no_leaks():
        with pytest.raises(InvalidInput, match=message):
            await open_mcp_tools([far(url), server])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"command": "", "args": ()}, "either a command or a url"),
        ({"url": "http://127.0.0.1:9/mcp"}, "either a command or a url"),
        ({"call_seconds": 0.0}, "call_seconds is 0.0"),
        ({"start_seconds": float("inf")}, "start_seconds is inf"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(InvalidInput, match=message):
        stdio(**settings)


async def test_tools_of_the_same_name_need_a_prefix(url: str):
    with pytest.raises(InvalidInput, match="one and two both have a tool 'add'; give one a prefix"):
        await open_mcp_tools([far(url, name="one"), far(url, name="two")])
    async with opened(far(url, name="one"), far(url, name="two", prefix="two_")) as tools:
        assert await answer(tools, "two_add", '{"a": 2, "b": 3}') == await answer(tools, "add", '{"a": 4, "b": 1}')


async def test_a_server_behind_a_url_is_used_and_found_again_after_it_was_away(tmp_path: Path):
    port = free_port()
    server = McpServer(name="far", url=f"http://127.0.0.1:{port}/mcp", start_seconds=20.0)
    with http_server(port):
        await listening(port)
        tools = await open_mcp_tools([server])
        assert await answer(tools, "add", '{"a": 2, "b": 3}') == "5"
        assert (await answer(tools, "fail")).startswith("error: ")
        hanging = asyncio.ensure_future(answer(tools, "hang", f'{{"note": "{tmp_path / "note"}"}}'))
        os.kill(await written(tmp_path / "note"), signal.SIGKILL)
        assert (await asyncio.wait_for(hanging, 20)).startswith("error: ")
    assert (await answer(tools, "add", '{"a": 2, "b": 3}')).startswith("error: ")
    with http_server(port):
        await listening(port)
        assert await answer(tools, "add", '{"a": 2, "b": 3}') == "5"
        await tools.close()


async def shown(environment: McpEnvironment, *messages: Message) -> list[Sequence[Message]]:
    await environment.reset(1)
    return [(await environment.step(message)).observation for message in messages]


async def test_calls_go_to_whoever_has_the_tool(url: str):
    async with opened(far(url)) as tools:
        game = GuessingGame(Task(task_id=""))
        environment = McpEnvironment(game, tools)
        assert [spec.name for spec in environment.tools][:2] == ["guess", "add"]
        own, extra = call("guess", '{"number": 200}', id="a"), call("add", '{"a": 1, "b": 1}', id="b")
        unknown = call("fly", id="c")
        both, only_extra, only_own, text = await shown(
            environment,
            assistant("", (own, extra, unknown)),
            assistant("", (extra,)),
            assistant("", (own,)),
            assistant("hello"),
        )
        assert [(m.tool_call_id, m.content[:5]) for m in both] == [("b", "2"), ("a", "lower"), ("c", "error")]
        assert [message.content for message in only_extra] == ["2"]
        assert [message.content for message in only_own] == ["lower"]
        assert [message.content for message in text] == ["Use the tool."]
        assert (await environment.score()).metrics == {"guesses": 2.0}
        await environment.close()
        assert game.closed


async def test_an_episode_has_the_tools_of_the_servers_beside_its_own(url: str):
    class Calculating(Bisecting):
        """Asks a server for a sum before it begins to guess."""

        def solve(self, messages: Any, tools: Any) -> Message:
            if len(messages) == 2:
                return assistant("", (call("add", '{"a": 20, "b": 22}', id="sum"),))
            return super().solve(messages, tools)

    async with opened(far(url)) as tools, memory() as store:
        kit = EpisodeKit(
            policy=scripted(Calculating()), environments={"g": Games(GuessingGame)}, agent=ChatAgent(), mcp=tools
        )
        rollout = await Runner(store, episodes=kit.episodes).step({}, tag="g", seed=3)
        assert (rollout.reward, rollout.failure) == (1.0, None)
        turns = turns_of(await store.query_events(rollout.rollout_id))
        assert turns[1].request[-1].content == "42"


async def test_in_a_world_of_plain_text_a_call_of_no_tool_is_answered(url: str):
    lines = Lines(assistant("", (call("add", '{"a": 1, "b": 0}', id="x"), call("fly", id="y"))), "1")
    async with opened(far(url)) as tools, memory() as store:
        kit = EpisodeKit(
            policy=scripted(lines), environments={"g": Games(CountingGame)}, agent=ChatAgent(max_turns=2), mcp=tools
        )
        rollout = await Runner(store, episodes=kit.episodes).step({}, tag="g")
        assert (rollout.reward, rollout.failure) == (1.0, None)
        [_, second] = turns_of(await store.query_events(rollout.rollout_id))
        assert [message.tool_call_id for message in second.request[-2:]] == ["x", "y"]


async def test_a_server_must_not_take_the_name_of_a_tool_of_the_environment(url: str):
    async with opened(far(url)) as tools:

        class Adding(GuessingGame):
            @property
            def tools(self) -> Any:
                return tuple(spec for spec in tools.specs if spec.name == "add")

        with pytest.raises(InvalidInput, match="'add' of its own; give the MCP server a prefix"):
            _ = McpEnvironment(Adding(Task(task_id="")), tools).tools


@pytest.mark.parametrize(("url", "warned"), [("http://far.invalid/mcp", True), ("http://127.0.0.1:9/mcp", False)])
async def test_a_token_that_others_could_read_is_warned_of(url, warned, monkeypatch, caplog):
    monkeypatch.setenv("MY_TOKEN", "canary-token")
    async with AsyncExitStack() as stack:
        await _client_of(McpServer(name="far", url=url, bearer_variable="MY_TOKEN"), stack, StringIO())
    assert ("the token in MY_TOKEN goes to MCP server far unencrypted" in caplog.text) == warned
    assert "canary-token" not in caplog.text
