"""Tries, waits and moves of the policy, on a clock that stands still and a wire that does as it is told."""

import asyncio
import json
import random
from collections import deque
from itertools import pairwise

import pytest
from yarl import URL

from outrider.core.chat import user
from outrider.core.clock import sleep
from outrider.core.errors import ContextOverflow, InvalidInput, PolicyError, PolicyRefused, PolicyUnusable
from outrider.policy.openai.failure import Setback
from outrider.policy.openai.policy import OpenAIPolicy
from outrider.policy.openai.transport import Exchange
from outrider.policy.protocol import Sampling
from outrider.policy.spec import PolicySpec

ASK = [user("hi")]
HANG = object()
GONE = Setback("no connection", is_gone=True)
BROKEN = Setback("the connection broke", is_fault=True)


def answer(text="ok", **message):
    content = {"model": "m", "choices": [{"message": {"content": text, **message}, "finish_reason": "stop"}]}
    return Exchange(status=200, headers={}, body=json.dumps(content).encode())


def refuse(status, message="no", code=None, **headers):
    body = json.dumps({"error": {"message": message, "code": code}}).encode()
    return Exchange(status=status, headers={k.replace("_", "-"): v for k, v in headers.items()}, body=body)


class Wire:
    """Gives each server's outcomes in order, then plain answers; remembers what it was sent and when."""

    def __init__(self, clock, outcomes=(), by_host=None, models=None):
        self._clock = clock
        self._outcomes = {None: deque(outcomes)} | {host: deque(list_) for host, list_ in (by_host or {}).items()}
        self._models = models
        self.sent = []
        self.n_lists = 0

    async def get(self, url):
        self.n_lists += 1
        if isinstance(self._models, Exchange):
            return self._models
        names = {"data": [{"id": name} for name in self._models or ()]}
        return Exchange(status=200, headers={}, body=json.dumps(names).encode())

    async def post(self, url, body, heard=None):
        self.sent.append((self._clock.time(), url.host, json.loads(body)))
        queue = self._outcomes.get(url.host, self._outcomes[None])
        outcome = queue.popleft() if queue else answer()
        await asyncio.sleep(0)
        if outcome is HANG:
            await asyncio.Event().wait()
        if isinstance(outcome, float):
            await sleep(self._clock, outcome)
            outcome = answer(f"after {outcome:g}")
            heard()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def close(self):
        pass

    @property
    def waits(self):
        times = [time for time, _, _ in self.sent]
        return [later - earlier for earlier, later in pairwise(times)]

    @property
    def hosts(self):
        return [host for _, host, _ in self.sent]


def policy(clock, wire, *hosts, **fields):
    spec = PolicySpec(model="m", **fields)
    urls = [URL(f"http://{host}/v1") for host in hosts or ("one",)]
    named = {url.origin(): "MY_KEY" for url in urls}
    return OpenAIPolicy(spec, urls, wire, clock, random.Random(3), key_variables=named)


async def run(clock, coroutine, *, step=0.25, most=10_000):
    """Move time until the call has ended."""
    task = asyncio.ensure_future(coroutine)
    for _ in range(most):
        await clock.advance(0)
        if task.done():
            break
        await clock.advance(step)
    assert clock.n_timers == 0
    return await task


async def test_passing_troubles_are_tried_again_with_growing_waits(clock):
    wire = Wire(clock, [refuse(500), refuse(502), BROKEN, answer("at last")])
    completion = await run(clock, policy(clock, wire).complete(ASK), step=0.01)
    assert (completion.message.content, completion.n_retries) == ("at last", 3)
    for wait, longest in zip(wire.waits, (0.5, 1.0, 2.0), strict=True):
        assert longest / 2 <= wait <= longest + 0.02


async def test_retries_are_counted_and_end(clock):
    wire = Wire(clock, [refuse(500, "boom")] * 10)
    with pytest.raises(PolicyError, match=r"boom.*given up after try 3") as caught:
        await run(clock, policy(clock, wire, max_retries=2).complete(ASK))
    assert type(caught.value) is PolicyError
    assert len(wire.sent) == 3


async def test_no_retries_means_one_try(clock):
    wire = Wire(clock, [refuse(500)])
    with pytest.raises(PolicyError):
        await run(clock, policy(clock, wire, max_retries=0).complete(ASK))
    assert len(wire.sent) == 1


async def test_the_pause_that_the_server_asks_for_is_kept(clock):
    wire = Wire(clock, [refuse(429, retry_after="20"), refuse(429, retry_after_ms="500")])
    await run(clock, policy(clock, wire).complete(ASK), step=0.05)
    first, second = wire.waits
    assert 20.0 <= first <= 22.1
    assert 0.5 <= second <= 0.65


async def test_everyone_keeps_the_pause_that_one_was_asked_for(clock):
    wire = Wire(clock, [refuse(429, retry_after="20")])
    client = policy(clock, wire)

    async def one_after_the_other():
        first = asyncio.ensure_future(client.complete(ASK))
        await asyncio.sleep(0)
        await asyncio.gather(first, client.complete(ASK))

    await run(clock, one_after_the_other())
    assert len(wire.sent) == 3
    assert min(time for time, _, _ in wire.sent[1:]) >= wire.sent[0][0] + 20.0


async def test_a_pause_beyond_the_deadline_is_not_waited_for(clock):
    wire = Wire(clock, [refuse(429, "slow down", retry_after="900")])
    began = clock.time()
    with pytest.raises(PolicyError, match=r"slow down.*after the deadline of 600 s"):
        await policy(clock, wire).complete(ASK)
    assert clock.time() == began


async def test_the_deadline_bounds_the_call_with_all_its_tries(clock):
    wire = Wire(clock, [refuse(500, "boom"), HANG])
    began = clock.time()
    with pytest.raises(PolicyError, match=r"no answer within 30 s, before that: .*boom"):
        await run(clock, policy(clock, wire, deadline_seconds=30.0).complete(ASK))
    assert clock.time() - began == pytest.approx(30.0, abs=0.3)


async def test_the_wait_for_a_first_permit_is_not_part_of_the_deadline(clock):
    wire = Wire(clock, [HANG])
    client = policy(clock, wire, max_concurrency=1, deadline_seconds=10.0)
    first = asyncio.ensure_future(client.complete(ASK))
    await clock.advance(5.0)
    second = asyncio.ensure_future(client.complete(ASK))
    await clock.advance(6.0)
    with pytest.raises(PolicyError):
        await first
    assert (await second).message.content == "ok"


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (refuse(400, "temperature is wrong"), PolicyRefused),
        (refuse(400, "maximum context length is 10"), ContextOverflow),
        (refuse(401), PolicyUnusable),
        (refuse(429, "pay", "insufficient_quota"), PolicyUnusable),
    ],
)
async def test_what_cannot_get_better_is_not_tried_again(clock, outcome, error):
    wire = Wire(clock, [outcome])
    with pytest.raises(error) as caught:
        await policy(clock, wire).complete(ASK)
    assert type(caught.value) is error
    assert len(wire.sent) == 1


@pytest.mark.parametrize(
    "outcome",
    [answer(""), Exchange(status=200, headers={}, body=b"<html>"), Exchange(status=200, headers={}, body=b"{}")],
)
async def test_empty_and_malformed_answers_are_tried_again_and_then_told(clock, outcome):
    wire = Wire(clock, [outcome, answer("ok")])
    assert (await run(clock, policy(clock, wire).complete(ASK))).n_retries == 1
    wire = Wire(clock, [outcome] * 9)
    with pytest.raises(PolicyError, match="given up after try 4") as caught:
        await run(clock, policy(clock, wire).complete(ASK))
    assert type(caught.value) is PolicyError


async def test_an_error_object_with_status_200_is_an_error(clock):
    body = b'{"error": {"message": "upstream is away", "code": 502}}'
    wire = Wire(clock, [Exchange(status=200, headers={}, body=body)])
    assert (await run(clock, policy(clock, wire).complete(ASK))).n_retries == 1


async def test_an_unknown_model_is_told_with_some_the_server_has_asked_for_once(clock):
    missing = refuse(404, "The model `m` does not exist", "model_not_found")
    wire = Wire(clock, [missing] * 20, models=["m-large", "n"])
    client = policy(clock, wire)
    errors = await asyncio.gather(*[client.complete(ASK) for _ in range(20)], return_exceptions=True)
    assert {type(error).__mro__[1] for error in errors} == {PolicyUnusable}
    assert all("no model 'm'" in str(error) and "it has m-large, n" in str(error) for error in errors)
    assert wire.n_lists == 1


async def test_refused_fields_are_left_out_from_then_on_and_cost_no_retry(clock):
    wire = Wire(clock, [refuse(400, "Unrecognized request argument supplied: return_token_ids")])
    client = policy(clock, wire, max_retries=0)
    for _ in range(2):
        assert (await client.complete(ASK, sampling=Sampling(logprobs=True))).n_retries == 0
    asked = ["return_token_ids" in body for _, _, body in wire.sent]
    assert asked == [True, False, False]


async def test_what_one_call_learns_is_not_undone_by_another(clock):
    client = policy(clock, wire := Wire(clock), stream=True)
    wire._outcomes[None].extend(
        [refuse(400, "Unknown parameter: 'stream_options'"), refuse(400, "return_meta_info is unknown here")]
    )
    sampling = Sampling(logprobs=True)
    await asyncio.gather(*[client.complete(ASK, sampling=sampling) for _ in range(2)])
    (endpoint,) = client.endpoints
    assert not endpoint.dialect.has_stream_usage
    assert not endpoint.dialect.gives_token_ids


async def test_what_another_call_has_learned_is_no_reason_to_repeat_a_call_that_failed_otherwise(clock):
    wire = Wire(clock, [refuse(400, "Unknown parameter: 'stream_options'"), refuse(500, "boom")])
    client = policy(clock, wire, stream=True, max_retries=0)
    first, second = await asyncio.gather(*[client.complete(ASK) for _ in range(2)], return_exceptions=True)
    assert first.message.content == "ok"
    assert "boom" in str(second)
    assert len(wire.sent) == 3


async def test_a_refusal_that_repeats_is_raised_and_not_asked_forever(clock):
    wire = Wire(clock, [refuse(400, "return_token_ids stream_options max_completion_tokens nsupported")] * 50)
    with pytest.raises(PolicyError, match="return_token_ids"):
        await policy(clock, wire, stream=True).complete(ASK, sampling=Sampling(logprobs=True, max_tokens=2))
    assert len(wire.sent) <= 6


async def test_a_session_stays_with_its_server_and_moves_at_once_when_that_is_gone(clock):
    wire = Wire(clock, by_host={"one": [answer()] * 3 + [GONE]})
    client = policy(clock, wire, "one", "two")
    for _ in range(3):
        await client.complete(ASK, session="s")
    completion = await client.complete(ASK, session="s")  # the clock stands still: there is no wait
    assert completion.n_retries == 1
    await client.complete(ASK, session="s")
    assert wire.hosts == ["one", "one", "one", "one", "two", "two"]


async def test_a_server_that_fails_again_and_again_is_left_after_three_times(clock):
    wire = Wire(clock, by_host={"one": [refuse(500)] * 9})
    client = policy(clock, wire, "one", "two")
    for _ in range(4):
        assert (await client.complete(ASK, session="s")).n_retries <= 1
    assert wire.hosts == ["one", "two", "one", "two", "one", "two", "two"]


async def test_a_server_that_rests_is_asked_before_a_call_is_given_up(clock):
    wire = Wire(clock, by_host={"one": [GONE], "two": [answer(), refuse(500)]})
    client = policy(clock, wire, "one", "two", max_retries=0)
    await client.complete(ASK, session="s")
    assert (await client.complete(ASK, session="s")).message.content == "ok"
    assert wire.hosts == ["one", "two", "two", "one"]  # which rests, but is back


async def test_a_server_that_refuses_a_call_is_not_asked_again_and_the_others_are(clock):
    wire = Wire(clock, by_host={"one": [refuse(400, "no such field")] * 9, "two": [refuse(500), answer()]})
    completion = await run(clock, policy(clock, wire, "one", "two", max_retries=1).complete(ASK, session="s"))
    assert (completion.message.content, wire.hosts) == ("ok", ["one", "two", "two"])


async def test_a_refusal_of_all_servers_is_raised_as_it_is_without_a_pause(clock):
    wire = Wire(clock, by_host={"one": [refuse(400, "first")] * 9, "two": [refuse(400, "second")] * 9})
    with pytest.raises(PolicyError, match=r"one/v1 answered 400: first$"):
        await policy(clock, wire, "one", "two").complete(ASK)
    assert wire.hosts == ["one", "two"]
    wire = Wire(clock, by_host={"one": [refuse(401)] * 9, "two": [refuse(401)] * 9})
    with pytest.raises(PolicyUnusable, match="one/v1 answered 401"):
        await policy(clock, wire, "one", "two").complete(ASK)


async def test_a_server_with_a_wrong_key_or_model_rests_while_another_takes_the_calls(clock):
    wire = Wire(clock, by_host={"one": [refuse(401)] * 9})
    client = policy(clock, wire, "one", "two", max_retries=0)
    for _ in range(3):
        assert (await client.complete(ASK, session="s")).message.content == "ok"
    assert wire.hosts == ["one", "two", "two", "two"]


async def test_a_conversation_that_is_too_long_for_one_server_is_not_sent_to_the_others(clock):
    wire = Wire(clock, by_host={"one": [refuse(400, "no", "context_length_exceeded")]})
    with pytest.raises(ContextOverflow):
        await policy(clock, wire, "one", "two").complete(ASK, session="s")
    assert wire.hosts == ["one"]


async def test_a_call_that_a_server_leaves_waiting_is_sent_to_another_and_the_server_rests(clock):
    wire = Wire(clock, by_host={"one": [HANG] * 3})
    client = policy(clock, wire, "one", "two", max_retries=0, silence_seconds=20.0)
    completion = await run(clock, client.complete(ASK, session="s"))
    assert (completion.message.content, completion.n_retries, wire.waits) == ("ok", 1, [20.0])
    for session in ("s", "t", "u"):
        assert (await client.complete(ASK, session=session)).message.content == "ok"
    assert wire.hosts == ["one", "two", "two", "two", "two"]


async def test_an_answer_that_takes_long_is_not_cut_and_counts_if_it_is_first(clock):
    wire = Wire(clock, by_host={"one": [50.0], "two": [40.0]})
    client = policy(clock, wire, "one", "two", silence_seconds=20.0)
    completion = await run(clock, client.complete(ASK, session="s"))
    assert (completion.message.content, completion.n_retries) == ("after 50", 0)
    assert wire.hosts == ["one", "two"]
    assert [endpoint.has_failed for endpoint in client.endpoints] == [False, False]


async def test_a_long_answer_is_sent_nowhere_else_while_its_server_answers_other_calls(clock):
    wire = Wire(clock, by_host={"one": [100.0, 15.0, 15.0, 15.0, 15.0, 15.0, 15.0]})
    client = policy(clock, wire, "one", "two", silence_seconds=20.0)

    async def others():
        for _ in range(6):
            await client.complete(ASK, session="s")

    completion, _ = await run(clock, _both(client.complete(ASK, session="s"), others()))
    assert (completion.message.content, set(wire.hosts)) == ("after 100", {"one"})


async def test_a_call_that_hangs_where_others_are_answered_is_sent_elsewhere_after_half_of_its_deadline(clock):
    wire = Wire(clock, by_host={"one": [HANG, *[5.0] * 20]})
    client = policy(clock, wire, "one", "two", silence_seconds=20.0, deadline_seconds=60.0)

    async def others():
        for _ in range(20):
            await client.complete(ASK, session="s")

    completion, _ = await run(clock, _both(client.complete(ASK, session="s"), others()))
    assert (completion.message.content, completion.n_retries) == ("ok", 1)
    assert wire.hosts.count("two") == 1
    assert [endpoint.has_failed for endpoint in client.endpoints] == [False, False]


async def test_calls_that_wait_in_our_queue_for_a_silent_server_move_on_with_those_it_has(clock):
    wire = Wire(clock, by_host={"one": [HANG] * 9})
    client = policy(clock, wire, "one", "two", max_concurrency=2, silence_seconds=20.0)
    client.endpoints.choose("s")
    calls = [client.complete(ASK, session="s") for _ in range(6)]
    completions = await run(clock, _both(*calls))
    assert [completion.message.content for completion in completions] == ["ok"] * 6
    assert clock.monotonic() < 25.0
    assert wire.hosts.count("one") <= 4


async def test_a_server_that_fails_is_asked_again_while_another_hangs(clock):
    wire = Wire(clock, by_host={"one": [HANG], "two": [refuse(500), refuse(500), answer("at last")]})
    client = policy(clock, wire, "one", "two", silence_seconds=20.0)
    completion = await run(clock, client.complete(ASK, session="s"))
    assert (completion.message.content, wire.hosts) == ("at last", ["one", "two", "two", "two"])


async def test_when_all_servers_hang_a_call_ends_with_its_deadline(clock):
    wire = Wire(clock, by_host={"one": [HANG], "two": [HANG]})
    with pytest.raises(PolicyError, match="no answer within 60 s"):
        await run(clock, policy(clock, wire, "one", "two", deadline_seconds=60.0).complete(ASK))
    assert (wire.hosts, wire.waits) == (["one", "two"], [30.0])


async def test_a_server_that_lets_a_call_hang_until_its_caller_gives_up_loses_the_session(clock):
    wire = Wire(clock, by_host={"one": [HANG] * 9})
    client = policy(clock, wire, "one", "two")
    for session in ("s", "t", "u"):
        client.endpoints._assign(session, next(iter(client.endpoints)))
        call = asyncio.ensure_future(client.complete(ASK, session=session))
        await clock.advance(10.0)
        call.cancel()
        await asyncio.wait([call])
        assert (await client.complete(ASK, session=session)).message.content == "ok"
    assert wire.hosts == ["one", "two"] * 3
    assert [endpoint.has_failed for endpoint in client.endpoints] == [True, False]


async def test_calls_that_are_given_up_together_do_not_fail_a_server(clock):
    client = policy(clock, Wire(clock, [HANG] * 9), "one", "two")
    calls = [asyncio.ensure_future(client.complete(ASK, session="s")) for _ in range(9)]
    await clock.advance(10.0)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    assert [endpoint.has_failed for endpoint in client.endpoints] == [False, False]
    assert clock.n_timers == 0


async def _both(*works):
    return await asyncio.gather(*works)


async def test_refusals_for_overload_lower_the_limit_and_do_not_move_the_session(clock):
    wire = Wire(clock, by_host={"one": [refuse(429)]})
    client = policy(clock, wire, "one", "two")
    for _ in range(2):
        await client.complete(ASK, session="s")
    assert wire.hosts == ["one", "two", "one"]
    assert [endpoint.gate.limit for endpoint in client.endpoints] == [22, 32]


async def test_a_cancelled_call_leaves_its_permit(clock):
    client = policy(clock, Wire(clock, [HANG, refuse(500)]), max_concurrency=1)
    hanging = asyncio.ensure_future(client.complete(ASK))
    waiting = asyncio.ensure_future(client.complete(ASK))
    await clock.advance(0)
    hanging.cancel()
    await clock.advance(0)
    assert hanging.cancelled()
    waiting.cancel()  # while it waits before its second try
    await clock.advance(0)
    assert clock.n_timers == 0
    assert (await client.complete(ASK)).message.content == "ok"


async def test_a_closed_policy_says_so(clock):
    client = policy(clock, Wire(clock))
    await client.close()
    with pytest.raises(PolicyError, match="closed"):
        await client.complete(ASK)


async def test_check_asks_for_one_token_in_the_way_of_the_run_and_does_not_look_at_the_list(clock):
    wire = Wire(clock, models=refuse(500))
    await policy(clock, wire).check(Sampling(temperature=0.5, top_k=3))
    ((_, _, body),) = wire.sent
    assert (body["max_tokens"], body["temperature"], body["top_k"], wire.n_lists) == (1, 0.5, 3, 0)


async def test_check_tells_names_like_the_one_that_is_not_there(clock):
    wire = Wire(clock, [refuse(404, "no", "model_not_found")], models=["zeta", "m1", *map(str, range(20))])
    with pytest.raises(InvalidInput, match=r"no model 'm'.*it has m1, zeta, 0, 1, 2, and 17 more"):
        await policy(clock, wire).check()


@pytest.mark.parametrize(
    ("answered", "says"),
    [
        (refuse(401, "bad key"), "environment variable MY_KEY"),
        (refuse(500, "boom."), r"500: boom\. Does it have the model 'm'\? Its log may say more; --no-check"),
        (refuse(301), "right base URL"),
        (refuse(400, "Unknown field `top_k`"), "Unknown field `top_k`. All such calls would be refused; --no-check"),
        (refuse(422, "Unexpected fields"), "Unexpected fields. All such calls would be refused"),
        (Exchange(status=200, headers={}, body=b"<html>"), "does not answer with chat completions"),
        (GONE, "no connection. Start the server"),
    ],
)
async def test_check_says_what_to_do(clock, answered, says):
    with pytest.raises(InvalidInput, match=says):
        await run(clock, policy(clock, Wire(clock, [answered] * 3)).check())


async def test_check_lets_a_server_pass_that_fails_now_and_then(clock):
    wire = Wire(clock, [refuse(500), refuse(502)])
    await run(clock, policy(clock, wire).check())
    assert len(wire.sent) == 3


@pytest.mark.parametrize(
    "answered",
    [
        refuse(429),
        refuse(503),
        refuse(400, "Could not finish the message because max_tokens or model output limit was reached."),
        answer(""),
    ],
)
async def test_check_lets_a_server_pass_that_is_busy_or_finds_one_token_too_little(clock, answered):
    wire = Wire(clock, [answered])
    await policy(clock, wire).check()
    assert len(wire.sent) == 1


async def test_check_leaves_out_what_the_server_does_not_take_as_a_run_would(clock):
    wire = Wire(clock, [refuse(400, "Unsupported parameter: use max_completion_tokens")])
    await policy(clock, wire).check()
    assert "max_completion_tokens" in wire.sent[1][2]


async def test_check_tells_all_servers_that_are_wrong_in_one_message(clock):
    wire = Wire(clock, by_host={"one": [GONE], "three": [GONE]}, models=refuse(404))
    with pytest.raises(InvalidInput) as caught:
        await policy(clock, wire, "one", "two", "three").check()
    assert str(caught.value).count("Start the server") == 1  # the same words are said once
    assert wire.hosts == ["one", "two", "three"]


async def test_check_does_not_wait_for_a_slow_first_token(clock):
    for models in (["m"], [], refuse(404), refuse(500)):
        await run(clock, policy(clock, Wire(clock, [HANG], models=models)).check())
    wire = Wire(clock, [HANG], models=["other"])
    with pytest.raises(InvalidInput, match=r"does not list the model 'm'; it has other"):
        await run(clock, policy(clock, wire).check())
