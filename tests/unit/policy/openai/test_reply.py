"""What servers answer, well or badly formed."""

import json
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core import wire
from outrider.policy.openai.failure import error_of, refusal_of
from outrider.policy.openai.reply import EmptyReply, MalformedReply, completion_of, decode
from outrider.policy.openai.stream import Assembly
from outrider.policy.protocol import FinishReason, Tokens, Usage


def reply(message=None, *, headers=None, choice=None, **top):
    choice = {"index": 0, "message": message, "finish_reason": "stop"} | (choice or {})
    return completion_of(decode(json.dumps({"choices": [choice], **top}).encode()), headers or {})


def test_a_plain_answer():
    completion = reply(
        {"role": "assistant", "content": "Hi", "annotations": []},
        model="m-7",
        usage={"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
        headers={"x-policy-version": "12"},
    )
    assert completion.message.content == "Hi"
    assert completion.finish_reason is FinishReason.STOP
    assert completion.usage == Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=4)
    assert (completion.model, completion.policy_version, completion.tokens) == ("m-7", 12, None)


def test_usage_beyond_reason_is_brought_within_it():
    usage = reply({"content": "x"}, usage={"prompt_tokens": -5, "completion_tokens": 10**30}).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (0, 2**53)


def test_usage_with_nulls_or_without_details():
    assert reply({"content": "x"}, usage={"prompt_tokens": 3, "completion_tokens": None}).usage.prompt_tokens == 3
    assert reply({"content": "x"}, usage=None).usage == Usage()


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_under_either_name(field):
    assert reply({"content": "4", field: "2+2"}).message.reasoning == "2+2"


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ('{"x": 1}', '{"x": 1}'),
        ({"x": 1, "ü": "ö"}, '{"x": 1, "ü": "ö"}'),
        (None, "{}"),
        ("{broken", "{broken"),
    ],
)
def test_arguments_of_tool_calls_as_text_or_object(given, arguments):
    (call,) = reply(
        {"content": None, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": given}}]}
    ).message.tool_calls
    assert (call.id, call.name, call.arguments) == ("c", "f", arguments)


def test_tool_calls_without_ids_get_some_and_count_as_the_reason_to_end():
    calls = [{"function": {"name": "f"}}, {"id": "", "type": "function", "function": {"name": "g"}}, {}]
    completion = reply({"tool_calls": calls}, choice={"finish_reason": "stop"})
    assert [call.id for call in completion.message.tool_calls] == ["call_0", "call_1", "call_2"]
    assert completion.finish_reason is FinishReason.TOOL_CALLS


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("stop", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ("end_turn", FinishReason.STOP),
        ("never heard of", FinishReason.STOP),
        (None, FinishReason.STOP),
    ],
)
def test_reasons_to_end(given, reason):
    assert reply({"content": "x"}, choice={"finish_reason": given}).finish_reason is reason


def test_an_answer_that_the_server_broke_off_is_no_answer():
    with pytest.raises(MalformedReply, match="abort"):
        reply({"content": "half of"}, choice={"finish_reason": "abort"})


@pytest.mark.parametrize("message", [{"content": None}, {"content": ""}, {"content": "", "reasoning": "hm"}, {}])
def test_an_empty_completion_is_told_apart(message):
    with pytest.raises(EmptyReply, match="no text and no tool call"):
        reply(message)


def test_an_answer_that_is_empty_for_a_reason_is_an_answer():
    completion = reply({"content": "", "reasoning_content": "let me"}, choice={"finish_reason": "length"})
    assert (completion.message.content, completion.finish_reason) == ("", FinishReason.LENGTH)
    assert reply({"content": None}, choice={"finish_reason": "content_filter"}).message.content == ""


def test_content_in_parts_and_refusals_are_text():
    assert reply({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}).message.content == "ab"
    assert reply({"content": None, "refusal": "I will not."}).message.content == "I will not."


def packed(ids, logprobs, prompt=()):
    return Tokens(
        prompt_ids=struct.pack(f"<{len(prompt)}i", *prompt),
        completion_ids=struct.pack(f"<{len(ids)}i", *ids),
        logprobs=struct.pack(f"<{len(logprobs)}f", *logprobs),
    )


def test_tokens_as_vllm_gives_them():
    completion = reply(
        {"content": "ab"},
        choice={"token_ids": [1, 200_000], "logprobs": {"content": [{"token": "a", "logprob": -0.5}, {"logprob": -1}]}},
        prompt_token_ids=[7, 8, 9],
    )
    assert completion.tokens == packed([1, 200_000], [-0.5, -1.0], [7, 8, 9])


def test_tokens_as_sglang_gives_them():
    completion = reply(
        {"content": "ab"},
        choice={
            "logprobs": {"content": [{"token": "a", "logprob": -9.0}]},
            "prompt_token_ids": [7],
            "meta_info": {"output_token_logprobs": [[-0.5, 3, "a"], [-0.25, 4, None]], "weight_version": "5"},
        },
    )
    assert completion.tokens == packed([3, 4], [-0.5, -0.25], [7])
    assert completion.policy_version == 5


def test_log_probabilities_alone():
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}
    assert reply({"content": "a"}, choice={"logprobs": logprobs}).tokens == packed([], [-0.5])


@pytest.mark.parametrize("version", ["default", "-3", "1.5", "", "٣x", "9" * 5000])
def test_a_version_that_is_no_number_is_none(version):
    assert reply({"content": "a"}, headers={"x-policy-version": version}).policy_version == 0


def test_bytes_that_are_no_utf8_become_marks():
    body = b'{"choices": [{"message": {"content": "a\xffb"}}]}'
    assert completion_of(decode(body), {}).message.content == "a\ufffdb"


def test_half_characters_become_marks_that_any_store_can_keep():
    body = b'{"choices": [{"message": {"content": "a\\ud800b"}}]}'
    completion_of(decode(body), {}).message.content.encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html><body>502 Bad Gateway</body></html>",
        b'{"choices": [{"mess',
        b"[]",
        b"null",
        b'"text"',
        b"{}",
        b'{"choices": []}',
        b'{"choices": null}',
        b'{"choices": [{}]}',
        b'{"choices": [{"message": null}]}',
        b'{"choices": [{"message": "text"}]}',
        b'{"choices": [{"message": {"content": 7}}]}',
        b'{"choices": {"message": {"content": "x"}}}',
        b'{"choices": [{"message": {"content": "x", "tool_calls": "none"}}]}',
        b'{"choices": [{"message": {"content": "x"}, "logprobs": {"content": [{"logprob": NaN}]}}]}',
        b'{"choices": [{"message": {"content": "x"}, "token_ids": [99999999999]}]}',
        b"[" * 100_000,
        b"\xff\xfe\x00",
    ],
)
def test_what_is_no_completion_is_refused_with_a_reason(body):
    with pytest.raises(MalformedReply, match=r".{10}") as caught:
        completion_of(decode(body), {})
    assert len(str(caught.value)) < 400


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
NAMES = st.sampled_from(
    (
        *("choices", "message", "delta", "content", "reasoning", "tool_calls", "function", "name", "arguments", "id"),
        *("index", "finish_reason", "logprobs", "logprob", "token_ids", "prompt_token_ids", "meta_info", "error"),
        *("output_token_logprobs", "weight_version", "usage", "prompt_tokens", "prompt_tokens_details", "object"),
    )
)
ANYTHING = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=20
)
SAID = st.dictionaries(NAMES, ANYTHING, max_size=4)
REPLIES = st.fixed_dictionaries(
    {"choices": st.lists(st.fixed_dictionaries({"message": SAID}, optional={"delta": SAID}) | ANYTHING, max_size=2)}
)


@given(REPLIES | ANYTHING)
def test_whatever_comes_back_is_a_completion_that_can_be_stored_or_is_refused(content):
    body = json.dumps(content).encode()
    try:
        completion = completion_of(decode(body), {"x-policy-version": "x"})
    except MalformedReply:
        return
    wire.encode(msgspec.to_builtins(completion, builtin_types=(bytes,)))


@given(REPLIES | ANYTHING)
def test_whatever_comes_in_a_stream_is_a_piece_an_error_or_refused(content):
    assembly = Assembly()
    try:
        assembly.add(json.dumps(content).encode())
        completion_of(assembly.reply(), {})
    except MalformedReply:
        return


@given(st.integers(100, 599), st.binary(max_size=40) | ANYTHING.map(lambda content: json.dumps(content).encode()))
def test_whatever_a_refusal_holds_it_becomes_an_error_with_a_message(status, body):
    error = error_of(refusal_of(status, body), {}, model="m", key_variable="K", url="http://h", now=0.0)
    assert str(status) in str(error) or "no model" in str(error) or status == 200
