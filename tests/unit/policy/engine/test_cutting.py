"""Texts cut before they are tokenised: the same ids as the whole, with real tokenizers, or else no cut at all."""

from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from outrider.core.chat import user
from outrider.policy.engine import HuggingFaceTokenizer, Mark, chatml, cutting
from outrider.policy.engine.rendering import Rendering

LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA.replace("{1,3}", "")
SLASHES = LLAMA.replace(r"[\r\n]*", r"[\r\n/]*")
CHARACTERS = "aS1²./<'_ \t\n\r\x1c\x85\u3000ée\u0301字🙂"
LINE = "word " * 20


def gpt2(**settings):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False} | settings)


def split(rule, behavior="isolated"):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(rule), behavior), gpt2(use_regex=False)])


def tokenizer(pre_tokenizer, normalizer=None, **settings):
    """Its model joins any two neighbours of a word, so that it shows in the ids where words begin and end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    spelled = gpt2(use_regex=False).pre_tokenize_str(CHARACTERS + "é")[0][0]
    pairs = [(a, b) for a in sorted({*spelled}) for b in sorted({*spelled})]
    vocabulary = {text: id for id, text in enumerate([*alphabet, *(a + b for a, b in pairs)])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, **settings))
    made.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        made.normalizer = normalizer
    made.add_special_tokens(["<s>", "</s>"])
    return made


KNOWN = {
    "GPT-2": tokenizer(gpt2()),
    "Llama 3": tokenizer(split(LLAMA)),
    "Qwen": tokenizer(split(QWEN), normalizers.NFC()),
}


@pytest.mark.parametrize("name", KNOWN)
@given(text=st.text(st.sampled_from(CHARACTERS), max_size=24))
@example(text="a\n\na")
@example(text="a \n \n<s>\n.\n/")
def test_the_ids_of_the_parts_are_those_of_the_whole(name, text):
    made = HuggingFaceTokenizer(KNOWN[name])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "LEAST_CHARACTERS", 1)
        parts = [*made.parts(text)]
    assert "".join(parts) == text
    assert [id for part in parts for id in made.encode(part)] == [*made.encode(text)]


@pytest.mark.parametrize("name", KNOWN)
def test_a_text_is_cut_at_the_ends_of_long_lines(name):
    text = f"{LINE}\nshort\n{LINE}\n\n{LINE}\n  indented {LINE}"
    for inner in (KNOWN[name], SimpleNamespace(backend_tokenizer=KNOWN[name])):
        parts = [*HuggingFaceTokenizer(inner).parts(text)]
        assert [part.split()[0] for part in parts] == ["word", "short", "word"]
        assert "".join(parts) == text


class Own:
    def pre_tokenize(self, pretokenized):
        pretokenized.split(lambda _, text: [text])


def truncating():
    made = tokenizer(gpt2())
    made.enable_truncation(10)
    return made


def adding(**token):
    made = tokenizer(gpt2())
    made.add_tokens([AddedToken(**token)])
    return made


OTHERS = {
    "a space is put before": tokenizer(gpt2(add_prefix_space=True)),
    "an unknown rule": tokenizer(split(SLASHES)),
    "words that are thrown away": tokenizer(split(LLAMA, "removed")),
    "no rule": tokenizer(gpt2(use_regex=False)),
    "a rule of the user's own": tokenizer(pre_tokenizers.PreTokenizer.custom(Own())),
    "one among others": tokenizer(pre_tokenizers.Sequence([pre_tokenizers.PreTokenizer.custom(Own()), gpt2()])),
    "a text that is changed before": tokenizer(gpt2(), normalizers.Strip()),
    "chance": tokenizer(gpt2(), dropout=0.5),
    "whole words": Tokenizer(models.WordLevel({"a": 0}, unk_token="a")),
    "a limit": truncating(),
    "a token over a line's end": adding(content="a\nb"),
    "a token that takes space": adding(content="b", lstrip=True),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_text_stays_whole_where_nothing_is_known(name):
    text = f"{LINE}\n{LINE}"
    assert [*HuggingFaceTokenizer(OTHERS[name]).parts(text)] == [text]


class Noting:
    """Notes what it tokenises."""

    def __init__(self, inner):
        self._inner = HuggingFaceTokenizer(inner)
        self.parts, self.decode = self._inner.parts, self._inner.decode
        self.texts = []

    def encode(self, text):
        self.texts.append(text)
        return self._inner.encode(text)


@pytest.mark.parametrize("name", KNOWN)
def test_what_stands_in_two_prompts_is_tokenised_once(name):
    made = Noting(KNOWN[name])
    template = chatml(Mark("<s>"), Mark("</s>"))
    rendering = Rendering(made, template, cache_messages=100, caching=True)
    plain = Rendering(made, template, cache_messages=100, caching=False)
    opening = f"You work together: {LINE}"
    document = f"Document: {LINE}"
    for ending in ("You search. ", "You write </s> down. "):
        asked = [user(f"{opening}\n{document}\n\n{document}\n{ending}{LINE}")]
        made.texts.clear()
        ids = rendering.prompt(asked, (), "").ids
        tokenised = "".join(made.texts)
        assert ids == plain.prompt(asked, (), "").ids
        assert (ending[:9] in tokenised, document in tokenised) == (True, ending == "You search. ")
