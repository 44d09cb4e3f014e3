import time

import pytest

from outrider.env.games.answer import AnswerForm

THINK = r"<think>.*?</think>\s*<answer>(.*?)</answer>"


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<answer>Up</answer>", "Up"),
        ("I go up.\n<answer> Up\n</answer> then <answer>Down</answer>", "Up"),
        ("<answer></answer>", ""),
        ("<answer><answer>Up</answer>", "<answer>Up"),
        ("Up", None),
        ("<answer>Up", None),
        ("</answer>Up<answer>", None),
        ("", None),
    ],
)
def test_the_first_match_is_the_action(text: str, action: str | None):
    assert AnswerForm().find(text) == action


def test_a_plain_pattern_and_its_regular_expression_find_the_same():
    texts = ["<a>x</a>", "<a></a>", "<a>x<a>y</a></a>", "</a><a>", "x", "<a>\n</a>"]
    plain, regular = AnswerForm("<a>(.*?)</a>"), AnswerForm("(?:<a>)(.*?)</a>", "<a>{action}</a>")
    assert [plain.find(text) for text in texts] == [regular.find(text) for text in texts]


def test_a_text_full_of_openings_takes_no_time():
    started = time.process_time()
    assert AnswerForm().find("<answer>" * 200_000) is None
    assert time.process_time() - started < 1


def test_what_is_written_is_found():
    form = AnswerForm(THINK, "<think>…</think><answer>{action}</answer>")
    assert form.find(form.write("Left")) == "Left"
    assert form.find("<answer>Left</answer>") is None
    assert form.described("Up") == (
        "in the form <think>…</think><answer>ACTION</answer>, for example: <think>…</think><answer>Up</answer>"
    )


@pytest.mark.parametrize(
    ("pattern", "example", "reason"),
    [
        ("<answer>(.*?", None, "not a regular expression"),
        ("<answer>.*?</answer>", None, "must have one group"),
        ("(<answer>)(.*?)</answer>", None, "must have one group"),
        (THINK, None, "needs an answer_example"),
        ("(.*?)", None, "needs an answer_example"),
        ("<answer>(.*?)</answer>", "<move>{action}</move>", "does not find {action} in answer_example"),
        ("<answer>(.*?)</answer>", "<answer>Up!</answer>", "does not find {action} in answer_example"),
        ("<answer>(.*?)</answer>", "I move\n<answer>{action}</answer>", "must be one line"),
    ],
)
def test_a_pattern_that_cannot_be_explained_is_refused(pattern: str, example: str | None, reason: str):
    with pytest.raises(ValueError, match=reason):
        AnswerForm(pattern, example)
