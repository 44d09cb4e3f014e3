"""Instructions to follow: each rule with a reply that follows it and one that does not."""

from typing import Any

import pytest

from outrider.core.errors import InvalidInput
from outrider.core.task import Task
from outrider.env.scoring import ScorerConfig, scorer_of
from outrider.env.scoring.instructions import RULES

EXAMPLES: dict[str, list[tuple[dict[str, Any], str, str]]] = {
    "keywords:existence": [({"keywords": ["oak", "elm"]}, "Oak and elm.", "Oak alone.")],
    "keywords:frequency": [
        ({"keyword": "oak", "frequency": 2, "relation": "at least"}, "oak, OAK", "oak"),
        ({"keyword": "oak", "frequency": 2, "relation": "less than"}, "oak", "oak oak"),
    ],
    "keywords:forbidden_words": [({"forbidden_words": ["oak"]}, "oaken", "An Oak!")],
    "keywords:letter_frequency": [({"letter": "z", "let_frequency": 2, "let_relation": "at least"}, "Zz", "z")],
    "language:response_language": [
        ({"language": "de"}, "Der Baum ist nicht groß und steht auf dem Berg.", "The tree is not tall."),
        ({"language": "hi"}, "यह पेड़ बहुत बड़ा है और नदी के पास है।", "The tree is tall."),
        ({"language": "mr"}, "हे झाड मोठे आहे आणि ते नदीजवळ आहे.", "यह पेड़ बहुत बड़ा है और नदी के पास है।"),
        ({"language": "ru"}, "Это дерево не так велико, как он сказал.", "Това ще расте на скала със сила."),
        ({"language": "ja"}, "この木は大きいです。東京にあります。", "这棵树很大。"),
        ({"language": "fa"}, "این درخت بزرگ است و در کنار رود است.", "هذه الشجرة كبيرة وهي في هذا المكان."),
        ({"language": "ko"}, "나무가 큽니다.", "木は大きい。"),
    ],
    "length_constraints:number_sentences": [
        ({"num_sentences": 3, "relation": "less than"}, "Dr. Oak has 2.5 trees. They grow!", "One. Two. Three."),
        ({"num_sentences": 2, "relation": "at least"}, "One. Two", "One."),
    ],
    "length_constraints:number_paragraphs": [
        ({"num_paragraphs": 2}, "One\n***\nTwo", "One\n\nTwo"),
        ({"num_paragraphs": 2}, "***\nOne\n***\nTwo", "One\n***\n***\nTwo"),
    ],
    "length_constraints:number_words": [({"num_words": 3, "relation": "at least"}, "One two three", "One two")],
    "length_constraints:nth_paragraph_first_word": [
        ({"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "oak"}, "One\n\nOak, two", "One\n\nTwo"),
    ],
    "detectable_content:number_placeholders": [({"num_placeholders": 2}, "[name] of [place]", "[name]")],
    "detectable_content:postscript": [
        ({"postscript_marker": "P.S."}, "Text\nP.S. more", "Text"),
        ({"postscript_marker": "P.P.S"}, "Text\nP.P.S more", "P.S. more"),
    ],
    "detectable_format:number_bullet_lists": [({"num_bullets": 2}, "* one\n- two", "* one\n* two\n* three")],
    "detectable_format:constrained_response": [({}, "My answer is maybe.", "Maybe.")],
    "detectable_format:number_highlighted_sections": [({"num_highlights": 2}, "*one* and **two**", "*one* and **")],
    "detectable_format:multiple_sections": [
        ({"section_spliter": "SECTION", "num_sections": 2}, "SECTION 1\na\nSECTION 2\nb", "SECTION 1\na")
    ],
    "detectable_format:json_format": [({}, '```json\n{"a": [1]}\n```', "{a: 1}")],
    "detectable_format:title": [({}, "<<An oak>>\nText", "<An oak>")],
    "combination:two_responses": [({}, "One\n******\nTwo", "One\n******\nOne")],
    "combination:repeat_prompt": [({"prompt_to_repeat": "Say it."}, "say it. It.", "It. Say it.")],
    "startend:end_checker": [({"end_phrase": "That is all."}, "So. That is ALL.\n", "That is all. No.")],
    "startend:quotation": [({}, '"All of it"', '"Some" of it')],
    "change_case:capital_word_frequency": [
        ({"capital_frequency": 2, "capital_relation": "less than"}, "One BIG tree", "TWO BIG trees")
    ],
    "change_case:english_capital": [({}, "AN OAK", "An OAK")],
    "change_case:english_lowercase": [({}, "an oak", "An oak")],
    "punctuation:no_comma": [({}, "one two", "one, two")],
}


def task(*named: tuple[str, Any]) -> Task:
    metadata = {"instruction_id_list": [name for name, _ in named], "kwargs": [arguments for _, arguments in named]}
    return Task(task_id="t", question="?", metadata=metadata)


def test_every_rule_has_an_example():
    assert EXAMPLES.keys() == RULES.keys()


@pytest.mark.parametrize("name", EXAMPLES)
async def test_a_reply_that_follows_earns_the_reward_and_one_that_does_not_earns_nothing(name: str):
    scorer = scorer_of("instructions", ScorerConfig())
    for arguments, follows, misses in EXAMPLES[name]:
        scorer.check_task(task((name, arguments)))
        assert (await scorer.score(follows, task((name, arguments)))).reward == 1.0, follows
        missed = await scorer.score(misses, task((name, arguments)))
        assert (missed.reward, missed.explanation) == (0.0, f"not followed: {name}"), misses
        assert (await scorer.score(" ", task((name, arguments)))).reward == 0.0


async def test_strict_and_loose_are_told_of_the_reply_and_of_each_instruction():
    both = task(("punctuation:no_comma", {}), ("startend:quotation", {}))
    scorer = scorer_of("instructions", ScorerConfig())
    score = await scorer.score('Here you are:\n"One and two"', both)
    assert score.reward == 0.0
    assert score.metrics == {"instructions_strict": 0.5, "all_loose": 1.0, "instructions_loose": 1.0}


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        (
            "punctuation:no_commas",
            {},
            "there is no instruction 'punctuation:no_commas'; did you mean punctuation:no_comma",
        ),
        ("startend:end_checker", {}, "startend:end_checker cannot be checked: needs 'end_phrase'"),
        ("language:response_language", {"language": "xx"}, "the language is 'xx'; those known are ar"),
        ("length_constraints:number_words", {"num_words": 3, "relation": "about"}, "the relation is 'about'"),
        ("keywords:existence", {"keywords": None}, "keywords:existence cannot be checked"),
    ],
)
def test_an_instruction_that_cannot_be_checked_is_refused_before_a_model_works_on_it(
    name: str, arguments: dict[str, Any], says: str
):
    with pytest.raises(InvalidInput, match="task 't'") as caught:
        scorer_of("instructions", ScorerConfig()).check_task(task((name, arguments)))
    assert says in str(caught.value)
