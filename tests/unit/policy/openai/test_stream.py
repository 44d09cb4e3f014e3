"""Streams: events in whatever pieces they arrive, and the answer they make."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.policy.openai.reply import MalformedReply, completion_of
from outrider.policy.openai.stream import Assembly, EventReader
from outrider.policy.protocol import FinishReason

EVENTS = (
    b": comment\r\n\r\ndata: one\n\nevent: x\ndata:two\ndata:  three\n\nid: 7\n\n"
    b'data: {"\xc3\xbc"}\r\n\r\ndata: [DONE]\n\n'
)
DATA = [b"one", b"two\n three", b'{"\xc3\xbc"}', b"[DONE]"]


@given(st.lists(st.integers(0, len(EVENTS)), max_size=12))
def test_events_are_the_same_however_the_bytes_arrive(cuts):
    reader = EventReader()
    ends = [0, *sorted(cuts), len(EVENTS)]
    found = [event for start, end in pairwise(ends) for event in reader.feed(EVENTS[start:end])]
    assert found == DATA
    assert reader.n_pending == 0


def test_an_event_that_is_not_whole_is_not_given():
    reader = EventReader()
    assert reader.feed(b"data: half\n") == []
    assert reader.n_pending > 0
    assert reader.feed(b"\n") == [b"half"]


def delta(finish_reason=None, index=0, choice=None, **said):
    return {"choices": [{"index": index, "delta": said, "finish_reason": finish_reason, **(choice or {})}]}


def assembled(*chunks):
    assembly = Assembly()
    for chunk in chunks:
        assembly.add(chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode())
    return assembly


def completion(*chunks):
    return completion_of(assembled(*chunks).reply(), {})


def test_text_reasoning_usage_and_model_are_put_together():
    found = completion(
        delta(role="assistant", content="") | {"model": "m"},
        delta(reasoning_content="I "),
        delta(reasoning_content="think"),
        delta(content="Hel"),
        delta(content="lo"),
        delta("stop"),
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
        b"[DONE]",
    )
    assert (found.message.content, found.message.reasoning) == ("Hello", "I think")
    assert (found.usage.prompt_tokens, found.model, found.finish_reason) == (3, "m", FinishReason.STOP)


def test_reasoning_under_its_other_name_is_remembered_as_such():
    said = assembled(delta(reasoning="hm"), delta("stop", content="x")).reply().choices[0].message
    assert (said.reasoning, said.reasoning_content) == ("hm", None)


def test_tokens_come_with_the_pieces():
    piece = {"token_ids": [5], "logprobs": {"content": [{"token": "a", "logprob": -0.5}]}}
    found = completion(
        delta(content="") | {"prompt_token_ids": [1, 2]},
        delta(content="a", choice=piece),
        delta(content="a", choice=piece),
        delta("stop"),
    )
    assert found.tokens.prompt_ids == b"\1\0\0\0\2\0\0\0"
    assert found.tokens.completion_ids == b"\5\0\0\0" * 2
    assert len(found.tokens.logprobs) == 8


def part(index=None, id=None, name=None, arguments=None):
    return {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    "parts",
    [
        [part(0, "a", "f", ""), part(0, None, None, '{"x":'), part(0, None, None, "1}"), part(1, "b", "g", "{}")],
        [part(0, "a", "f", '{"x":'), part(1, "b", "g", "{}"), part(0, "a", None, "1}")],
        [part(0, "a", "f", '{"x":1}'), part(0, "b", "g", "{"), part(0, None, None, "}")],
        [part(None, "a", "f", '{"x":1}'), part(None, "b", "g", "{}")],
        [part(None, "a", "f", {"x": 1}), part(None, "b", "g", {})],
    ],
    ids=["by index", "interleaved", "all at 0", "without index", "arguments as objects"],
)
def test_tool_calls_are_put_together_as_servers_send_them(parts):
    calls = completion(*[delta(tool_calls=[each]) for each in parts], delta("tool_calls")).message.tool_calls
    assert [(call.id, call.name, json.loads(call.arguments)) for call in calls] == [
        ("a", "f", {"x": 1}),
        ("b", "g", {}),
    ]


def test_calls_without_index_and_id_are_told_apart_by_name():
    parts = [part(name="f", arguments="{"), part(arguments="}"), part(name="f", arguments="{}")]
    calls = completion(*[delta(tool_calls=[each]) for each in parts], delta("stop")).message.tool_calls
    assert [(call.id, call.arguments) for call in calls] == [("call_0", "{}"), ("call_1", "{}")]


def test_other_choices_are_left_out():
    assert completion(delta(content="no", index=1), delta("stop", content="yes")).message.content == "yes"


@pytest.mark.parametrize("chunks", [[], [delta(content="Hel")], [delta(content="Hel"), b"[DONE]"], [b"[DONE]"]])
def test_a_stream_without_an_end_is_never_taken_for_an_answer(chunks):
    with pytest.raises(MalformedReply, match="ended before the answer did"):
        assembled(*chunks).reply()


@pytest.mark.parametrize("event", [{"error": {"message": "boom"}}, {"object": "error", "message": "boom", "code": 400}])
def test_an_error_in_the_stream_is_kept(event):
    assert json.loads(assembled(delta(content="Hel"), event).error) == event


def test_bytes_that_are_no_utf8_become_marks():
    chunk = b'{"choices": [{"delta": {"content": "\xff"}, "finish_reason": "stop"}]}'
    assert completion(chunk).message.content == "\ufffd"


def test_a_piece_that_is_no_json_spoils_the_stream():
    with pytest.raises(MalformedReply, match="not JSON"):
        assembled(delta(content="a"), b'{"choices": [')


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_lines_may_end_in_any_way_and_arrive_in_any_pieces(end: bytes, size: int):
    text = end.join([b"\xef\xbb\xbfdata: one", b": comment", b"data", b"data:  two", b"datax: no", b"", b""])
    text += end.join([b"data:", b"", b"event: x", b"", b'data: {"a": "\xff\xc3\xbc"}', b"", b"data: [DONE]", b"", b""])
    reader = EventReader()
    found = [event for at in range(0, len(text), size) for event in reader.feed(text[at : at + size])]
    assert found == [b"one\n\n two", b'{"a": "\xff\xc3\xbc"}', b"[DONE]"]
    assert reader.n_pending == 0


def test_mixed_line_ends_and_empty_pieces_are_lines_too():
    reader = EventReader()
    pieces = (b"data: a\r", b"", b"\n\r", b"\r\n", b"data: b\n\r", b"data: c\r\n\n")
    assert [event for piece in pieces for event in reader.feed(piece)] == [b"a", b"b", b"c"]


def test_an_event_that_does_not_end_is_refused_and_not_kept():
    for pieces in ([b"x" * 600] * 2, [b"data: " + b"y" * 90 + b"\n"] * 12, [b"data: " + b"z" * 2000 + b"\n\n"]):
        reader = EventReader(max_bytes=1000)
        with pytest.raises(MalformedReply, match="more than 1000 bytes"):
            list(map(reader.feed, pieces))
        assert reader.n_pending <= 1000
    reader = EventReader(max_bytes=1000)
    assert len(reader.feed(b"data: ok\n\n" * 1000)) == 1000, "many events are not one"


def test_a_reply_with_tool_calls_without_end_is_refused():
    assembly = Assembly()
    calls = [{"index": n, "id": f"c{n}", "function": {"name": "f", "arguments": ""}} for n in range(1001)]
    events = [json.dumps(delta(tool_calls=[call])).encode() for call in calls]
    with pytest.raises(MalformedReply, match="more than 1000 tool calls"):
        list(map(assembly.add, events))
