"""A local OpenAI-compatible server for tests and demos, which can be slow, fail, cut streams and refuse.

Also a program, so that Outrider can be tried without a key: `python -m outrider.testing.model_server --port 8000`.
"""

import argparse
import asyncio
import inspect
import signal
import socket
import struct
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web

from outrider.core.chat import Message, Role, assistant
from outrider.core.decoding import from_json
from outrider.core.errors import ContextOverflow, OutriderError
from outrider.core.loopback import refusing_pages
from outrider.policy.opening import open_policy
from outrider.policy.protocol import ChatPolicy, Completion
from outrider.policy.spec import PolicySpec
from outrider.testing.model_server_faults import Fault, FaultKind, FaultPlan
from outrider.testing.model_server_wire import ModelRequest, chunks, error_body, limited, whole

Said = str | Message | Completion
AnswerFunction = Callable[[ModelRequest], Said | Awaitable[Said]]

ECHO = "builtin:echo"
MAX_REQUEST_BYTES = 64 * 2**20
N_RECORDED = 1000
OPENAI_FIELDS = frozenset({
    "model", "messages", "tools", "stream", "stream_options", "temperature", "top_p", "max_tokens",
    "max_completion_tokens", "seed", "stop", "logprobs", "reasoning_effort",
})  # fmt: skip
"""Those of OpenAI's fields that our client can send."""

NO_TOOLS = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
TOKEN_ID_FIELDS = ("return_token_ids", "return_prompt_token_ids", "return_meta_info")


class Manner(StrEnum):
    """Whose habits the server has."""

    VLLM = "vllm"
    """Gives token ids when asked."""

    SGLANG = "sglang"
    """Gives token ids when asked, but not in a stream."""

    OPENAI = "openai"
    """Refuses fields it does not know."""

    LITELLM = "litellm"
    """Refuses an unknown model or key with 400, and fails without a key."""

    TRANSFORMERS = "transformers"
    """Fails to list its models and on those it does not have, and refuses all fields that are not OpenAI's."""

    NO_LOGPROBS = "no-logprobs"
    """Gives token ids when asked, and never log-probabilities."""

    NO_TOOLS = "no-tools"
    """Refuses tools as vLLM does by default."""

    FAILS_ON_TOOLS = "fails-on-tools"
    """Fails on tools, as servers do whose chat template cannot render them."""

    NO_SYSTEM = "no-system"
    """Refuses system messages, as chat templates of some models do."""


class Refused(Exception):
    """The call is answered with an error."""

    def __init__(self, status: int, message: str, code: str | None = None, *, body: Any = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(message, code) if body is None else body
        """JSON, or a text as it stands."""


class ModelServer:
    """`async with ModelServer("yes") as server:` answers at `server.base_url` while the block runs.

    It answers with a fixed text, by a function, by any policy, or by default with the last message it was sent.
    `faults` may be exchanged at any time. `requests` holds the last thousand calls.
    """

    def __init__(
        self,
        answer: str | AnswerFunction | ChatPolicy | None = None,
        *,
        faults: FaultPlan | None = None,
        models: Sequence[str] = ("test-model",),
        lists_models: bool = True,
        key: str | None = None,
        manner: Manner = Manner.VLLM,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.faults = faults or FaultPlan()
        self.models = tuple(models)
        self.lists_models = lists_models
        self.key = key
        self.manner = manner
        self.requests: deque[ModelRequest] = deque(maxlen=N_RECORDED)
        self.n_calls = 0
        self.n_in_flight = 0
        self.max_in_flight = 0
        self.n_abandoned = 0
        """Calls whose client went away before they were answered."""
        self.n_hanging = 0
        self.base_url = ""
        self._answer = _function_of(answer)
        self._host = host
        self._port = port
        self._released = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=MAX_REQUEST_BYTES, middlewares=[refusing_pages((self._host,))])
        app.add_routes([web.get("/v1/models", self._list_models), web.post("/v1/chat/completions", self._chat)])
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, backlog=4096)
        await site.start()
        port = self._runner.addresses[0][1]
        self.base_url = f"http://{self._host}:{port}/v1"

    async def stop(self) -> None:
        self.release()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def release(self) -> None:
        """Let those go on that hang, now and later."""
        self._released.set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.stop()

    async def _list_models(self, http: web.Request) -> web.StreamResponse:
        if not self._has_key(http):
            return _error(self._wrong_key(http))
        if self.manner is Manner.TRANSFORMERS:
            return _error(_failing())
        if not self.lists_models:
            return web.Response(status=404, text="404: Not Found")
        return _json({"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        self.n_calls += 1
        self.n_in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.n_in_flight)
        try:
            return await self._respond(http, self.n_calls)
        except Refused as exc:
            return _error(exc)
        except asyncio.CancelledError:
            self.n_abandoned += 1
            raise
        finally:
            self.n_in_flight -= 1

    async def _respond(self, http: web.Request, number: int) -> web.StreamResponse:
        fault = self.faults.fault_of(number)
        request = await self._request(http, number)
        self._check(http, request)
        seconds = self.faults.latency_seconds + (fault.seconds if fault is not None else 0.0)
        if seconds > 0:
            await asyncio.sleep(seconds)
        if fault is not None and (spoiled := await self._spoiled(http, fault, request)) is not None:
            return spoiled
        completion = limited(await self._completion(request, fault), request)
        if request.is_streamed:
            return await self._stream(http, request, completion, fault)
        return await self._send(http, request, completion, fault)

    async def _request(self, http: web.Request, number: int) -> ModelRequest:
        headers = {name.lower(): value for name, value in http.headers.items()}
        try:
            body = from_json(await http.read(), dict)
            request = ModelRequest(number, body, headers)
            request.read()
        except (ValueError, KeyError, TypeError) as exc:
            raise Refused(400, f"the request cannot be read: {type(exc).__name__}: {exc}") from exc
        self.requests.append(request)
        if self.manner is Manner.NO_LOGPROBS:
            return ModelRequest(number, {**body, "logprobs": False, "return_meta_info": False}, headers)
        return request

    def _check(self, http: web.Request, request: ModelRequest) -> None:
        """What a server looks at before it starts a model."""
        faults = self.faults
        asked = [field for field in TOKEN_ID_FIELDS if field in request.body]
        if not self._has_key(http):
            raise self._wrong_key(http)
        if request.model not in self.models:
            raise self._unknown_model(request.model)
        if self.manner is Manner.TRANSFORMERS and (unknown := sorted(request.body.keys() - OPENAI_FIELDS)):
            said = f"Unexpected fields in the request: {{{', '.join(map(repr, unknown))}}}"
            raise Refused(422, said, body={"detail": said})
        if faults.max_in_flight is not None and self.n_in_flight > faults.max_in_flight:
            raise Refused(429, "Rate limit reached", "rate_limit_exceeded")
        if asked and self.manner is Manner.OPENAI:
            raise Refused(400, f"Unrecognized request arguments supplied: {', '.join(asked)}")
        if asked and self.manner is Manner.SGLANG and request.is_streamed:
            raise Refused(400, f"{asked[0]} is not supported with streaming. Please set stream=false")
        self._check_parts(request)
        if faults.max_characters is not None and request.n_characters > faults.max_characters:
            said = f"This model's maximum context length is {faults.max_characters} characters"
            raise Refused(400, said, "context_length_exceeded")

    def _check_parts(self, request: ModelRequest) -> None:
        """Refuse tools and system messages, if that is the server's manner."""
        if request.tools and self.manner is Manner.NO_TOOLS:
            raise Refused(400, NO_TOOLS)
        if request.tools and self.manner is Manner.FAILS_ON_TOOLS:
            raise _failing()
        if self.manner is Manner.NO_SYSTEM and any(message.role is Role.SYSTEM for message in request.messages):
            raise Refused(400, "System role not supported")

    async def _completion(self, request: ModelRequest, fault: Fault | None) -> Completion:
        if fault is not None and fault.kind is FaultKind.EMPTY:
            return Completion(message=assistant())
        try:
            said = self._answer(request)
            if inspect.isawaitable(said):
                said = await said
        except ContextOverflow as exc:
            raise Refused(400, str(exc), "context_length_exceeded") from exc
        except OutriderError as exc:
            raise Refused(500, str(exc)) from exc
        if isinstance(said, str):
            said = assistant(said)
        return Completion(message=said) if isinstance(said, Message) else said

    async def _spoiled(self, http: web.Request, fault: Fault, request: ModelRequest) -> web.StreamResponse | None:
        """The answer of a fault that leaves nothing to the model."""
        match fault.kind:
            case FaultKind.STATUS:
                body = fault.body or msgspec.json.encode(error_body(f"fault on call {request.number}")).decode()
                kind = "text/html" if body.startswith("<") else "application/json"
                return web.Response(status=fault.status, text=body, content_type=kind, headers=fault.headers)
            case FaultKind.BODY:
                return web.Response(text=fault.body, content_type="application/json", headers=fault.headers)
            case FaultKind.RESET:
                return _reset(http)
            case FaultKind.HANG if not (request.is_streamed and fault.after_chunks):
                await self._hang()
        return None

    async def _send(
        self, http: web.Request, request: ModelRequest, completion: Completion, fault: Fault | None
    ) -> web.StreamResponse:
        body = msgspec.json.encode(whole(completion, request))
        kind = None if fault is None else fault.kind
        if kind is FaultKind.INVALID_UTF8:
            body = _spoil_text(body, b'"content":"')
        if kind is not FaultKind.CUT:
            return web.Response(body=body, content_type="application/json", headers=_version(completion))
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(body))})
        await response.prepare(http)
        await response.write(body[: len(body) // 2])
        return _hang_up(http, response)

    async def _stream(
        self, http: web.Request, request: ModelRequest, completion: Completion, fault: Fault | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **_version(completion)})
        await response.prepare(http)
        kind = None if fault is None else fault.kind
        for number, chunk in enumerate(chunks(completion, request)):
            if fault is not None and number == fault.after_chunks:
                if kind is FaultKind.CUT:
                    return _hang_up(http, response)
                if kind is FaultKind.HANG:
                    await self._hang()
            data = msgspec.json.encode(chunk)
            if kind is FaultKind.INVALID_UTF8:
                data = _spoil_text(data, b'"delta":{"content":"')
            await response.write(b"data: " + data + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _hang(self) -> None:
        self.n_hanging += 1
        try:
            await self._released.wait()
        finally:
            self.n_hanging -= 1

    def _unknown_model(self, name: str) -> Refused:
        match self.manner:
            case Manner.TRANSFORMERS:
                return _failing()
            case Manner.LITELLM:
                said = (
                    f"/chat/completions: Invalid model name passed in model={name}. Call `/v1/models` to view models."
                )
                return Refused(400, said, body=_in_litellms_form(said, "invalid_request_error"))
            case _:
                return Refused(404, f"The model `{name}` does not exist", "model_not_found")

    def _wrong_key(self, http: web.Request) -> Refused:
        if self.manner is not Manner.LITELLM:
            return Refused(401, "Incorrect API key provided", "invalid_api_key")
        if "Authorization" not in http.headers:
            return _failing()
        return Refused(400, "No connected db.", body=_in_litellms_form("No connected db.", "no_db_connection"))

    def _has_key(self, http: web.Request) -> bool:
        return self.key is None or http.headers.get("Authorization") == f"Bearer {self.key}"


def _function_of(answer: str | AnswerFunction | ChatPolicy | None) -> AnswerFunction:
    if answer is None:
        return echo
    if isinstance(answer, str):
        return lambda _: answer
    if callable(answer):
        return answer
    policy = answer

    async def ask(request: ModelRequest) -> Said:
        return await policy.complete(request.messages, tools=request.tools, sampling=request.sampling)

    return ask


def echo(request: ModelRequest) -> str:
    """What the user said last."""
    said = [message.content for message in request.messages if message.role is not Role.SYSTEM]
    return said[-1] if said else ""


def _failing() -> Refused:
    return Refused(500, "", body="Internal Server Error")


def _in_litellms_form(message: str, kind: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": "400"}}


def _json(content: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(content), content_type="application/json")


def _error(refused: Refused) -> web.Response:
    if isinstance(refused.body, str):
        return web.Response(status=refused.status, text=refused.body)
    return _json(refused.body, refused.status)


def _version(completion: Completion) -> dict[str, str]:
    return {"X-Policy-Version": str(completion.policy_version)} if completion.policy_version else {}


def _spoil_text(data: bytes, before: bytes) -> bytes:
    """A byte that is no UTF-8 at the start of the text."""
    return data.replace(before, before + b"\xff", 1)


def _reset(http: web.Request) -> web.Response:
    """End the connection with a reset instead of a proper end."""
    if http.transport is not None:
        connection: socket.socket = http.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        http.transport.abort()
    return web.Response()


def _hang_up(http: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """End the connection in the middle of a response, after what was written so far."""
    if http.transport is not None:
        http.transport.close()
    return response


async def _serve(options: argparse.Namespace) -> None:
    """Print the address, then answer until told to stop."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    policy = None if options.model == ECHO else await open_policy(PolicySpec(model=options.model))
    server = ModelServer(
        policy if options.text is None else options.text,
        faults=from_json(options.faults, FaultPlan),
        models=(options.name,),
        key=options.key,
        manner=Manner(options.manner),
        host=options.host,
        port=options.port,
    )
    try:
        async with server:
            print(server.base_url, flush=True)  # noqa: T201 this is what the program says
            await stopped.wait()
    finally:
        if policy is not None:
            await policy.close()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m outrider.testing.model_server", description=__doc__)
    parser.add_argument(
        "--model", default=ECHO, help="who answers: builtin:echo (default), builtin:solver, replay:FILE, …"
    )
    parser.add_argument("--text", help="answer with this text instead")
    parser.add_argument("--name", default="test-model", help="the name of the model to clients (%(default)s)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes a free one")
    parser.add_argument("--key", help="refuse calls without this key")
    parser.add_argument("--manner", choices=[manner.value for manner in Manner], default=Manner.VLLM.value)
    parser.add_argument("--faults", default="{}", metavar="JSON", help='such as {"latency_seconds": 0.5}')
    try:
        asyncio.run(_serve(parser.parse_args(argv)))
    except (OutriderError, OSError, msgspec.DecodeError) as exc:
        print(f"error: {exc}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
