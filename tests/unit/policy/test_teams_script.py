"""The script that plays the members of a team, each from its prompt alone."""

import random

import pytest

from outrider.core.chat import Message, ToolSpec, assistant, system, user
from outrider.policy.scripted.scripts import bundled_scripts
from outrider.policy.scripted.teams import TeamsScript

SCRIPT = bundled_scripts()["teams"]
SUM = "<question>What is 3 + 4?</question>\n\n"
MILL = "<question>Who built the Old Mill?</question>\n\n"
FOUND = (
    "[search, round 1]\n<search>built Old Mill</search>\n\n"
    "[team, round 1]\n[1] Old Mill (id: a)\nThe Old Mill was built in 1802 by Ann Lee."
)
FORMS = {
    "verdict": "Write <verify>yes</verify> or <verify>no</verify>.",
    "check": "Write <verify>approve</verify> or <verify>reject</verify>.",
    "search": "Say it as <search>words</search>.",
    "answer": "In the form\nAnswer: the answer",
    "solve": "Answer in \\boxed{}.",
    "pick": "Name one as <pick>name</pick>.",
    "propose": "Write it as <task>question</task>.",
}


def told(prompt: str, team: str = "", form: str = "") -> str:
    messages = [user(f"{prompt}<team>{team}</team>\n\nYou are one of us. {FORMS[form]}")]
    assert SCRIPT.understands(messages, ())
    return SCRIPT.solve(messages, ()).content


@pytest.mark.parametrize(
    ("prompt", "team", "form", "said"),
    [
        (SUM, "", "solve", "Final Answer: \\boxed{(3 + 4)}"),
        (SUM, "[a, round 1]\nWhat is 9 + 9? \\boxed{18}", "solve", "Final Answer: \\boxed{(3 + 4)}"),
        ("", "[p, round 1]\n<task>What is 5 + 6?</task>", "solve", "Final Answer: \\boxed{(5 + 6)}"),
        (SUM, "[s, round 1]\n\\boxed{8}\n\n[s, round 2]\n\\boxed{(3 + 4)}", "check", "<verify>approve</verify>"),
        (SUM, "[s, round 1]\n\\boxed{(3 + 4)}\n\n[s, round 2]\n\\boxed{8}", "check", "<verify>reject</verify>"),
        (SUM, "", "check", "<verify>reject</verify>"),
        (SUM, "[a, round 1]\n\\boxed{8}\n\n[b, round 1]\n\\boxed{(3 + 4)}", "pick", "<pick>b</pick>"),
        (SUM, "[a, round 1]\n\\boxed{8}\n\n[b, round 1]\n\\boxed{9}", "pick", "<pick>a</pick>"),
        (SUM, "", "propose", "<task>What is 4 + 5?</task>"),
        (MILL, "", "search", "<search>built Old Mill</search>"),
        (MILL, "", "verdict", "<verify>no</verify>"),
        (MILL, FOUND, "verdict", "<verify>yes</verify>"),
        (MILL, FOUND, "answer", "Answer: Ann Lee"),
        (MILL, FOUND.replace("Ann Lee", "them"), "search", "<search>Old Mill</search>"),
        (MILL, FOUND.replace("[team,", "[other,"), "verdict", "<verify>no</verify>"),
    ],
)
def test_a_part_is_told_by_its_form_and_played_from_the_text(prompt: str, team: str, form: str, said: str):
    assert told(prompt, team, form).endswith(said)


@pytest.mark.parametrize(("form", "prompt"), [(form, prompt) for form in FORMS for prompt in (SUM, MILL)])
def test_guesses_keep_to_the_form_and_have_their_chance(form: str, prompt: str):
    messages = [system("Be brief."), user(f"{prompt}<team>{FOUND}</team>\n\n{FORMS[form]}")]
    assert isinstance(SCRIPT, TeamsScript)
    guesses = {SCRIPT.guess(messages, (), random.Random(n)).content for n in range(2000)}
    tag = FORMS[form].partition("<")[2].partition(">")[0]
    assert all(f"<{tag}>" in guess for guess in guesses if tag)
    assert sum(SCRIPT.chance(messages, (), assistant(guess)) for guess in guesses) == pytest.approx(1.0)
    assert SCRIPT.chance(messages, (), assistant("something else")) == 0


def test_an_actor_does_what_one_who_acts_alone_would_do():
    opening = "Answer with ```python block.\n\nWrite `flatten(nested)`."
    messages = [
        user(f"<opening>{opening}</opening>\n\n<seen></seen>\n\n<team></team>\n\nYou act. Take the next action.")
    ]
    assert SCRIPT.understands(messages, ())
    assert SCRIPT.solve(messages, ()).content.startswith("```python\ndef flatten")
    assert isinstance(SCRIPT, TeamsScript)
    guess = SCRIPT.guess(messages, (), random.Random(1))
    assert "def flatten(*arguments)" in guess.content
    assert SCRIPT.chance(messages, (), guess) > 0


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [user("What is 3 + 4?")],
        [user(f"{SUM}Say something.")],
        [user(f"{SUM}Answer in \\boxed{{}}."), assistant("7"), user("Sure?")],
        [user("<opening>Paint it.\n\nBlue.</opening>\n\nYou act.")],
    ],
)
def test_it_leaves_other_conversations_alone(messages: list[Message]):
    assert not SCRIPT.understands(messages, ())


def test_it_calls_no_tools():
    tool = ToolSpec(name="search", description="", parameters={})
    assert not SCRIPT.understands([user(f"{SUM}Answer in \\boxed{{}}.")], [tool])
