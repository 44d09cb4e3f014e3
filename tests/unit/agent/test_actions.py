import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.agent.actions import Action, FinalAnswer, Malformed, read_action
from outrider.core.chat import ToolSpec


def spec(name: str, **types: str) -> ToolSpec:
    properties = {key: {"type": kind} for key, kind in types.items()}
    return ToolSpec(
        name=name, description="", parameters={"type": "object", "properties": properties, "required": [*types]}
    )


TOOLS = (
    spec("search", query="string"),
    spec("click", x="integer", y="integer"),
    spec("wait"),
    spec("guess", number="integer"),
)


def arguments(text: str) -> object:
    read = read_action(text, TOOLS)
    assert isinstance(read, Action), read
    return json.loads(read.arguments)


def test_an_action_is_read():
    text = 'Thought: I must look.\nAction: search\nAction Input: {"query": "moon"}'
    assert read_action(text, TOOLS) == Action(name="search", arguments='{"query": "moon"}')


def test_a_final_answer_is_read():
    assert read_action("Thought: easy\nFinal Answer: 42\n", TOOLS) == FinalAnswer(text="42")
    assert read_action("Final Answer:\nline 1\nline 2", TOOLS) == FinalAnswer(text="line 1\nline 2")


@pytest.mark.parametrize(
    "written",
    [
        '{"query": "moon"}',
        '```json\n{"query": "moon"}\n```',
        '```\n{"query": "moon"}\n```',
        '\n{\n  "query": "moon"\n}\n',
        "{'query': 'moon'}",
        '{query: "moon"}',
        "{query: moon}",
        "moon",
        '"moon"',
        '{"query": "moon"} and that is it',
        '{"query": "moon"}\nObservation: nothing found',
        '{"query": "moon"}\n```',
    ],
)
def test_what_can_only_mean_one_thing_is_understood(written: str):
    assert arguments(f"Action: search\nAction Input: {written}") == {"query": "moon"}


@pytest.mark.parametrize(
    "text",
    [
        'action: search\naction input: {"query": "moon"}',
        '**Action:** search\n**Action Input:** {"query": "moon"}',
        'Action: `search`\nAction Input: {"query": "moon"}',
        'Action: "search"\nAction Input: {"query": "moon"}'.replace('"search"', "**search**"),
        'Action : search\nAction_Input : {"query": "moon"}',
        'Action: search {"query": "moon"}',
        'Action: search({"query": "moon"})',
        'Action: search("moon")',
        '```\nThought: hm\nAction: search\nAction Input: {"query": "moon"}\n```',
        '> Action: search\n> Action Input: {"query": "moon"}',
        'Action:\nsearch\nAction Input:\n{"query": "moon"}',
    ],
)
def test_labels_may_be_dressed_up(text: str):
    assert arguments(text) == {"query": "moon"}


def test_values_keep_their_types():
    assert arguments("Action: click\nAction Input: {x: 3, y: -4}") == {"x": 3, "y": -4}
    assert arguments("Action: guess\nAction Input: 7") == {"number": 7}
    assert arguments("Action: search\nAction Input: 7") == {"query": "7"}
    assert arguments("Action: search\nAction Input: {query: two words}") == {"query": "two words"}


def test_a_tool_without_arguments_needs_no_input():
    for text in ("Action: wait", "Action: wait\nAction Input:", "Action: wait()", "Action: wait\nAction Input: {}"):
        assert arguments(text) == {}


def test_of_several_actions_the_first_counts():
    text = 'Action: guess\nAction Input: {"number": 1}\nObservation: no\nAction: guess\nAction Input: {"number": 2}'
    assert read_action(text, TOOLS) == Action(name="guess", arguments='{"number": 1}', n_more=1)
    assert isinstance(read_action(text + "\nFinal Answer: 2", TOOLS), Action)
    assert read_action("Final Answer: 1\nAction: wait", TOOLS) == FinalAnswer(text="1")


def test_a_label_inside_of_a_string_is_part_of_it():
    query = 'first\nAction: wait\nFinal Answer: "no"'
    assert arguments(f"Action: search\nAction Input: {json.dumps({'query': query})}") == {"query": query}
    raw = 'Action: search\nAction Input: {"query": "first\nObservation: second"}'
    assert arguments(raw) == {"query": "first\nObservation: second"}


def test_code_in_an_answer_keeps_its_fence():
    code = "Here:\n```python\nprint(1)\n```"
    assert read_action(f"Final Answer: {code}", TOOLS) == FinalAnswer(text=code)
    assert read_action("```\nFinal Answer: 42\n```", TOOLS) == FinalAnswer(text="42")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "neither"),
        ("I would search the web.", "neither"),
        ("Thought: hm", "neither"),
        ("Action:", "names no tool"),
        ("Action: {}", "names no tool"),
        ("Action: serch\nAction Input: {}", "did you mean search"),
        ("Action: fly\nAction Input: {}", "there are search, click, wait, guess"),
        ("Action: click", 'such as {"x": "…", "y": "…"}'),
        ("Action: click\nAction Input: 3, 4", "not a JSON object"),
        ("Action: click\nAction Input: [3, 4]", "not a JSON object"),
        ("Action: click\nAction Input: {x: {y: 3", "not a JSON object"),
        ("Action: click\nAction Input: {3: 4}", "not a JSON object"),
        ("Action: search\nAction Input: ", "not a JSON object"),
        ("Action: click\nAction Input: {" + "[" * 5000, "not a JSON object"),
        ('Action: click\nAction Input: {"x": ' + "[" * 100_000, "not a JSON object"),
    ],
)
def test_what_cannot_be_read_is_answered(text: str, reason: str):
    read = read_action(text, TOOLS)
    assert isinstance(read, Malformed)
    assert reason in read.reason


@given(st.text(st.sampled_from("Action: InputFlw{}[]\"'\n`*,:3\\ searchThoug"), max_size=200))
def test_any_text_is_read_somehow(text: str):
    for written in (text, f"Action: search\nAction Input: {text}", f"Action: click\nAction Input: {{{text}}}"):
        read = read_action(written, TOOLS)
        if isinstance(read, Action):
            assert isinstance(json.loads(read.arguments), dict)


@given(st.dictionaries(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5)))
def test_json_is_never_changed(value: dict[str, object]):
    assert arguments(f"Action: click\nAction Input: {json.dumps(value)}") == value


@pytest.mark.parametrize("filler", [" ", "\n", "*", "`", "a: ", "{", "Action: ", "Action\t", "```\n", "> "])
@pytest.mark.timeout(20)
def test_long_rubbish_does_not_hold_up_the_others(filler: str):
    for text in (filler * 50_000, "Action: click\nAction Input: {a" + filler * 30_000 + "}"):
        assert isinstance(read_action(text, TOOLS), Malformed)
