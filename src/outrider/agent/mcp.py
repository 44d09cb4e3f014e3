"""Tools from MCP servers, offered to the model beside those of the environment.

Invariants:
- A server's connection lives in a task of its own, which `close` ends; so does the server's process, if it has one.
- A call never fails the episode: a server that is dead, slow or wrong gives the model an error to read.
- A server that has died is started again by the next call.
"""

import asyncio
import base64
import logging
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
from msgspec import Struct

from outrider.core.artifact import Artifact
from outrider.core.bounds import PositiveSeconds, check_bounds
from outrider.core.chat import Image, Message, ToolCall, ToolSpec, tool_result
from outrider.core.decoding import from_json
from outrider.core.errors import InvalidInput, ToolRefusal
from outrider.core.extras import install_command
from outrider.core.tasks import uninterrupted
from outrider.core.variables import variable
from outrider.env import Environment, Observation, Score, Step
from outrider.pool.source import Machine

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult, Tool

_log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""How long a server gets to end; its client kills it well before."""

_TAIL_CHARACTERS = 500


class McpServer(Struct, frozen=True, kw_only=True):
    """Where a server is: `command` with `args` starts one, `url` names one that runs.

    `variables` are the environment variables that a started server gets beside the plain ones, such as its keys.
    `bearer_variable` names the one that holds the token for `url`. `prefix` goes before the names of its tools.
    """

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    url: str = ""
    variables: tuple[str, ...] = ()
    bearer_variable: str = ""
    prefix: str = ""
    start_seconds: PositiveSeconds = 30.0
    call_seconds: PositiveSeconds = 60.0

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise InvalidInput(f"MCP server {self.name!r}: give either a command or a url")
        check_bounds(self)


class McpTools:
    """The tools of some servers, shared by all episodes of a worker."""

    def __init__(
        self, connections: "Sequence[_Connection]", owners: "Mapping[str, _Connection]", specs: tuple[ToolSpec, ...]
    ) -> None:
        self.specs = specs
        self._connections = connections
        self._owners = owners

    def __contains__(self, name: str) -> bool:
        return name in self._owners

    async def answer(self, call: ToolCall) -> Message:
        """What the server answers, or why it does not."""
        connection = self._owners.get(call.name)
        if connection is None:
            return tool_result(call, f"error: there is no tool {call.name!r}; there are {', '.join(self._owners)}")
        try:
            arguments = from_json(call.arguments or "{}", dict[str, Any])
        except (msgspec.DecodeError, UnicodeError) as exc:
            return tool_result(call, f"error: the arguments of {call.name} cannot be used: {exc}; call it again")
        try:
            text, images = _content(await connection.call(call.name.removeprefix(connection.server.prefix), arguments))
        except ToolRefusal as exc:
            return tool_result(call, f"error: {exc}")
        except ValueError as exc:
            return tool_result(call, f"error: the answer of {call.name} cannot be read: {exc}")
        return tool_result(call, text, images)

    async def close(self) -> None:
        await _close_all(self._connections)


async def open_mcp_tools(servers: Sequence[McpServer]) -> McpTools:
    """Start or reach all `servers` and learn their tools. Refuses a server that does not answer."""
    try:
        import mcp  # noqa: F401, PLC0415 an extra, and slow to import
    except ImportError as exc:
        raise InvalidInput(f"tools from MCP servers need: {install_command('mcp')}") from exc
    for server in servers:
        missing = [name for name in (*server.variables, server.bearer_variable) if name and variable(name) is None]
        if missing:
            raise InvalidInput(f"MCP server {server.name!r}: the environment variable {missing[0]} is not set")
    connections = [_Connection(server) for server in servers]
    try:
        return await _tools_of(connections)
    except BaseException:
        await _close_all(connections)
        raise


async def _tools_of(connections: "Sequence[_Connection]") -> McpTools:
    owners: dict[str, _Connection] = {}
    specs: list[ToolSpec] = []
    for connection in connections:
        for spec in await connection.specs():
            if spec.name in owners:
                both = f"{owners[spec.name].server.name} and {connection.server.name}"
                raise InvalidInput(f"the MCP servers {both} both have a tool {spec.name!r}; give one a prefix")
            owners[spec.name] = connection
            specs.append(spec)
    return McpTools(connections, owners, tuple(specs))


async def _close_all(connections: "Iterable[_Connection]") -> None:
    await asyncio.gather(*(connection.close() for connection in connections))


class McpEnvironment(Environment):
    """An environment whose agent has further tools: calls of those go to their servers, all else to `inner`."""

    def __init__(self, inner: Environment, extra: McpTools) -> None:
        self._inner = inner
        self._extra = extra

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        own = tuple(self._inner.tools)
        taken = [spec.name for spec in own if spec.name in self._extra]
        if taken:
            raise InvalidInput(f"the environment has a tool {taken[0]!r} of its own; give the MCP server a prefix")
        return own + self._extra.specs

    def board(self, machine: Machine) -> None:
        self._inner.board(machine)

    async def reset(self, seed: int | None = None) -> Observation:
        return await self._inner.reset(seed)

    async def step(self, action: Message) -> Step:
        """Answers from servers come first. A message that only calls them is no step for the environment."""
        has_tools = bool(self._inner.tools)
        theirs = [call for call in action.tool_calls if call.name in self._extra or not has_tools]
        answers = tuple([await self._extra.answer(call) for call in theirs])
        own = tuple(call for call in action.tool_calls if call not in theirs)
        if answers and not own:
            return Step(answers)
        step = Step(*await self._inner.step(msgspec.structs.replace(action, tool_calls=own)))
        return step._replace(observation=answers + tuple(step.observation))

    async def score(self) -> Score | None:
        return await self._inner.score()

    def artifacts(self) -> tuple[Artifact, ...]:
        return self._inner.artifacts()

    async def close(self) -> None:
        await self._inner.close()


class _Connection:
    """One server and the task that holds the connection to it; after a failure the next call makes a new one."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._changing = asyncio.Lock()
        self._held: _Held | None = None

    async def specs(self) -> list[ToolSpec]:
        prefix = self.server.prefix
        try:
            held = await self._open()
            async with asyncio.timeout(self.server.start_seconds):
                found = await _all_tools(held.client)
        except Exception as exc:
            raise InvalidInput(f"MCP server {self.server.name!r} cannot be used: {_reason(exc)}") from exc
        return [
            ToolSpec(name=prefix + tool.name, description=tool.description or "", parameters=tool.input_schema)
            for tool in found
        ]

    async def call(self, name: str, arguments: dict[str, Any]) -> "CallToolResult":
        """Raises `ToolRefusal` with what the model should know."""
        held = await self._open()
        seconds = self.server.call_seconds
        try:
            async with asyncio.timeout(seconds):
                return await held.client.call_tool(name, arguments)
        except TimeoutError as exc:
            raise ToolRefusal(f"{name} did not answer within {seconds:g} s") from exc
        except Exception as exc:
            if not self._is_reply(exc):
                await self._drop(held)
                raise ToolRefusal(f"the server of {name} has gone away; call it again") from exc
            raise ToolRefusal(_reason(exc)) from exc

    async def close(self) -> None:
        async with self._changing:
            held, self._held = self._held, None
            if held is not None:
                await held.close()

    async def _drop(self, lost: "_Held") -> None:
        """Let go of a connection, unless another call has done so and made a new one."""
        if self._held is lost:
            await self.close()

    async def _open(self) -> "_Held":
        async with self._changing:
            if self._held is None or self._held.task.done():
                self._held = await _hold(self.server)
            return self._held

    def _is_reply(self, error: Exception) -> bool:
        """Whether the server itself has said so, and the connection is as good as before."""
        from mcp import MCPError  # noqa: PLC0415 an extra
        from mcp_types import (  # noqa: PLC0415 an extra
            CONNECTION_CLOSED,
            INTERNAL_ERROR,
            INVALID_PARAMS,
            METHOD_NOT_FOUND,
        )

        if not isinstance(error, MCPError):
            return False
        if self.server.url:  # where the transport reports its own trouble in the same way
            return error.code in {INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND}
        return error.code != CONNECTION_CLOSED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A connection that is open, in the hands of `task` until `over` is set."""

    client: "Client"
    task: asyncio.Task[None]
    over: asyncio.Event

    async def close(self) -> None:
        self.over.set()
        await uninterrupted(_end(self.task, CLOSE_SECONDS))


async def _hold(server: McpServer) -> _Held:
    """Start or reach the server. Raises `ToolRefusal` if that cannot be done in time."""
    ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()
    errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 closed by the task that uses it
    task = asyncio.create_task(_connect(server, ready, over, errors), name=f"mcp {server.name}")
    try:
        async with asyncio.timeout(server.start_seconds):
            client = await ready
    except BaseException as exc:
        await uninterrupted(_end(task, 0.0))
        if isinstance(exc, TimeoutError):
            raise ToolRefusal(f"{server.name} did not start within {server.start_seconds:g} s") from exc
        raise
    return _Held(client=client, task=task, over=over)


async def _connect(server: McpServer, ready: "asyncio.Future[Client]", over: asyncio.Event, errors: TextIO) -> None:
    """Open the connection, lend it, and close it in the same task, as its task groups demand."""
    with errors:
        try:
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(await _client_of(server, stack, errors))
                if not ready.done():
                    ready.set_result(client)
                    await over.wait()
        except Exception as exc:
            if ready.done():
                raise
            ready.set_exception(ToolRefusal(f"{server.name} does not answer: {_reason(exc)}{_tail(errors)}"))


async def _client_of(server: McpServer, stack: AsyncExitStack, errors: TextIO) -> "Client":
    import httpx2  # noqa: PLC0415 an extra
    from mcp import Client, StdioServerParameters, stdio_client  # noqa: PLC0415 an extra
    from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415 an extra
    from yarl import URL  # noqa: PLC0415 an HTTP client comes along

    from outrider.policy.openai.address import is_exposed  # noqa: PLC0415

    if server.command:
        variables = {name: _set(name) for name in server.variables}
        parameters = StdioServerParameters(command=server.command, args=list(server.args), env=variables)
        return Client(stdio_client(parameters, errlog=errors))
    headers = {"Authorization": f"Bearer {_set(server.bearer_variable)}"} if server.bearer_variable else {}
    if headers and is_exposed(URL(server.url)):
        _log.warning(
            "the token in %s goes to MCP server %s unencrypted; use https", server.bearer_variable, server.name
        )
    http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=server.call_seconds))
    return Client(streamable_http_client(server.url, http_client=http))


def _set(name: str) -> str:
    """The value of a variable that `open_mcp_tools` has found to be set."""
    value = variable(name)
    assert value is not None
    return value


async def _all_tools(client: "Client") -> "list[Tool]":
    page = await client.list_tools()
    found = list(page.tools)
    while page.next_cursor is not None:
        page = await client.list_tools(cursor=page.next_cursor)
        found += page.tools
    return found


async def _end(task: asyncio.Task[None], seconds: float) -> None:
    """See the task to its end; cancel it after so many seconds."""
    if seconds > 0:
        await asyncio.wait([task], timeout=seconds)
    task.cancel()
    await asyncio.wait([task], timeout=CLOSE_SECONDS)
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        _log.info("%s: %s", task.get_name(), _reason(error))


def _content(result: "CallToolResult") -> tuple[str, tuple[Image, ...]]:
    texts: list[str] = []
    images: list[Image] = []
    for block in result.content:
        if block.type == "text":
            texts.append(block.text)
        elif block.type == "image":
            images.append(Image(data=base64.b64decode(block.data), media_type=block.mime_type))
        elif block.type == "resource":
            texts.append(getattr(block.resource, "text", f"[{block.resource.uri}, not a text]"))
        elif block.type == "resource_link":
            texts.append(f"[{block.uri}]")
        else:
            texts.append(f"[{block.mime_type}, not a text]")
    if not result.content and result.structured_content is not None:
        texts.append(msgspec.json.encode(result.structured_content).decode())
    return ("error: " if result.is_error else "") + "\n".join(texts), tuple(images)


def _reason(error: BaseException) -> str:
    """The words of an error, of the first one where there are several."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def _tail(errors: TextIO) -> str:
    """The end of what a server complained of."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _TAIL_CHARACTERS))
    text = errors.read().strip()
    return f"; it said: {text}" if text else ""
