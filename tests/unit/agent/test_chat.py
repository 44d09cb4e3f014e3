from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from guessing import Lines, call, play, scripted
from outrider.agent import ChatAgent
from outrider.core.chat import Message, Role, assistant, tool_result
from outrider.core.errors import InvalidInput
from outrider.core.event import EventKind
from outrider.core.turn import turns_of
from outrider.policy import Completion, FinishReason, Usage
from outrider.policy.scripted.policy import ScriptedPolicy, ScriptOptions


class Cut(ScriptedPolicy):
    """Ends its first message at a limit of tokens."""

    def __init__(self, *lines: str | Message) -> None:
        super().__init__({"lines": Lines(*lines)}, name="cut", options=ScriptOptions())

    async def complete(self, messages: Sequence[Message], **options: Any) -> Completion:
        completion = await super().complete(messages, **options)
        is_first = all(message.role is not Role.ASSISTANT for message in messages)
        return replace(completion, finish_reason=FinishReason.LENGTH) if is_first else completion


async def test_the_model_plays_with_tools_until_the_game_is_over():
    played = await play(scripted(), ChatAgent(), seed=1)
    assert (played.rollout.reward, played.rollout.failure) == (1.0, None)


async def test_the_model_plays_in_plain_text_too():
    played = await play(scripted(), ChatAgent(), tag="counting")
    assert played.rollout.reward == 5.0


async def test_a_call_of_a_tool_that_is_not_there_or_with_wrong_arguments_is_answered():
    lines = [
        assistant("", (call("gess", "{}", id="a"), call("guess", '{"number": ', id="b"))),
        assistant("", (call("guess", '{"number": "many"}', id="c"),)),
        assistant("", (call("guess", '{"number": 3}', id="d"),)),
    ]
    played = await play(scripted(Lines(*lines)), ChatAgent(max_turns=3))
    shown = turns_of(played.events)[2].request
    answers = {m.tool_call_id: m.content for m in shown if m.role is Role.TOOL}
    assert answers["a"].startswith("error: there is no tool 'gess'; did you mean guess?")
    assert answers["b"].startswith("error: the arguments of guess cannot be used")
    assert answers["c"].startswith("error: the arguments of guess cannot be used")
    assert played.rollout.failure is None


async def test_a_call_that_was_cut_off_is_answered_and_not_made():
    whole, half = call("guess", '{"number": 3}', id="a"), call("guess", '{"numb', id="b")
    played = await play(Cut(assistant("", (whole, half)), assistant("", (whole,))), ChatAgent(max_turns=2))
    shown = turns_of(played.events)[1].request
    assert [message.tool_call_id for message in shown[-2:]] == ["a", "b"]
    assert all("limit of tokens" in message.content for message in shown[-2:])
    assert len(played.of(EventKind.STEP)) == 2, "the reset and the second message"


async def test_a_cut_off_message_whose_calls_are_whole_is_carried_out():
    played = await play(Cut(assistant("", (call("guess", '{"number": 3}'),))), ChatAgent(max_turns=1))
    assert len(played.of(EventKind.STEP)) == 2


async def test_a_cut_off_text_goes_to_the_environment():
    played = await play(Cut("1"), ChatAgent(max_turns=1), tag="counting")
    assert played.rollout.reward == 1.0


async def test_a_call_where_there_are_no_tools_is_answered():
    lines = [assistant("", (call("guess", "{}", id="x"),)), "1"]
    played = await play(scripted(Lines(*lines)), ChatAgent(max_turns=2), tag="counting")
    [_, second] = turns_of(played.events)
    assert second.request[-1] == tool_result(
        call("guess", id="x"), "error: there are no tools here; answer in plain text"
    )
    assert played.rollout.reward == 1.0


async def test_an_empty_message_is_one_that_says_nothing():
    played = await play(scripted(Lines("")), ChatAgent(max_turns=2), tag="counting")
    assert (played.rollout.reward, played.rollout.failure) == (0.0, None)


async def test_the_number_of_turns_is_bounded():
    played = await play(scripted(Lines("no")), ChatAgent(max_turns=3), tag="guessing")
    assert len(played.of(EventKind.TURN)) == 3
    assert played.rollout.reward == 0.0


async def test_a_long_conversation_is_trimmed_to_its_budget():
    played = await play(
        scripted(Lines("x" * 400)),
        ChatAgent(max_turns=12, max_context_tokens=500),
        tag="counting",
        task={"metadata": {"limit": 99}},
    )
    turns = turns_of(played.events)
    assert max(len(turn.request) for turn in turns) < 14
    assert turns[-1].request[:2] == turns[0].request
    assert any("left out to save space" in message.content for message in turns[-1].request)


async def test_the_servers_count_decides_when_to_trim():
    class Counting(Cut):
        async def complete(self, messages: Sequence[Message], **options: Any) -> Completion:
            completion = await super().complete(messages, **options)
            return replace(completion, usage=Usage(prompt_tokens=100 * len(messages)))

    played = await play(
        Counting("1"),
        ChatAgent(max_turns=20, max_context_tokens=1000),
        tag="counting",
        task={"metadata": {"limit": 99}},
    )
    assert max(len(turn.request) for turn in turns_of(played.events)) < 15


@pytest.mark.parametrize("settings", [{"max_turns": 0}, {"max_turns": -1}, {"max_context_tokens": 0}])
def test_settings_that_allow_nothing_are_refused(settings: dict[str, int]):
    with pytest.raises(InvalidInput, match=next(iter(settings))):
        ChatAgent(**settings)
