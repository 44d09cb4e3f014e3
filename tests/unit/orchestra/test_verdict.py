"""A verdict is read from what the verifier decided, not from what it thought, quoted or was shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.errors import InvalidInput
from outrider.orchestra.verdict import Boxed, Outcome, Tag, Verdict, VerdictKind, VerdictRule

RULE = VerdictRule()
YES, NO = "<verify>yes</verify>", "<verify>no</verify>"
APPROVING = VerdictRule(malformed=Outcome.APPROVE, ambiguous=Outcome.APPROVE, exhausted=Outcome.APPROVE)


def kind(text: str) -> str:
    """`yes` or `no` if the verdict is clear, else its kind; whatever is not clear must reject."""
    verdict = RULE(text)
    if verdict.kind is VerdictKind.CLEAR:
        return "yes" if verdict.approved else "no"
    assert not verdict.approved
    return verdict.kind.value


@pytest.mark.parametrize("word", ["yes", "YES", " Yes\n", "approve", "Approved", "accept", "**yes**", "yes.", '"yes"'])
def test_a_yes_approves(word: str):
    assert kind(f"It holds.\n<verify>{word}</verify>") == "yes"


@pytest.mark.parametrize("word", ["no", "NO", "\tNo ", "reject", "Rejected", "refused", "_no_", "No!"])
def test_a_no_rejects(word: str):
    assert kind(f"It does not hold. <verify>{word}</verify>") == "no"


def test_a_tag_may_be_in_any_case_but_has_no_attributes():
    assert kind("<Verify>yes</VERIFY >") == "yes"
    assert kind('<verify sure="true">yes</verify>') == "malformed"
    assert kind("< verify>yes</verify>") == "malformed"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{YES} then {NO}", "no"),
        (f"{NO} then {YES}", "yes"),
        (f"{YES} but <verify>perhaps</verify>", "malformed"),
        ("<verify>no<verify>yes</verify>", "yes"),
        (f"{NO} and <verify>yes", "no"),
        ("</verify> yes <verify>no</verify> yes</verify>", "no"),
    ],
)
def test_the_last_tag_that_is_opened_and_closed_counts(text: str, expected: str):
    assert kind(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "yes", "<verify>yes", "yes</verify>", "<verify></verify>", "<verify> </verify>", "</verify>yes<verify>",
        "<verify>maybe</verify>", "<verify>not approved</verify>", "<verify>yes it is not right</verify>",
        "<verify>yes?</verify>", "<verify>yesterday</verify>", "<verdict>yes</verdict>", "<verify/>",
        '<verify>" then yes and "</verify>', "<verify>ye s</verify>", "&lt;verify&gt;yes&lt;/verify&gt;",
    ],
)  # fmt: skip
def test_what_says_neither_is_malformed(text: str):
    assert kind(text) == "malformed"


@pytest.mark.parametrize("said", ["yes or no", "Yes/No", "no, not yes", "approve | reject", "yes_or_no", "yes\nno"])
def test_both_in_one_tag_is_ambiguous(said: str):
    assert kind(f"{YES} <verify>{said}</verify>") == "ambiguous"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"<think>{YES}</think>{NO}", "no"),
        (f"{NO}<think>or is it {YES}</think>", "no"),
        (f"<THINK>\n{YES}\n</think >", "malformed"),
        (f"<think>{YES}", "malformed"),
        (f"{YES}<think>but then", "malformed"),
        (f"{YES} it seems.</think>", "malformed"),
        (f"{YES} it seems.</think>{NO}", "no"),
        (f"<think>a<think>b</think>{YES}</think>", "malformed"),
        (f"{YES}<think>a</think>b</think>c", "malformed"),
        (f"<think>a</think>b<think>{YES}</think>{NO}", "no"),
        (f"<think>close it with `</think>` {YES}</think>{NO}", "no"),
        (f"The `<think>` part is long. {YES}", "yes"),
    ],
)
def test_what_was_thought_does_not_count(text: str, expected: str):
    assert kind(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"```\n{YES}\n```", "malformed"),
        (f"{NO}\n```xml\n{YES}\n```\n", "no"),
        (f"{NO}\n~~~\n```\n{YES}\n~~~", "no"),
        (f"{NO}\n  ````\n```\n{YES}\n  ````", "no"),
        (f"{NO}\n```\r\n{YES}\r\n```\r\n", "no"),
        (f"{NO}\n```\n{YES}", "no"),
        (f"```\ncode\n```\n{YES}", "yes"),
        (f"```code``` is fine\n{YES}", "yes"),
        (f"<think>```\n</think>{YES}", "yes"),
        (f"```\n</think>\n```\n{YES}\n```", "malformed"),
    ],
)
def test_a_code_block_does_not_count(text: str, expected: str):
    assert kind(text) == expected


@pytest.mark.parametrize("quotes", ['""', "''", "``", "“”", "„“", "\u2018\u2019", "«»"])
def test_a_quoted_tag_is_a_mention(quotes: str):
    mention = f"{quotes[0]}{YES}{quotes[1]}"
    assert kind(f"I was asked to write {mention} if it holds.") == "malformed"
    assert kind(f"{NO}, so I do not write {mention}.") == "no"
    assert kind(f"```{mention}```") == "malformed"
    assert kind(f'He said "fine". {YES}"') == "yes"


def test_what_was_said_is_kept():
    assert RULE("<verify> Yes,\n or No </verify>").said == "Yes, or No"
    assert RULE(YES) == Verdict(approved=True, kind=VerdictKind.CLEAR, said="yes")
    assert RULE("nothing").said == ""


def test_what_is_not_clear_approves_only_where_one_asks_for_it():
    assert RULE.out_of_rounds() == Verdict(approved=False, kind=VerdictKind.EXHAUSTED)
    assert APPROVING.out_of_rounds().approved
    assert VerdictRule(exhausted=Outcome.APPROVE).out_of_rounds().approved
    for text in ("", "<verify>perhaps</verify>"):
        assert VerdictRule(malformed=Outcome.APPROVE)(text) == APPROVING(text)
        assert APPROVING(text).approved
        assert not VerdictRule(ambiguous=Outcome.APPROVE, exhausted=Outcome.APPROVE)(text).approved
    ambiguous = "<verify>yes or no</verify>"
    assert VerdictRule(ambiguous=Outcome.APPROVE)(ambiguous).approved
    assert not VerdictRule(malformed=Outcome.APPROVE, exhausted=Outcome.APPROVE)(ambiguous).approved
    assert not APPROVING(NO).approved


def test_tag_and_words_can_be_others():
    rule = VerdictRule(tag="critic", yes=("Approve",), no=("not approve", "reject"))
    assert rule("<critic>approve</critic>").approved
    assert rule("<critic>Not  approve</critic>").kind is VerdictKind.CLEAR
    assert rule(YES).kind is VerdictKind.MALFORMED
    assert rule("<critic>yes</critic>").kind is VerdictKind.MALFORMED


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tag": "<verify>"}, "'<verify>' cannot be the name"),
        ({"tag": ""}, "'' cannot be the name"),
        ({"yes": "yes"}, "as tuples"),
        ({"no": ()}, "words for yes and for no"),
        ({"yes": ("ok",), "no": ("no", "OK")}, "'ok' cannot mean yes and no"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(wrong: dict[str, object], message: str):
    with pytest.raises(InvalidInput, match=message):
        VerdictRule(**wrong)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<search>first</search> <search> last </search>", "last"),
        ("</search> x <search>Paris</search>", "Paris"),
        ("<search>a</search><think><search>b</search></think>", "a"),
        ("<think><search>b</search>", None),
        ("```\n<search>in code</search>\n```", "in code"),
        ("<search>```\ncode\n```</search>", "```\ncode\n```"),
        ("<search>东京</search>", "东京"),
        ("<search>a</search><search> </search>", None),
        ("<search>open", None),
        ("", None),
    ],
)
def test_a_tag_gives_what_stands_in_the_last_one(text: str, content: str | None):
    assert Tag("search")(text) == content


def test_the_name_of_a_tag_is_a_name():
    with pytest.raises(InvalidInput, match="cannot be the name"):
        Tag("a b")
    assert Tag("a.b-c")("<a.b-c>x</a.b-c> <aXb-c>y</aXb-c>") == "x"


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{1} so \boxed{\frac{3}{4}}", r"\frac{3}{4}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"<think>\boxed{1}</think> so \boxed{2}", "2"),
        (r"<think>\boxed{1}", None),
        (r"\boxed{ }", None),
        ("42", None),
    ],
)
def test_a_box_gives_what_stands_in_the_last_one(text: str, content: str | None):
    assert Boxed()(text) == content


HOSTILE = [
    "<verify>", "</verify>", "<verify>yes", YES, f'"{YES}"', "<verify", "<verify ", "<", "<think>", "</think>",
    "`<think>`", "<think></think>", "```\n", "~~~", "\n", " ", "`", "> ", "\\boxed{", "\\boxed", "{", "}",
    "<verify>yes no ", "\\{", "\\\\", "\\boxed{x}", "~~~\n```\n", "> ```x\n", "İ", "<THINK \n", "word\n",
]  # fmt: skip


@pytest.mark.parametrize("filler", HOSTILE)
@pytest.mark.timeout(10)
def test_a_long_reply_is_read_in_linear_time(filler: str):
    long = filler * (500_000 // len(filler))
    for text in (long, f"<verify>{long}</verify>", long + NO, "\\boxed{" + long + "}", "<think>" + long):
        for parse in (RULE, Tag("verify"), Boxed()):
            parse(text)


@given(st.lists(st.sampled_from([*HOSTILE, NO, "yes", "no", " "]), max_size=20).map("".join))
def test_nothing_that_is_not_clear_is_ever_approved(text: str):
    verdict = RULE(text)
    assert verdict.approved <= (verdict.kind is VerdictKind.CLEAR)
    if verdict.approved:
        assert YES in text or "<verify>yes" in text


@given(st.lists(st.sampled_from(HOSTILE), max_size=20).map("".join), st.sampled_from(["yes", "no"]))
def test_a_thought_never_changes_the_verdict_after_it(thought: str, word: str):
    quiet = thought.replace("think>", "thought>")
    assert kind(f"<think>{quiet} </think>\n<verify>{word}</verify>") == word
