"""What refusals of real servers mean."""

import json

import pytest

from outrider.core.errors import ContextOverflow, PolicyError, PolicyRefused, PolicyUnusable
from outrider.policy.openai.failure import Setback, UnknownModel, error_of, refusal_of

URL = "http://host/v1"


def error(status, content, **headers):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return error_of(refusal_of(status, body), headers, model="m", key_variable="MY_KEY", url=URL, now=1_750_000_000.0)


def openai(message, code=None, kind="invalid_request_error"):
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def vllm(message, code=400):
    return {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": code}


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (400, openai("This model's maximum context length is 8192 tokens.", "context_length_exceeded")),
        (400, openai("Your input is too big", "context_length_exceeded")),
        (400, openai("Input tokens exceed the configured limit of 272000 tokens.")),
        (400, vllm("This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.")),
        (400, vllm("The decoder prompt (length 5000) is longer than the maximum model length of 4096.")),
        (400, vllm("The input (131123 tokens) is longer than the model's context length (131072 tokens).")),
        (400, vllm("Requested token count exceeds the model's maximum context length of 131072 tokens.")),
        (400, {"error": {"code": 400, "message": "the request exceeds the available context size", "type": "x"}}),
        (400, openai("too long", None, "exceed_context_size_error")),
        (413, b"<html>413 Request Entity Too Large</html>"),
        (422, {"error": "`inputs tokens + max_new_tokens` must be <= 4096", "error_type": "validation"}),
    ],
)
def test_a_conversation_that_is_too_long_is_a_context_overflow(status, content):
    assert type(error(status, content)) is ContextOverflow


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_names_the_variable_it_comes_from(status):
    found = error(status, openai("Incorrect API key provided", "invalid_api_key"))
    assert isinstance(found, PolicyUnusable)
    assert "MY_KEY" in str(found)


def test_one_flagged_conversation_does_not_stop_a_run():
    found = error(403, openai("Your input was flagged"))
    assert type(found) is PolicyError


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (404, openai("The model `m` does not exist or you do not have access to it.", "model_not_found")),
        (404, vllm("The model `m` does not exist.", 404)),
        (404, {"error": {"message": 'model "m" not found, try pulling it first', "type": "api_error"}}),
        (400, openai("m is not a valid model ID", "model_not_found")),
    ],
)
def test_a_model_that_the_server_does_not_have_is_named(status, content):
    found = error(status, content)
    assert isinstance(found, UnknownModel)
    assert "no model 'm'" in str(found)


def test_a_wrong_address_is_told_apart_from_a_wrong_model():
    found = error(404, b"<html>Not Found</html>")
    assert isinstance(found, PolicyUnusable)
    assert not isinstance(found, UnknownModel)
    assert "right base URL" in str(found)
    assert isinstance(error(301, b""), PolicyUnusable)


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (429, openai("You exceeded your current quota", "insufficient_quota", "insufficient_quota")),
        (402, {"error": {"message": "Insufficient Balance"}}),
    ],
)
def test_an_account_without_money_stops_the_run(status, content):
    found = error(status, content)
    assert found.stops_run
    assert "quota" in str(found)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_passing_troubles_may_be_tried_again(status):
    found = error(status, b"<html><h1>oops</h1></html>", **{"retry-after": "3"})
    assert isinstance(found, Setback)
    assert found.asked_seconds == 3.0
    assert found.is_overload == (status in (429, 503, 529))
    assert found.is_fault == (status != 429)
    assert "oops" in str(found)


@pytest.mark.parametrize(
    "content", [openai("temperature must be below 2"), {"detail": "bad"}, b"", {"error": None}, []]
)
def test_other_bad_requests_are_final(content):
    found = error(400, content)
    assert type(found) is PolicyRefused
    assert found.is_permanent
    assert not found.stops_run


def test_an_error_in_a_stream_has_the_status_it_tells():
    assert type(error(200, {"error": vllm("maximum context length is 7")})) is ContextOverflow
    assert isinstance(error(200, {"error": {"message": "boom", "code": 502}}), Setback)
    assert isinstance(error(200, {"error": "boom"}), Setback)
    assert isinstance(error(200, {"error": {"message": "boom", "code": "strange"}}), Setback)


def test_messages_are_short_and_on_one_line():
    assert len(str(error(500, b"<html>\n" + b"x" * 100_000))) < 400
    assert len(str(error(500, openai("y" * 100_000)))) < 2100
