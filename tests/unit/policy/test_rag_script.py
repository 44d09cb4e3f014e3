"""The script that answers questions from what a search finds."""

import random

import msgspec
import pytest

from outrider.core.chat import Message, ToolCall, ToolSpec, assistant, system, tool_result, user
from outrider.policy.scripted.rag import RagScript

SEARCH = ToolSpec(name="search", description="", parameters={})
SCRIPT = RagScript()


def query_of(reply: Message) -> str:
    [call] = reply.tool_calls
    assert call.name == "search"
    return msgspec.json.decode(call.arguments)["query"]


def told(question: str, *found: str) -> Message:
    """What the script says after each of its searches was answered by a passage."""
    messages = [system("Search."), user(question)]
    for number, text in enumerate(found):
        reply = SCRIPT.solve(messages, [SEARCH])
        messages += [reply, tool_result(reply.tool_calls[0], f"[1] Title {number} (id: a)\n{text}")]
    return SCRIPT.solve(messages, [SEARCH])


@pytest.mark.parametrize(
    ("question", "passage", "answer"),
    [
        ("Who built the Old Mill?", "The Old Mill was built in 1802 by Ann Lee.", "Ann Lee"),
        ("In which year was the Old Mill built?", "The Old Mill has 3 floors. It was built in 1802.", "1802"),
        ("How many floors does the Old Mill have?", "The Old Mill has 3 low floors.", "3"),
        ("How tall is the Old Mill?", "The Old Mill is 1,020.5 metres tall.", "1,020.5 metres"),
        ("Where was Ann Lee born?", "Ann Lee was born in 1770 in Little Ham.", "Little Ham"),
        (
            "What is the Old Mill called?",
            "The people call the Old Mill names; it is called the Grinder.",
            "the Grinder",
        ),
        ("What is the colour of the Old Mill?", "The colour of the Old Mill is pale green, mostly.", "pale green"),
    ],
)
def test_an_answer_has_the_form_that_the_question_asks_for(question: str, passage: str, answer: str):
    assert told(question, passage).content == f"Answer: {answer}"


def test_it_searches_first_with_the_words_that_tell_something():
    assert query_of(told("Who built the Old Mill?")) == "built Old Mill"


def test_it_searches_again_with_other_words_if_the_answer_is_not_there():
    assert query_of(told("Who built the Old Mill?", "The New Mill was built by Bob.")) == "Old Mill"
    assert (
        told("Who built the Old Mill?", "Nothing.", "The Old Mill was built by Ann Lee.").content == "Answer: Ann Lee"
    )


def test_it_says_so_when_it_finds_nothing():
    assert told("Who built the Old Mill?", "Nothing.", "Nothing again.").content == "Answer: unknown"


def test_somebody_who_is_described_is_found_first():
    question = "Where was the founder of the Old Mill born?"
    assert query_of(told(question)) == "founded Old Mill"
    assert query_of(told(question, "The Old Mill was founded by Ann Lee.")) == "Ann Lee born"
    last = told(question, "The Old Mill was founded by Ann Lee.", "Ann Lee was born in Ham.")
    assert last.content == "Answer: Ham"


def test_it_understands_only_where_there_is_a_search():
    assert SCRIPT.understands([system("Search."), user("Who?")], [SEARCH])
    assert not SCRIPT.understands([system("Search."), user("Who?")], [])
    assert not SCRIPT.understands([], [SEARCH])


@pytest.mark.parametrize("content", ["", "error: no", "[1] (id: )", "[1] a (id: b)\n", "\x00[1] x (id: y)\n\ud800"])
@pytest.mark.parametrize("arguments", ["{}", "nonsense", '{"query": 5}', '{"query": "built Old Mill"}'])
def test_odd_results_and_calls_of_others_do_not_upset_it(content: str, arguments: str):
    call = ToolCall(id="x", name="search", arguments=arguments)
    messages = [system("s"), user("Who built the Old Mill?"), assistant("", (call,)), tool_result(call, content)]
    reply = SCRIPT.solve(messages, [SEARCH])
    assert reply.tool_calls or reply.content


def test_a_guess_searches_once_and_answers_with_a_word_of_the_question():
    messages = [system("s"), user("Who built the Old Mill?")]
    rng = random.Random(3)
    reply = SCRIPT.guess(messages, [SEARCH], rng)
    assert query_of(reply) in {"built", "Old", "Mill"}
    messages += [reply, tool_result(reply.tool_calls[0], "nothing")]
    assert SCRIPT.guess(messages, [SEARCH], rng).content.removeprefix("Answer: ") in {"built", "Old", "Mill"}
