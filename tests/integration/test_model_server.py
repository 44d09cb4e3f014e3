"""The test server, by the real `openai` SDK beside our client, and as a program."""

import asyncio
import json
import signal
import struct
import subprocess
import sys

import aiohttp
import openai
import pytest
from msgspec.structs import replace

from leaks import no_leaks
from outrider.core.chat import Image, Message, Role, ToolCall, ToolSpec, assistant, user
from outrider.core.errors import ContextOverflow, PolicyError
from outrider.policy.openai.policy import open_openai_policy
from outrider.policy.protocol import Completion, FinishReason, Sampling, Usage
from outrider.policy.spec import PolicySpec
from outrider.testing import ModelServer, eventually
from outrider.testing.model_server import Manner
from outrider.testing.model_server_faults import (
    EMPTY,
    GARBAGE,
    HANG,
    INVALID_UTF8,
    RESET,
    FaultPlan,
    cut,
    slow,
    status,
)
from outrider.testing.model_server_wire import logprob, pieces_of, token_id

PNG = b"\x89PNG\r\n\x1a\n"
WEATHER = ToolSpec(
    name="weather",
    description="The weather.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}},
)
CALLS = (
    ToolCall(id="c1", name="weather", arguments='{"city": "Rome"}'),
    ToolCall(id="c2", name="weather", arguments='{"city": "Oslo"}'),
)


@pytest.fixture
async def sdk():
    """Makes clients of the SDK that do not retry."""
    clients = []

    def make(server, **options):
        client = openai.AsyncOpenAI(base_url=server.base_url, **{"api_key": "none", "max_retries": 0} | options)
        clients.append(client)
        return client.chat.completions

    yield make
    for client in clients:
        await client.close()


@pytest.fixture
async def ours():
    """Makes our policies, by address."""
    policies = []

    async def make(server, **options):
        spec = PolicySpec(model="test-model", base_urls=(server.base_url,), **{"max_retries": 0} | options)
        policies.append(await open_openai_policy(spec))
        return policies[-1]

    yield make
    for policy in policies:
        await policy.close()


async def test_the_sdk_and_our_client_get_the_same_plain_answer(sdk, ours):
    async with ModelServer("It is 4.") as server:
        mine = await (await ours(server)).complete([user("2+2?")])
        theirs = await sdk(server).create(model="test-model", messages=[{"role": "user", "content": "2+2?"}])
    assert mine.message.content == theirs.choices[0].message.content == "It is 4."
    assert mine.finish_reason == theirs.choices[0].finish_reason == "stop"
    assert mine.usage.prompt_tokens == theirs.usage.prompt_tokens == 1
    assert mine.usage.completion_tokens == theirs.usage.completion_tokens == 3
    assert mine.model == theirs.model == "test-model"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_sdk_and_our_client_get_the_same_tool_calls(sdk, ours, stream):
    async with ModelServer(lambda _: assistant("Let me look.", CALLS)) as server:
        mine = await (await ours(server, stream=stream)).complete([user("Weather?")], tools=[WEATHER])
        function = {"name": "weather", "description": WEATHER.description, "parameters": WEATHER.parameters}
        arguments = {
            "model": "test-model",
            "messages": [{"role": "user", "content": "Weather?"}],
            "tools": [{"type": "function", "function": function}],
        }
        if stream:
            async with sdk(server).stream(**arguments) as events:
                theirs = await events.get_final_completion()
        else:
            theirs = await sdk(server).create(**arguments)
        mine_sent, their_sent = server.requests
        assert mine_sent.tools == their_sent.tools == (WEATHER,)
    assert mine.message.tool_calls == CALLS
    assert [
        ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
        for call in theirs.choices[0].message.tool_calls
    ] == list(CALLS)
    assert mine.finish_reason == theirs.choices[0].finish_reason == "tool_calls"
    assert mine.message.content == theirs.choices[0].message.content == "Let me look."


async def test_the_sdk_and_our_client_get_the_same_stream(sdk, ours):
    text = "Häuser, Bäume\n\nund   Straßen 🚲 \n"
    async with ModelServer(text) as server:
        mine = await (await ours(server, stream=True)).complete([user("Was?")])
        chunks = await sdk(server).create(
            model="test-model",
            messages=[{"role": "user", "content": "Was?"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        pieces, usage = [], None
        async for chunk in chunks:
            usage = chunk.usage or usage
            pieces += [choice.delta.content or "" for choice in chunk.choices]
        assert [request.is_streamed for request in server.requests] == [True, True]
    assert mine.message.content == "".join(pieces) == text
    assert len(pieces) > 4
    assert mine.usage.completion_tokens == usage.completion_tokens == len(pieces_of(text))


async def test_both_clients_images_arrive_whole(sdk, ours):
    data_url = "data:image/png;base64,iVBORw0KGgo="
    content = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": data_url}}]
    async with ModelServer("A dot.") as server:
        await (await ours(server)).complete([user("What?", (Image(data=PNG),))])
        await sdk(server).create(model="test-model", messages=[{"role": "user", "content": content}])
        mine, theirs = server.requests
    assert mine.messages == theirs.messages == (user("What?", (Image(data=PNG),)),)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_sdk_and_our_client_get_the_same_log_probabilities_and_we_the_token_ids(sdk, ours, stream):
    async with ModelServer("one two three") as server:
        mine = await (await ours(server, stream=stream)).complete([user("Count up")], sampling=Sampling(logprobs=True))
        theirs = await sdk(server).create(
            model="test-model", messages=[{"role": "user", "content": "Count up"}], logprobs=True
        )
    given = [token.logprob for token in theirs.choices[0].logprobs.content]
    assert list(struct.unpack("<3f", mine.tokens.logprobs)) == pytest.approx(given)
    assert given == [logprob(piece) for piece in ("one", " two", " three")]
    assert struct.unpack("<3i", mine.tokens.completion_ids) == tuple(map(token_id, ("one", " two", " three")))
    assert struct.unpack("<2i", mine.tokens.prompt_ids) == tuple(map(token_id, ("Count", " up")))


@pytest.mark.parametrize(
    ("manner", "stream", "n_refused", "has_ids"),
    [
        ("vllm", False, 0, True),
        ("vllm", True, 0, True),
        ("sglang", False, 0, True),
        ("sglang", True, 1, True),
        ("openai", False, 1, False),
        ("openai", True, 1, False),
    ],
)
async def test_token_ids_come_from_each_kind_of_server_that_has_them(ours, manner, stream, n_refused, has_ids):
    async with ModelServer("one two", manner=Manner(manner)) as server:
        policy = await ours(server, stream=stream)
        first, second = [await policy.complete([user("hi")], sampling=Sampling(logprobs=True)) for _ in range(2)]
        assert server.n_calls == 2 + n_refused
    assert first == replace(second, queue_seconds=first.queue_seconds)
    assert first.n_retries == 0
    assert len(first.tokens.logprobs) == 8
    assert bool(first.tokens.completion_ids) == bool(first.tokens.prompt_ids) == has_ids


async def test_reasoning_and_sampling_and_the_version_of_the_policy_pass_both_ways(ours):
    message = Message(role=Role.ASSISTANT, content="a b c d", reasoning="let me see")
    async with ModelServer(lambda _: Completion(message=message, policy_version=7)) as server:
        sampling = Sampling(temperature=0.5, top_p=0.9, max_tokens=2, seed=3, stop=("x", "y"))
        for stream in (False, True):
            policy = await ours(server, stream=stream)
            completion = await policy.complete([user("hi"), message, user("more")], sampling=sampling)
            assert completion.message == Message(role=Role.ASSISTANT, content="a b", reasoning="let me see")
            assert (completion.finish_reason, completion.policy_version) == (FinishReason.LENGTH, 7)
            assert server.requests[-1].sampling == sampling
            assert server.requests[-1].messages[1] == message


async def test_the_server_answers_by_a_policy_and_by_a_coroutine(ours):
    async def later(request):
        await asyncio.sleep(0)
        if request.messages[-1].content == "long":
            raise ContextOverflow("too long")
        if request.messages[-1].content == "fail":
            raise PolicyError("boom")
        return Completion(message=assistant(f"answer {request.number}"), usage=Usage(prompt_tokens=9))

    async with ModelServer(later) as inner, ModelServer(await ours(inner)) as outer:
        policy = await ours(outer)
        completion = await policy.complete([user("hi")])
        assert (completion.message.content, completion.usage.prompt_tokens) == ("answer 1", 9)
        with pytest.raises(ContextOverflow, match="too long"):
            await policy.complete([user("long")])
        with pytest.raises(PolicyError, match="boom"):
            await policy.complete([user("fail")])


async def test_the_sdk_sees_the_errors_it_knows(sdk):
    ask = {"model": "test-model", "messages": [{"role": "user", "content": "x" * 50}]}
    faults = FaultPlan(at={1: status(429, retry_after="1"), 2: status(500)}, max_characters=100)
    async with ModelServer(faults=faults, key="secret") as server:
        create = sdk(server, api_key="secret").create
        with pytest.raises(openai.RateLimitError):
            await create(**ask)
        with pytest.raises(openai.InternalServerError):
            await create(**ask)
        with pytest.raises(openai.AuthenticationError):
            await sdk(server).create(**ask)
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await create(**ask | {"model": "other"})
        with pytest.raises(openai.BadRequestError) as caught:
            await create(**ask | {"messages": [{"role": "user", "content": "x" * 101}]})
        assert caught.value.code == "context_length_exceeded"
        server.faults = FaultPlan(always=RESET)
        with pytest.raises(openai.APIConnectionError):
            await create(**ask)


async def test_models_are_listed_for_those_who_have_the_key():
    async with ModelServer(models=("a", "b"), key="secret") as server, aiohttp.ClientSession() as session:
        async with session.get(f"{server.base_url}/models", headers={"Authorization": "Bearer secret"}) as response:
            assert [model["id"] for model in (await response.json())["data"]] == ["a", "b"]
        async with session.get(f"{server.base_url}/models") as response:
            assert response.status == 401
        server.lists_models = False
        server.key = None
        async with session.get(f"{server.base_url}/models") as response:
            assert response.status == 404


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"model": "test-model"}', b'{"model": "test-model", "messages": [{"role": "king"}]}']
)
async def test_a_request_that_is_none_is_refused(body):
    async with ModelServer() as server, aiohttp.ClientSession(server.base_url + "/") as session:
        response = await session.post("chat/completions", data=body)
        assert response.status == 400
        assert "cannot be read" in (await response.json())["error"]["message"]


async def test_requests_are_recorded_but_not_without_end(ours):
    async with ModelServer() as server:
        policy = await ours(server)
        for number in range(1010):
            await policy.complete([user(str(number))])
        assert server.n_calls == 1010
        assert [request.messages[0].content for request in server.requests] == list(map(str, range(10, 1010)))


async def test_faults_drawn_by_a_seed_are_the_same_every_time():
    plan = FaultPlan(rates=((RESET, 0.1), (EMPTY, 0.2)), seed=4)
    drawn = [plan.fault_of(number) for number in range(2000)]
    assert drawn == [plan.fault_of(number) for number in range(2000)]
    assert drawn != [FaultPlan(rates=plan.rates, seed=5).fault_of(number) for number in range(2000)]
    assert 150 < drawn.count(RESET) < 250
    assert 340 < drawn.count(EMPTY) < 460


async def test_hanging_calls_go_on_when_released_and_nothing_is_left_behind(ours):
    async with no_leaks(), ModelServer("late", faults=FaultPlan(always=HANG)) as server:
        policy = await ours(server)
        calls = [asyncio.ensure_future(policy.complete([user("hi")])) for _ in range(3)]
        await eventually(lambda: is_hanging(server, 3))
        server.release()
        assert {(await call).message.content for call in calls} == {"late"}
        await policy.close()


async def is_hanging(server, n):
    return server.n_hanging == n


async def test_stopping_does_not_wait_for_those_who_hang():
    async with ModelServer(faults=FaultPlan(always=slow(3600.0))) as server, aiohttp.ClientSession() as session:
        body = json.dumps({"model": "test-model", "messages": []})
        call = asyncio.ensure_future(session.post(f"{server.base_url}/chat/completions", data=body))

        async def is_there():
            return server.n_in_flight == 1

        await eventually(is_there)
        async with asyncio.timeout(30):
            await server.stop()
        with pytest.raises(aiohttp.ClientError):
            await call


@pytest.mark.parametrize("fault", [RESET, HANG, EMPTY, GARBAGE, INVALID_UTF8, cut(3), slow(1.0), status(429, a_b="c")])
def test_a_plan_is_data_that_crosses_process_borders(fault):
    import msgspec

    plan = FaultPlan(at={3: fault}, rates=((fault, 0.5),), always=fault)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=FaultPlan) == plan


def program(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "outrider.testing.model_server", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def test_as_a_program_it_tells_its_address_and_stops_when_told(sdk):
    faults = {"at": {"2": {"kind": "status", "status": 503}}}
    with program("--port", "0", "--name", "parrot", "--key", "k", "--faults", json.dumps(faults)) as process:
        try:
            url = process.stdout.readline().strip()
            client = openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0)
            ask = {"model": "parrot", "messages": [{"role": "user", "content": "Hello?"}]}
            assert (await client.chat.completions.create(**ask)).choices[0].message.content == "Hello?"
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(**ask)
            await client.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--faults", "{"], "error:"),
        (["--faults", '{"nonsense": 1}'], "nonsense"),
        (["--model", "builtin:nobody"], "nobody"),
        (["--host", "203.0.113.1"], "error:"),
    ],
)
def test_as_a_program_it_tells_what_is_wrong_with_its_options(arguments, says):
    with program(*arguments) as process:
        _, told = process.communicate(timeout=30)
    assert process.returncode == 2
    assert says in told
    assert "Traceback" not in told


def test_importing_the_testing_package_brings_no_http_library():
    source = "import sys, outrider.testing; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0
