"""A prompt has exactly its places; every other brace, in it or in what is filled in, stays as it was written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.errors import InvalidInput
from outrider.orchestra.prompt import PLACES, Piece, Prompt

VALUES = {name: f"<{name}>" for name in PLACES}


def rendered(text: str, **values: str) -> str:
    return Prompt(text, places=tuple(values)).render(VALUES | values)


def test_places_are_filled_in():
    prompt = Prompt("{question} after {round} rounds: {question}")
    assert prompt.places == {"question", "round"}
    assert prompt.render({"question": "Why?", "round": "2", "step": "unused"}) == "Why? after 2 rounds: Why?"


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": {"x": [1, 2]}, "empty": {}}',
        r"Write \boxed{42} or \frac{a}{b} or \{1, 2\}.",
        "def f(): return {k: v for k, v in {}.items()}",
        "{", "}", "{{", "}}", "{}", "{{}}", "{{{", "{ question }", "{question", "question}", "{0}", "{question!r}",
        "{question:>8}", "{question.upper}", "{answer} {memory} {{answer}}", "100 % {}%s", "",
    ],
)  # fmt: skip
def test_every_other_brace_is_text(text: str):
    prompt = Prompt(text)
    assert prompt.render({}) == text
    assert prompt.places == frozenset()


def test_braces_around_a_place_stay():
    assert rendered('{"question": "{question}"}') == '{"question": "<question>"}'
    assert rendered("{x, {question}}") == "{x, <question>}"
    assert rendered("{{question}, 1}") == "{<question>, 1}"
    assert rendered(r"\boxed{\text{question}}") == r"\boxed{\text<question>}"


def test_doubled_braces_write_the_name_of_a_place():
    assert rendered("{{question}} stands for {question}") == "{question} stands for <question>"
    assert rendered("{{{question}}}") == "{{question}}"
    assert Prompt("{{question}}").places == frozenset()


@pytest.mark.parametrize("document", ["{context}", "{{context}}", "{question}{round}", "{memory}", "{qestion}", "\\1"])
def test_what_is_filled_in_is_not_parsed_again(document: str):
    prompt = Prompt("{question}|{context}")
    assert prompt.render({"question": document, "context": document}) == f"{document}|{document}"


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("qestion", "question"), ("contxt", "context"), ("Question", "question"), ("CONTEXT", "context"),
        ("observations", "observation"), ("rounds", "round"), ("setp", "step"), ("note", "notes"),
    ],
)  # fmt: skip
def test_a_slip_is_refused_and_corrected(slip: str, meant: str):
    with pytest.raises(InvalidInput, match=rf"no place \{{{slip}\}}; did you mean \{{{meant}\}}\?.*\{{\{{{slip}\}}\}}"):
        Prompt(f"Here: {{{slip}}}", places=["notes"])
    assert Prompt(f"Here: {{{{{slip}}}}}", places=["notes"]).render({}) == f"Here: {{{slip}}}"


def test_further_places_are_those_given():
    assert rendered("{notes} {rounds}", notes="a", rounds="b") == "a b"
    assert rendered("{notes} {Notes}", notes="a", Notes="b") == "a b"
    assert Prompt("{notes}").render({"notes": "a"}) == "{notes}"
    with pytest.raises(InvalidInput, match="'my notes' cannot be a place"):
        Prompt("{my notes}", places=["my notes"])


def test_a_missing_value_is_named():
    with pytest.raises(InvalidInput, match=r"place \{context\}, and there is no value"):
        Prompt("{question} {context}").render({"question": "Why?"})


def test_pieces_are_the_text_split_at_its_places():
    prompt = Prompt("Q: {question}{context} {{round}} {x}")
    assert prompt.pieces == (
        Piece("Q: ", is_place=False),
        Piece("question", is_place=True),
        Piece("context", is_place=True),
        Piece(" {round} {x}", is_place=False),
    )
    assert prompt.filled(VALUES) == ("Q: ", "<question>", "<context>", " {round} {x}")
    assert Prompt("").pieces == ()


braces = st.text("{}q \\", max_size=6)
parts = st.lists(st.tuples(braces, st.sampled_from(PLACES)), max_size=5)


@given(parts, braces, st.dictionaries(st.sampled_from(PLACES), st.text("{}question", max_size=12)))
def test_a_prompt_is_its_text_with_each_place_replaced(written: list[tuple[str, str]], end: str, given: dict[str, str]):
    values = dict.fromkeys(PLACES, "") | given
    # a letter beside each place keeps its braces from being doubled
    prompt = Prompt("".join(f"{text}.{{{place}}}." for text, place in written) + end)
    assert prompt.render(values) == "".join(f"{text}.{values[place]}." for text, place in written) + end
    assert prompt.places == {place for _, place in written}


@pytest.mark.parametrize("filler", ["{", "{{", "}", "{a", "{{a}", "{{a}}", "{question}", "{{question}}"])
@pytest.mark.timeout(20)
def test_a_long_prompt_is_read_in_linear_time(filler: str):
    text = filler * (1_000_000 // len(filler) if "a" not in filler else 2_000)
    written = Prompt(text).render({"question": "{question}"})
    assert written == text.replace("{{question}}", "{question}")
