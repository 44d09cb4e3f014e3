"""The model client against real servers that fail in every way of the plan, vanish, and are killed."""

import asyncio
import itertools
import logging
import os
import random
import signal
import socket
import time
from contextlib import suppress
from functools import partial

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from leaks import no_leaks
from outrider.core.chat import Image, ToolCall, assistant, tool_result, user
from outrider.core.clock import SystemClock
from outrider.core.errors import ContextOverflow, InvalidInput, PolicyError, PolicyUnusable
from outrider.policy.openai.policy import OpenAIPolicy, open_openai_policy
from outrider.policy.openai.stream import MAX_EVENT_BYTES, EventReader
from outrider.policy.openai.transport import HttpTransport
from outrider.policy.protocol import Sampling
from outrider.policy.spec import PolicySpec
from outrider.testing import FakeClock, ModelServer, eventually
from outrider.testing.model_server import Manner
from outrider.testing.model_server_faults import (
    EMPTY,
    GARBAGE,
    HANG,
    INVALID_UTF8,
    RESET,
    Fault,
    FaultKind,
    FaultPlan,
    cut,
    slow,
    status,
)
from processes import line, program
from promptly import within

ASK = [user("Say five little words")]
TEXT = "Say five little words"


class QuickClock:
    """Real time, but fifty times as fast, so that waits between tries are short."""

    def __init__(self, speed=50.0):
        self._speed = speed
        self._began = time.time()
        self._clock = SystemClock()

    def time(self):
        return self._began + (self._clock.time() - self._began) * self._speed

    def monotonic(self):
        return self._clock.monotonic() * self._speed

    def call_later(self, delay_seconds, callback):
        return self._clock.call_later(delay_seconds / self._speed, callback)


@pytest.fixture
async def opened():
    """Opens policies on servers, and closes them."""
    policies = []

    async def make(*servers, clock=None, **fields):
        urls = tuple(server if isinstance(server, str) else server.base_url for server in servers)
        spec = PolicySpec(**{"model": "test-model", "base_urls": urls} | fields)
        policies.append(await open_openai_policy(spec, clock=clock or QuickClock()))
        return policies[-1]

    yield make
    for policy in policies:
        await policy.close()


def that(condition):
    async def holds():
        return condition()

    return eventually(holds)


async def only_refused_port():
    """A port on which nobody listens."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "fault",
    [
        RESET,
        EMPTY,
        GARBAGE,
        cut(0),
        cut(3),
        status(408),
        status(409),
        status(429),
        status(429, retry_after="2"),
        status(429, retry_after_ms="30"),
        status(500),
        status(502, "<html><h1>Bad Gateway</h1></html>"),
        status(503, retry_after="Wed, 21 Oct 2015 07:28:00 GMT"),
        Fault(kind=FaultKind.BODY, body='{"choices": []}'),
        Fault(kind=FaultKind.BODY, body='{"error": {"message": "away", "code": 502}}'),
        Fault(kind=FaultKind.BODY, body="<html>a portal</html>"),
    ],
    ids=lambda fault: (
        f"{fault.kind}-{fault.status}-{fault.after_chunks}{fault.body[:12]}{list(fault.headers.values())}"
    ),
)
async def test_a_passing_fault_costs_one_retry_and_never_a_wrong_answer(opened, fault, stream):
    async with no_leaks(), ModelServer(faults=FaultPlan(at={1: fault})) as server:
        policy = await opened(server, stream=stream)
        completion = await policy.complete(ASK)
        assert (completion.message.content, completion.n_retries) == (TEXT, 1)
        assert server.n_calls == 2
        await policy.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_bytes_that_are_no_utf8_are_marked_in_the_answer(opened, stream):
    async with ModelServer(faults=FaultPlan(at={1: INVALID_UTF8})) as server:
        completion = await (await opened(server, stream=stream)).complete(ASK)
    assert completion.n_retries == 0
    assert completion.message.content.replace("\ufffd", "") == TEXT
    assert "\ufffd" in completion.message.content


async def test_a_server_that_does_not_stream_is_understood(opened):
    body = '{"choices": [{"message": {"content": "all at once"}, "finish_reason": "stop"}]}'
    async with ModelServer(faults=FaultPlan(always=Fault(kind=FaultKind.BODY, body=body))) as server:
        completion = await (await opened(server, stream=True, max_retries=0)).complete(ASK)
    assert completion.message.content == "all at once"


async def test_a_fault_that_stays_is_told_once_the_retries_are_used_up(opened):
    async with ModelServer(faults=FaultPlan(always=cut(3))) as server:
        policy = await opened(server, stream=True, max_retries=2)
        with pytest.raises(PolicyError, match=r"the connection to http://127.* broke.*given up after try 3"):
            await policy.complete(ASK)
        server.faults = FaultPlan(always=EMPTY)
        with pytest.raises(PolicyError, match="an empty completion: no text and no tool call"):
            await policy.complete(ASK)
        assert server.n_calls == 6


async def test_with_a_third_of_all_calls_failing_every_answer_is_right(opened):
    rates = tuple((fault, 0.05) for fault in (RESET, EMPTY, GARBAGE, cut(2), status(500), status(429), slow(0.01)))
    async with ModelServer(faults=FaultPlan(rates=rates, seed=11)) as server:
        policy = await opened(server, stream=True, max_retries=20)
        questions = [f"question number {number}" for number in range(300)]
        answers = await asyncio.gather(*[policy.complete([user(text)]) for text in questions])
        assert [answer.message.content for answer in answers] == questions
        assert sum(answer.n_retries for answer in answers) == server.n_calls - 300 > 60


OK_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\x00\xff" * 100,
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        OK_HEAD + b"Content-Length: 500\r\n\r\n{}",
        OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        OK_HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",
        OK_HEAD + b"Content-Length: 0\r\n\r\n",
        STREAM_HEAD + b"Content-Length: 16\r\n\r\ndata: [DONE]\n\n\n\n",
        STREAM_HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\ndata:",
        STREAM_HEAD + b"\r\ndata: {}\n\ndata: 7\n\n",
    ],
    ids=lambda sent: repr(sent[-20:]),
)
async def test_a_server_that_speaks_nonsense_is_an_error_of_the_policy_and_nothing_else(opened, sent):
    async def speak(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)
        writer.close()
        await writer.wait_closed()

    async with no_leaks(), await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        policy = await opened(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", max_retries=1)
        with pytest.raises(PolicyError, match="given up after try 2") as caught:
            await policy.complete(ASK)
        assert type(caught.value) is PolicyError
        await policy.close()


async def test_a_conversation_that_is_too_long_is_a_context_overflow(opened):
    async with ModelServer(faults=FaultPlan(max_characters=1000)) as server:
        with pytest.raises(ContextOverflow, match="maximum context length"):
            await (await opened(server)).complete([user("x" * 1001)])
        assert server.n_calls == 1


async def test_an_answer_without_end_is_not_read_to_its_end():
    async with ModelServer("word " * 100_000) as server:
        for stream in (False, True):
            spec = PolicySpec(model="test-model", stream=stream, max_retries=0)
            transport = HttpTransport({}, clock := QuickClock(), max_body_bytes=50_000)
            policy = OpenAIPolicy(spec, [URL(server.base_url)], transport, clock, random.Random(0))
            with pytest.raises(PolicyError, match="more than 50000 bytes"):
                await policy.complete(ASK)
            await policy.close()


@pytest.mark.parametrize("size", [2**16, 1])
async def test_a_stream_without_a_line_end_costs_little_time_and_is_refused(size, monkeypatch):
    """64 MiB at once, or byte by byte as far as the limit allows."""
    limit, total = (MAX_EVENT_BYTES, 64 * 2**20) if size > 1 else (20_000, 100_000)
    monkeypatch.setattr("outrider.policy.openai.transport.EventReader", partial(EventReader, max_bytes=limit))

    async def endless(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        piece = b"data: x".ljust(size, b"x") if size > 1 else b"x"
        with suppress(ConnectionError):
            for _ in range(total // size):
                await response.write(piece)
        return response

    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", endless)])
    async with no_leaks(), TestServer(app) as server:
        spec = PolicySpec(
            model="m", base_urls=(str(server.make_url("/v1")),), stream=True, max_retries=0, api_key_env=("none",)
        )
        policy = await open_openai_policy(spec)
        began = time.process_time()
        with pytest.raises(PolicyError, match=f"an event of more than {limit} bytes"):
            await policy.complete(ASK)
        assert time.process_time() - began < 2.0
        await policy.close()


async def test_a_hanging_server_costs_the_deadline_and_no_more(opened):
    async with no_leaks(), ModelServer(faults=FaultPlan(always=HANG)) as server:
        policy = await opened(server, clock=(clock := FakeClock()), deadline_seconds=30.0)
        call = asyncio.ensure_future(policy.complete(ASK))
        await that(lambda: server.n_hanging == 1)
        await clock.advance(29.0)
        assert not call.done()
        await clock.advance(1.0)
        with pytest.raises(PolicyError, match=r"no answer within 30 s"):
            await call
        await that(lambda: server.n_abandoned == 1)
        await policy.close()


async def test_a_stream_that_falls_silent_is_given_up_and_tried_again(opened):
    fault = Fault(kind=FaultKind.HANG, after_chunks=3)
    async with ModelServer(faults=FaultPlan(at={1: fault})) as server:
        policy = await opened(server, clock=(clock := FakeClock()), stream=True)
        call = asyncio.ensure_future(policy.complete(ASK))
        await that(lambda: server.n_hanging == 1)

        async def is_done_after_a_second_more():
            await clock.advance(1.0)
            return call.done()

        await eventually(is_done_after_a_second_more)
        completion = await call
        assert (completion.message.content, completion.n_retries) == (TEXT, 1)
        assert server.n_abandoned == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_call_closes_its_connection_and_leaves_nothing(opened, stream):
    fault = Fault(kind=FaultKind.HANG, after_chunks=2 if stream else 0)
    async with no_leaks(), ModelServer(faults=FaultPlan(always=fault)) as server:
        policy = await opened(server, stream=stream)
        calls = [asyncio.ensure_future(policy.complete(ASK)) for _ in range(20)]
        await that(lambda: server.n_hanging == 20)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        assert all(call.cancelled() for call in calls)
        await that(lambda: server.n_abandoned == 20)
        server.faults = FaultPlan()
        assert (await policy.complete(ASK)).message.content == TEXT
        await policy.close()


async def test_closing_ends_the_calls_under_way(opened):
    async with no_leaks(), ModelServer(faults=FaultPlan(always=HANG)) as server:
        policy = await opened(server, max_concurrency=2)
        calls = [asyncio.ensure_future(policy.complete(ASK)) for _ in range(5)]
        await that(lambda: server.n_hanging == 2)
        await policy.close()
        done, _ = await asyncio.wait(calls, timeout=10)
        assert {type(call.exception()) for call in done} == {PolicyError}
        assert len(done) == 5


async def test_a_thousand_calls_at_once_are_answered_within_the_limit(opened):
    async with ModelServer(faults=FaultPlan(latency_seconds=0.002)) as server:
        policy = await opened(server, max_concurrency=100)
        texts = [f"call {number}" for number in range(1000)]
        answers = await asyncio.gather(*[policy.complete([user(text)]) for text in texts])
        assert [answer.message.content for answer in answers] == texts
        assert 32 < server.max_in_flight <= 100
        assert all(answer.n_retries == 0 for answer in answers)


async def test_calls_are_made_in_the_order_they_were_asked_for(opened):
    async with ModelServer() as server:
        policy = await opened(server, max_concurrency=4)
        await asyncio.gather(*[policy.complete([user(str(number))]) for number in range(200)])
        order = [int(request.messages[0].content) for request in server.requests]
    assert max(abs(place - number) for place, number in enumerate(order)) <= 8


async def test_the_limit_follows_what_the_server_takes(opened):
    async with ModelServer(faults=FaultPlan(latency_seconds=0.004, max_in_flight=12)) as server:
        policy = await opened(server, max_retries=12)
        answers = await asyncio.gather(*[policy.complete(ASK) for _ in range(600)])
        assert len(answers) == 600
        (endpoint,) = policy.endpoints
        assert endpoint.gate.limit <= 20
        assert server.n_calls - 600 < 200


async def test_sessions_stay_with_one_server_each_and_are_spread_evenly(opened):
    async with ModelServer() as one, ModelServer() as two, ModelServer() as three:
        policy = await opened(one, two, three)
        for _ in range(4):
            await asyncio.gather(*[policy.complete([user(f"s{n}")], session=f"s{n}") for n in range(30)])
        seen = [[request.messages[0].content for request in server.requests] for server in (one, two, three)]
    assert [len(set(sessions)) for sessions in seen] == [10, 10, 10]
    assert [len(sessions) for sessions in seen] == [40, 40, 40]


async def test_sessions_of_a_server_that_stops_move_and_new_ones_come_when_it_is_back(opened):
    async with ModelServer() as one, ModelServer() as two, ModelServer() as three:
        policy = await opened(one, two, three)
        names = [f"s{number}" for number in range(12)]

        async def round_of_calls():
            answers = await asyncio.gather(*[policy.complete([user(name)], session=name) for name in names])
            return [answer.message.content for answer in answers]

        await round_of_calls()
        port = URL(one.base_url).port
        await one.stop()
        for _ in range(3):
            assert await round_of_calls() == names
        assert one.n_calls == 4
        assert two.n_calls + three.n_calls == 12 - 4 + 3 * 12
        async with ModelServer(port=port) as back:
            numbers = itertools.count()

            async def a_new_session_comes():
                await policy.complete(ASK, session=f"new {next(numbers)}")
                return back.n_calls > 0

            await eventually(a_new_session_comes)


async def test_a_server_that_is_restarted_between_calls_costs_no_failure(opened):
    async with ModelServer() as server:
        policy = await opened(server)
        await policy.complete(ASK)
        port = URL(server.base_url).port
    async with ModelServer(port=port):
        assert (await policy.complete(ASK)).message.content == TEXT


KILLED_SERVER = """
import asyncio
from outrider.testing import ModelServer, eventually
from outrider.testing.model_server_faults import Fault, FaultKind, FaultPlan

async def main():
    fault = Fault(kind=FaultKind.HANG, after_chunks=3)
    async with ModelServer(faults=FaultPlan(always=fault)) as server:
        print(server.base_url, flush=True)
        async def is_in_the_middle():
            return server.n_hanging
        await eventually(is_in_the_middle, within_seconds=60)
        print("in the middle", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_server_killed_in_the_middle_of_a_stream_costs_a_retry_elsewhere(opened):
    with program(KILLED_SERVER) as process:
        async with ModelServer() as other:
            policy = await opened(await asyncio.to_thread(line, process), other, stream=True)
            call = asyncio.ensure_future(policy.complete(ASK, session="s"))
            assert await asyncio.to_thread(line, process) == "in the middle"
            os.kill(process.pid, signal.SIGKILL)
            completion = await call
            assert (completion.message.content, other.n_calls) == (TEXT, 1)
            assert completion.n_retries == 1


BROKEN = {
    "hang": HANG,
    "reset": RESET,
    "cut": cut(3),
    "empty": EMPTY,
    "garbage": GARBAGE,
    "page": Fault(kind=FaultKind.BODY, body="<html>a portal</html>"),
    "error in the stream": Fault(kind=FaultKind.BODY, body='{"error": {"message": "away", "code": 502}}'),
    **{str(code): status(code) for code in (400, 401, 403, 404, 422, 429, 500, 502, 503)},
}


@pytest.mark.parametrize("max_retries", [0, 1, 2])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", BROKEN.values(), ids=BROKEN)
async def test_a_call_never_returns_to_a_server_that_failed_it_while_another_is_left(
    opened, fault, stream, max_retries
):
    async with ModelServer(faults=FaultPlan(always=fault)) as broken, ModelServer() as well:
        policy = await opened(broken, well, max_retries=max_retries, stream=stream, silence_seconds=10.0)
        for number in range(10):
            completion = await policy.complete(ASK, session=f"s{number}")
            assert (completion.message.content, completion.n_retries <= 1) == (TEXT, True)
        assert well.n_calls == 10
        assert broken.n_calls >= 1


async def test_a_stream_that_goes_on_for_long_is_sent_nowhere_else(opened):
    text = " ".join(map(str, range(40)))

    async def trickling(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for word in text.split(" "):
            await response.write(f'data: {{"choices": [{{"delta": {{"content": "{word} "}}}}]}}\n\n'.encode())
            await asyncio.sleep(0.02)
        await response.write(b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n')
        return response

    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", trickling)])
    async with TestServer(app) as slow_server, ModelServer() as other:
        policy = await opened(str(slow_server.make_url("/v1")), other, stream=True, silence_seconds=15.0)
        completion = await policy.complete(ASK)  # it takes 40 seconds of the policy's time
        assert (completion.message.content.strip(), completion.n_retries, other.n_calls) == (text, 0, 0)


async def test_when_all_servers_have_failed_a_call_it_pauses_before_it_asks_them_again(opened):
    async with (
        ModelServer(faults=FaultPlan(always=status(500))) as one,
        ModelServer(faults=FaultPlan(always=status(502))) as two,
    ):
        policy = await opened(one, two, max_retries=1)
        with pytest.raises(PolicyError, match="given up after try 4"):
            await policy.complete(ASK, session="s")
        assert (one.n_calls, two.n_calls) == (2, 2)


@pytest.mark.parametrize("manner", Manner)
async def test_check_passes_on_a_server_that_has_the_model_and_takes_the_key(opened, monkeypatch, manner):
    monkeypatch.setenv("MY_KEY", "sk-right")
    async with ModelServer(key="sk-right", manner=manner, lists_models=False) as server:
        policy = await opened(server, clock=SystemClock(), api_key_env=("MY_KEY",))
        await policy.check()
        assert [request.sampling.max_tokens for request in server.requests] == [1]
        assert (await policy.complete(ASK)).message.content == TEXT


@pytest.mark.parametrize(
    ("manner", "says"),
    [
        (Manner.VLLM, r"no model 'tset-model'.*; it has test-model"),
        (Manner.LITELLM, r"no model 'tset-model' \(/chat/completions: Invalid model name.*; it has test-model"),
        (Manner.TRANSFORMERS, r"answered 500.*Does it have the model 'tset-model'"),
    ],
)
async def test_a_wrong_model_is_refused_before_a_run_whatever_the_list_says(opened, manner, says):
    async with ModelServer(manner=manner) as server:
        policy = await opened(server, model="tset-model")
        with pytest.raises(InvalidInput, match=says):
            await policy.check()


@pytest.mark.parametrize(
    ("manner", "key", "says"),
    [
        (Manner.OPENAI, "sk-wrong", "401: Incorrect API key provided. The key is read from .* MY_KEY"),
        (Manner.LITELLM, "sk-wrong", "400: No connected db. The key is read from .* MY_KEY"),
        (Manner.LITELLM, "", "answered 500.*does it want a key"),
    ],
)
async def test_a_wrong_or_missing_key_is_refused_before_a_run(opened, monkeypatch, manner, key, says):
    monkeypatch.setenv("MY_KEY", key)
    async with ModelServer(manner=manner, key="sk-right") as server:
        policy = await opened(server, api_key_env=("MY_KEY" if key else "none",))
        with pytest.raises(InvalidInput, match=says):
            await policy.check()


async def test_a_field_that_the_server_refuses_is_told_before_a_run(opened):
    async with ModelServer(manner=Manner.TRANSFORMERS) as server:
        with pytest.raises(InvalidInput, match=r"422: Unexpected fields in the request: \{'top_k'\}"):
            await (await opened(server)).check(Sampling(top_k=5))
        with pytest.raises(InvalidInput, match=r"Unexpected fields in the request: \{'min_p'\}"):
            await (await opened(server, extra_body={"min_p": 0.1})).check()


async def test_each_server_gets_the_key_that_was_named_for_it_and_no_other(opened, monkeypatch):
    monkeypatch.setenv("KEY_A", "sk-a")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-usual")
    async with ModelServer(TEXT, key="sk-a") as one, ModelServer(TEXT, key=None) as other:
        policy = await opened(one, other, clock=SystemClock(), api_key_env=("KEY_A", "none"))
        await policy.check()
        for session in ("a", "b", "c", "d"):
            await policy.complete(ASK, session=session)
        assert one.n_calls
        assert other.n_calls
        assert {request.headers.get("authorization") for request in one.requests} == {"Bearer sk-a"}
        assert {request.headers.get("authorization") for request in other.requests} == {None}


async def test_a_redirect_is_not_followed_with_a_key_nor_without(opened, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    async with ModelServer(TEXT) as other, ModelServer(TEXT) as server:
        server.faults = FaultPlan(always=status(307, "", location=f"{other.base_url}/chat/completions"))
        policy = await opened(server, clock=SystemClock(), max_retries=0)
        with pytest.raises(PolicyUnusable, match="points to http://127"):
            await policy.complete(ASK)
        assert other.n_calls == 0


async def test_a_server_that_wants_a_key_and_got_none_says_how_to_name_one(opened, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with ModelServer(TEXT, key="sk-a") as server:
        with pytest.raises(InvalidInput, match=r"No key was sent: .*--api-key-env"):
            await (await opened(server, clock=SystemClock())).check()


async def test_a_wrong_key_is_told_before_and_during_a_run_and_never_shown(opened, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_KEY", "sk-wrong-and-secret")
    async with ModelServer(key="sk-right") as server:
        policy = await opened(server, clock=SystemClock(), api_key_env=("MY_KEY",), max_retries=0)
        with pytest.raises(InvalidInput, match="environment variable MY_KEY"):
            await policy.check()
        with pytest.raises(PolicyUnusable, match="environment variable MY_KEY"):
            await policy.complete(ASK)
        server.key = None
        server.faults = FaultPlan(always=status(401, '{"error": {"message": "sk-wrong-and-secret is no key"}}'))
        with pytest.raises(PolicyUnusable, match=r"\*\*\* is no key") as caught:
            await policy.complete(ASK)
        server.faults = FaultPlan(always=status(500, "sk-wrong-and-secret"))
        with pytest.raises(PolicyError):
            await policy.complete(ASK)
    assert "secret" not in caplog.text + str(caught.value)
    assert "try 1 failed" in caplog.text


async def test_a_server_that_is_not_there_is_told_at_once(opened):
    policy = await opened(f"http://127.0.0.1:{await only_refused_port()}/v1", clock=SystemClock())
    with (
        within(3),
        pytest.raises(
            InvalidInput,
            match=r"no connection to http://127.0.0.1:\d+: Connection refused\. Start .*--base-url or OPENAI_BASE_URL",
        ),
    ):
        await policy.check()


async def test_a_server_that_takes_connections_and_says_nothing_is_told(opened):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        async with ModelServer() as server:
            policy = await opened(server, f"http://127.0.0.1:{port}/v1")
            with pytest.raises(InvalidInput, match=f"{port}/v1 does not answer"):
                await policy.check()


async def test_a_model_the_server_does_not_have_is_told_with_those_it_has(opened):
    async with ModelServer(models=("llama-8b", "llama-70b", "qwen")) as server:
        policy = await opened(server, clock=SystemClock(), model="lama-8b")
        with pytest.raises(InvalidInput, match=r"no model 'lama-8b'.*it has llama-8b, llama-70b, qwen"):
            await policy.check()
        with pytest.raises(PolicyUnusable, match=r"no model 'lama-8b'.*it has llama-8b"):
            await policy.complete(ASK)


async def test_a_server_that_has_moved_is_told_with_where_to(opened):
    moved = status(308, "moved", location="https://elsewhere/v1/chat/completions")
    async with ModelServer(faults=FaultPlan(always=moved)) as server:
        with pytest.raises(PolicyUnusable, match="points to https://elsewhere/v1/chat/completions"):
            await (await opened(server)).complete(ASK)


@pytest.mark.parametrize("field", [{"max_retries": -1}, {"deadline_seconds": 0.0}, {"max_concurrency": 0}])
async def test_a_spec_that_allows_no_call_is_refused(opened, field):
    with pytest.raises(InvalidInput, match=next(iter(field))):
        await opened("http://127.0.0.1:1/v1", **field)


async def test_addresses_come_from_the_environment_too(opened, monkeypatch):
    async with ModelServer("one") as one, ModelServer("two") as two:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{one.base_url},{two.base_url}")
        policy = await opened()
        said = {(await policy.complete(ASK, session=str(number))).message.content for number in range(4)}
    assert said == {"one", "two"}


async def test_a_history_with_tool_calls_pictures_and_broken_text_arrives_whole(opened):
    call = ToolCall(id="c1", name="look", arguments="{}")
    picture = Image(data=os.urandom(200_000))
    history = [
        user("a\ud800b"),
        assistant(tool_calls=(call,)),
        tool_result(call, "seen", (picture,)),
        user("ü" * 10_000),
    ]
    async with ModelServer("fine") as server:
        assert (await (await opened(server)).complete(history)).message.content == "fine"
        (request,) = server.requests
    assert [message.content for message in request.messages][0::4] == ["a?b", "ü" * 10_000]
    assert request.messages[1] == history[1]
    assert request.messages[2] == tool_result(call, "seen")
    assert request.messages[3].images == (picture,)
