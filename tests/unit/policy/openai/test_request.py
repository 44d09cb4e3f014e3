"""Conversations as the JSON that servers take."""

import json

import pytest

from outrider.core.chat import Image, Message, Role, ToolCall, ToolSpec, assistant, system, tool_result, user
from outrider.policy.openai.reply import Choice, Reply, Said
from outrider.policy.openai.request import Dialect, Request
from outrider.policy.protocol import Sampling

CALL = ToolCall(id="c1", name="look", arguments='{"at": "sky"}')
TOOL = ToolSpec(name="look", description="Look.", parameters={"type": "object", "properties": {}})
IMAGE = Image(data=b"\x89PNG", media_type="image/png")
IDS = {"return_token_ids": True, "return_prompt_token_ids": True, "return_meta_info": True}


def body(*messages, dialect=None, **fields):
    request = Request(model="m", messages=messages or (user("hi"),), **fields)
    return json.loads(request.body(dialect or Dialect()))


def test_a_plain_request_holds_the_model_and_the_messages_and_nothing_else():
    assert body(system("Be brief."), user("Hi"), assistant("Ho")) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Ho"},
        ],
    }


def test_tools_and_their_calls_and_results():
    sent = body(user("Look up"), assistant(tool_calls=(CALL,)), tool_result(CALL, "blue"), tools=[TOOL])
    assert sent["tools"] == [
        {
            "type": "function",
            "function": {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
        }
    ]
    assert sent["messages"][1:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "blue"},
    ]


def test_images_go_as_data_urls_beside_the_text():
    (sent,) = body(user("What is it?", (IMAGE,)))["messages"]
    assert sent["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
    ]


def test_the_pictures_of_tools_follow_all_their_answers_in_one_user_message():
    other = ToolCall(id="c2", name="look")
    sent = body(
        assistant(tool_calls=(CALL, other)),
        tool_result(CALL, "here", (IMAGE,)),
        tool_result(other, "there", (IMAGE,)),
        assistant("I see"),
        tool_result(CALL, "again", (IMAGE,)),
    )["messages"]
    assert [message["role"] for message in sent] == ["assistant", "tool", "tool", "user", "assistant", "tool", "user"]
    assert [part["type"] for part in sent[3]["content"]] == ["text", "image_url", "image_url"]
    assert len(sent[6]["content"]) == 2


def test_sampling_fields_that_are_none_are_left_to_the_server():
    sampling = Sampling(temperature=0.0, max_tokens=5, stop=("END",), seed=0)
    sent = body(sampling=sampling)
    assert {name: sent[name] for name in sent if name not in ("model", "messages")} == {
        "temperature": 0.0,
        "max_tokens": 5,
        "stop": ["END"],
        "seed": 0,
    }


def test_token_ids_are_asked_for_only_with_log_probabilities():
    assert not IDS.keys() & body(sampling=Sampling(temperature=1.0)).keys()
    sent = body(sampling=Sampling(logprobs=True))
    assert sent.items() >= {"logprobs": True, **IDS}.items()


def test_streams_ask_for_their_usage():
    sent = body(wants_stream=True)
    assert sent["stream"] is True
    assert sent["stream_options"] == {"include_usage": True}


def test_half_characters_are_sent_as_marks_instead_of_failing():
    sent = body(user("ab\ud800c"), tools=[TOOL])
    assert sent["messages"][0]["content"] == "ab?c"


def asked_again(text, **fields):
    request = Request(model="m", messages=fields.pop("messages", [user("hi")]), **fields)
    return Dialect().after_refusal(text, request), request


def test_a_server_that_refuses_token_id_fields_is_asked_without_them():
    learned, request = asked_again(
        "Unrecognized request argument supplied: return_token_ids", sampling=Sampling(logprobs=True)
    )
    sent = json.loads(request.body(learned))
    assert sent["logprobs"] is True
    assert not IDS.keys() & sent.keys()
    assert learned.after_refusal("return_token_ids", request) is None


def test_a_server_that_gives_token_ids_but_not_in_streams_is_asked_without_a_stream():
    text = "return_meta_info is not supported with streaming. Please set stream=false when using return_meta_info=true."
    learned, request = asked_again(text, sampling=Sampling(logprobs=True), wants_stream=True)
    sent = json.loads(request.body(learned))
    assert "stream" not in sent
    assert sent.items() >= IDS.items()
    assert "stream" in json.loads(Request(model="m", messages=[user("hi")], wants_stream=True).body(learned))


@pytest.mark.parametrize(
    ("text", "fields", "gone", "instead"),
    [
        ("Unknown parameter: 'stream_options'.", {"wants_stream": True}, "stream_options", "stream"),
        (
            "Unsupported parameter: 'max_tokens' is not supported here. Use 'max_completion_tokens' instead.",
            {"sampling": Sampling(max_tokens=3)},
            "max_tokens",
            "max_completion_tokens",
        ),
    ],
)
def test_other_fields_that_a_server_refuses_are_put_otherwise(text, fields, gone, instead):
    learned, request = asked_again(text, **fields)
    sent = json.loads(request.body(learned))
    assert gone not in sent
    assert instead in sent


def test_a_refusal_that_names_no_field_of_ours_is_final():
    assert asked_again("'temperature' must be below 2", sampling=Sampling(temperature=3.0, logprobs=True))[0] is None
    assert asked_again("max_tokens is too large", sampling=Sampling(max_tokens=3))[0] is None


def test_reasoning_goes_back_under_the_name_it_came_by_or_not_at_all():
    thought = Message(role=Role.ASSISTANT, content="4", reasoning="2+2")
    assert body(thought)["messages"][0]["reasoning_content"] == "2+2"
    learned = Dialect().after_reply(Reply(choices=[Choice(message=Said(content="4", reasoning="2+2"))]))
    assert body(thought, dialect=learned)["messages"][0]["reasoning"] == "2+2"
    refused, request = asked_again("'reasoning_content' is not allowed here", messages=[thought])
    assert json.loads(request.body(refused))["messages"][0].keys() == {"role", "content"}
    assert refused.after_reply(Reply(choices=[Choice(message=Said(reasoning="x"))])) == refused
