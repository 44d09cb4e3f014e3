from typing import Any

from guessing import Bisecting, Failing, Lines, Watched, call, play, result_of, scripted
from outrider.agent import ReActAgent
from outrider.agent.react import instructed
from outrider.core.chat import Role, ToolSpec, assistant, system, user
from outrider.core.errors import ContextOverflow
from outrider.core.event import EventKind
from outrider.core.turn import turns_of
from outrider.policy import Sampling

GUESS = ToolSpec(name="guess", description="Guess.", parameters={"properties": {"number": {}}})


def action(number: int) -> str:
    return f'Thought: hm\nAction: guess\nAction Input: {{"number": {number}}}'


async def test_a_model_without_tool_calls_plays_a_game_with_tools():
    policy = Watched(scripted(Bisecting()))
    played = await play(policy, ReActAgent(), seed=1)
    assert (played.rollout.reward, played.rollout.failure) == (1.0, None)
    assert result_of(played)["metrics"]["malformed_actions"] == 0.0
    assert all(tools == () for tools in policy.tools), "no tools are offered but in words"
    assert all(message.role is not Role.TOOL for request in policy.requests for message in request)
    assert all("\nObservation:" in sampling.stop for sampling in policy.samplings if sampling)


async def test_the_tools_are_described_in_the_system_message():
    told = instructed((system("Rules."), user("Go.")), (GUESS,))
    assert told[0].content.startswith("Rules.\n")
    assert '- guess: Guess. Arguments: {"properties":{"number":{}}}' in told[0].content
    assert told[1:] == [user("Go.")]
    assert [message.role for message in instructed((user("Go."),), (GUESS,))] == [Role.SYSTEM, Role.USER]


async def test_observations_come_as_text():
    played = await play(scripted(Lines(action(200), action(-5))), ReActAgent(max_turns=2))
    assert turns_of(played.events)[1].request[-2:] == (assistant(action(200)), user("Observation: lower"))


async def test_what_cannot_be_read_is_answered_and_counted():
    policy = scripted(Lines("I guess it is 5.", "Action: gess\nAction Input: {}", action(1)))
    played = await play(policy, ReActAgent(max_turns=3))
    last = turns_of(played.events)[-1].request
    errors = [message.content for message in last if message.content.startswith("Observation: error: ")]
    assert len(errors) == 2
    assert "did you mean guess?" in errors[1]
    assert result_of(played)["metrics"]["malformed_actions"] == 2.0
    assert len(played.of(EventKind.STEP)) == 2, "the reset and the one action that could be read"


async def test_only_the_first_of_several_actions_is_carried_out_and_the_model_is_told():
    played = await play(scripted(Lines(f"{action(200)}\n{action(201)}")), ReActAgent(max_turns=2))
    assert (
        turns_of(played.events)[1].request[-1].content == "Observation: lower (Only your first action was carried out.)"
    )


async def test_a_final_answer_goes_to_the_environment_as_its_text():
    played = await play(scripted(Lines("Thought: easy\nFinal Answer: 42")), ReActAgent(max_turns=1))
    assert played.of(EventKind.STEP)[-1].data["info"] == {"answer": "42"}


async def test_without_tools_it_is_a_plain_conversation():
    policy = Watched(scripted())
    played = await play(policy, ReActAgent(), tag="counting")
    assert played.rollout.reward == 5.0
    assert policy.requests[0][0] == system("A counting game.")


async def test_a_call_that_nobody_asked_for_does_not_stay_open():
    policy = Watched(scripted(Lines(assistant(action(200), (call("guess"),)))))
    played = await play(policy, ReActAgent(max_turns=3))
    assert played.rollout.failure is None
    assert all(not message.tool_calls for request in policy.requests for message in request)


async def test_an_overflow_ends_it_with_what_was_counted():
    class Overflowing(Failing):
        async def complete(self, messages: Any, **options: Any) -> Any:
            if len(messages) > 3:
                raise ContextOverflow("too long")
            return await Watched.complete(self, messages, **options)

    policy = Overflowing(ContextOverflow("too long"), scripted(Lines("hm")))
    result = result_of(await play(policy, ReActAgent()))
    assert result["metrics"]["malformed_actions"] == 1.0


async def test_the_runs_own_stop_strings_give_way_to_its_form():
    policy = Watched(scripted(Bisecting()))
    await play(policy, ReActAgent(), sampling=Sampling(temperature=0.5, stop=("END",)))
    assert policy.samplings[0] == Sampling(temperature=0.5, stop=("\nObservation:",))
