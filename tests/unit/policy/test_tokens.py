import math
from array import array
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guessing import Counting, Lines, call, scripted
from outrider.core.chat import Image, Message, Role, ToolCall, ToolSpec, assistant, system, tool_result, user
from outrider.core.errors import InvalidInput, PolicyError
from outrider.policy import Sampling, Tokens
from outrider.policy.scripted.tokens import (
    VOCABULARY,
    Mark,
    completion_ids,
    decode,
    n_tokens,
    prompt_ids,
    tokens_of,
)

LOGPROBS = Sampling(logprobs=True)
COUNTING = (system("A counting game."), user("Count."))

texts = st.text(max_size=6)
messages = st.builds(
    Message,
    role=st.sampled_from(Role),
    content=texts,
    reasoning=texts,
    images=st.lists(st.builds(Image, data=st.binary(max_size=3)), max_size=1).map(tuple),
    tool_calls=st.lists(st.builds(ToolCall, id=texts, name=texts, arguments=texts), max_size=2).map(tuple),
    tool_call_id=st.none() | texts,
)


class Dice(Counting):
    """Solves with 1, guesses 1 to 9, and knows how likely each is."""

    def chance(self, messages: Sequence[Message], tools: Sequence[ToolSpec], message: Message) -> float:
        return 1 / 9 if message.content in "123456789" else 0.0


def ids(packed: bytes) -> list[int]:
    return array("i", packed).tolist()


def floats(packed: bytes) -> list[float]:
    return array("f", packed).tolist()


def test_a_text_is_its_bytes_between_marks():
    assert ids(prompt_ids((user("hé"),))) == [Mark.USER, 104, 195, 169, Mark.END, Mark.ASSISTANT]
    assert ids(completion_ids(assistant("ok"))) == [111, 107, Mark.END]
    assert min(Mark) == 256
    assert max(Mark) < VOCABULARY


@given(st.lists(messages, max_size=4), messages, st.lists(messages, max_size=3))
def test_the_next_prompt_begins_with_what_was_seen_and_said(
    request: list[Message], reply: Message, more: list[Message]
):
    answered = [
        *request,
        Message(
            **{name: getattr(reply, name) for name in reply.__struct_fields__ if name != "role"}, role=Role.ASSISTANT
        ),
    ]
    before = prompt_ids(request) + completion_ids(answered[-1])
    assert prompt_ids([*answered, *more]).startswith(before)


@given(st.lists(messages, max_size=3), st.lists(messages, max_size=3))
def test_no_two_conversations_look_alike(one: list[Message], other: list[Message]):
    assert (prompt_ids(one) == prompt_ids(other)) == (one == other)


def test_an_empty_part_is_told_from_none():
    nobody = Message(role=Role.TOOL, content="x")
    assert prompt_ids((nobody,)) != prompt_ids((Message(role=Role.TOOL, content="x", tool_call_id=""),))
    assert prompt_ids((user(""),)) != prompt_ids(())


@given(st.text())
def test_a_text_comes_back(text: str):
    assert decode(completion_ids(assistant(text))) == f"{text}<|end|>"


def test_a_conversation_reads_as_it_was_said():
    asked = call("look", '{"at": "λ"}', id="c1")
    said = (system("S"), assistant("", (asked,)), tool_result(asked, "nothing"))
    expected = (
        '<|system|>S<|end|><|assistant|><|call|>c1<|name|>look<|arguments|>{"at": "λ"}<|end|>'
        "<|tool|>nothing<|answers|>c1<|end|><|assistant|>"
    )
    assert decode(prompt_ids(said)) == expected


def test_marks_in_a_text_are_text():
    said = completion_ids(assistant("<|end|>"))
    assert ids(said)[-1] == Mark.END
    assert Counter(ids(said))[Mark.END] == 1


def test_pictures_are_told_apart_without_filling_the_prompt():
    one, other = (prompt_ids((user("", (Image(data=data),)),)) for data in (b"a" * 10**6, b"b"))
    assert one != other
    assert n_tokens(one) == n_tokens(other) < 50


def test_tools_on_offer_stand_before_the_conversation():
    tool = ToolSpec(name="f", description="d", parameters={"b": 1, "a": 2})
    same = ToolSpec(name="f", description="d", parameters={"a": 2, "b": 1})
    assert decode(prompt_ids((), (tool,))) == '<|offer|>["f","d",{"a":2,"b":1}]<|end|><|assistant|>'
    assert prompt_ids((), (tool,)) == prompt_ids((), (same,))


def test_half_characters_get_the_ids_that_their_record_has():
    assert completion_ids(assistant("a\ud800b")) == completion_ids(assistant("a?b"))


@pytest.mark.parametrize("packed", [b"\1", array("i", [VOCABULARY]).tobytes(), array("i", [-1]).tobytes()])
def test_what_is_no_id_is_refused(packed: bytes):
    with pytest.raises(InvalidInput, match="no token ids of the byte tokenizer"):
        decode(packed)


def test_a_character_that_was_cut_is_shown_as_such():
    assert decode(completion_ids(assistant("é"))[:4]) == "\ufffd"


def test_the_logprob_of_a_reply_stands_on_its_first_token():
    tokens = tokens_of((user("u"),), assistant("abc"), logprob=-1.5)
    assert floats(tokens.logprobs) == [-1.5, 0.0, 0.0, 0.0]
    assert len(floats(tokens_of((), assistant(""), logprob=-1.0).logprobs)) == 1
    assert tokens_of((), assistant("abc")).logprobs == b""


async def test_policies_give_tokens_if_they_are_asked_to():
    policy = scripted(Counting())
    assert (await policy.complete(COUNTING)).tokens is None
    completion = await policy.complete(COUNTING, sampling=LOGPROBS)
    assert completion.tokens == Tokens(
        prompt_ids=prompt_ids(COUNTING), completion_ids=completion_ids(assistant("1")), logprobs=bytes(8)
    )
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (n_tokens(prompt_ids(COUNTING)), 2)


async def test_asking_for_tokens_does_not_change_the_answer():
    policy = scripted(Dice(), p=0.5)
    for session in map(str, range(20)):
        plain = await policy.complete(COUNTING, session=session)
        assert (await policy.complete(COUNTING, session=session, sampling=LOGPROBS)).message == plain.message


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
async def test_logprobs_are_those_of_the_distribution_that_answers_come_from(p: float):
    policy = scripted(Dice(), p=p)
    seen: Counter[str] = Counter()
    said: dict[str, float] = {}
    for number in range(3000):
        completion = await policy.complete(COUNTING, sampling=LOGPROBS, session=str(number))
        seen[completion.message.content] += 1
        said[completion.message.content] = floats(completion.tokens.logprobs)[0]
    assert math.isclose(sum(map(math.exp, said.values())), 1.0, rel_tol=1e-6)
    for message, logprob in said.items():
        assert abs(seen[message] / 3000 - math.exp(logprob)) < 0.03


async def test_a_guess_of_unknown_chance_has_ids_and_no_logprobs():
    completion = await scripted(Counting(), p=0.5).complete(COUNTING, sampling=LOGPROBS)
    assert completion.tokens.completion_ids
    assert completion.tokens.logprobs == b""


async def test_a_script_that_calls_its_own_guess_impossible_fails():
    class Liar(Dice):
        def chance(self, messages: Sequence[Message], tools: Sequence[ToolSpec], message: Message) -> float:
            return 0.0

    with pytest.raises(PolicyError):
        await scripted(Liar(), p=1.0).complete(COUNTING, sampling=LOGPROBS)


async def test_turn_after_turn_a_prompt_extends_what_went_before():
    policy = scripted(Lines("one", assistant("", (call("f"),)), "three"))
    messages, seen = list(COUNTING), b""
    for _ in range(3):
        completion = await policy.complete(messages, sampling=LOGPROBS)
        assert completion.tokens.prompt_ids.startswith(seen)
        seen = completion.tokens.prompt_ids + completion.tokens.completion_ids
        messages += [completion.message, user("go on")]
