"""The policy as agents see it: completions with exact tokens, the same with and without a cache."""

import math
from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.chat import ToolCall, ToolSpec, assistant, tool_result, user
from outrider.core.errors import ContextOverflow, InvalidInput, PolicyError
from outrider.policy import Completion, FinishReason, Sampling, Tokens, Usage
from outrider.policy.engine import EnginePolicy, HuggingFaceTokenizer, Mark, TokenReply, chatml
from outrider.policy.engine.packing import pack_floats, pack_ids
from outrider.policy.engine.recent import Recent
from outrider.testing import LoopClock, run_virtual
from token_engine import END, START, AsyncEngine, WordTokenizer, prompt_of, sampled_in, says, spelled

SEARCH = ToolSpec(name="search", description="", parameters={"type": "object"})
ASKED = [user("Hi there")]


def policy_of(engine, **settings):
    return EnginePolicy(engine, WordTokenizer(), clock=LoopClock(), **settings)


def complete(engine, messages=ASKED, *, tools=(), sampling=None, **settings) -> Completion:
    async def main():
        return await policy_of(engine, **settings).complete(messages, tools=tools, sampling=sampling)

    return run_virtual(main(), limit_seconds=1000)


def test_a_completion_has_the_exact_tokens():
    engine = AsyncEngine(lambda _: TokenReply(ids=[*spelled("ab"), END], logprobs=[-1.0, -2.0, 0.0], policy_version=7))
    found = complete(engine, model="tiny", wait_seconds=0.5)
    [asked] = engine.requests
    assert asked.stop_ids == (END,)
    assert found == Completion(
        message=assistant("ab"),
        usage=Usage(prompt_tokens=len(asked.prompt_ids), completion_tokens=3),
        tokens=Tokens(
            prompt_ids=pack_ids(asked.prompt_ids),
            completion_ids=pack_ids([*spelled("ab"), END]),
            logprobs=pack_floats([-1.0, -2.0, 0.0]),
        ),
        model="tiny",
        policy_version=7,
        queue_seconds=0.5,
    )
    assert (pack_ids([1, 258]), pack_floats([-2.0])) == (b"\1\0\0\0\2\1\0\0", b"\0\0\0\xc0")


def test_the_sampling_goes_to_the_engine_as_it_is():
    engine = AsyncEngine()
    sampling = Sampling(temperature=0.5, top_p=0.9, max_tokens=9, seed=3, stop=("x",), logprobs=True)
    complete(engine, sampling=sampling)
    complete(engine)
    assert [asked.sampling for asked in engine.requests] == [sampling, Sampling()]


def test_a_reply_that_calls_a_tool_says_so_unless_it_was_cut():
    text = '<tool_call>\n{"name": "search", "arguments": {"q": 1}}\n</tool_call>'
    found = complete(AsyncEngine(lambda _: says(text)), tools=[SEARCH])
    assert found.finish_reason is FinishReason.TOOL_CALLS
    assert found.message.tool_calls == (ToolCall(id="call_1_0", name="search", arguments='{"q": 1}'),)
    cut = AsyncEngine(lambda _: TokenReply(ids=spelled(text[:-3]), finish_reason=FinishReason.LENGTH))
    found = complete(cut, tools=[SEARCH])
    assert (found.finish_reason, found.message) == (FinishReason.LENGTH, assistant(text[:-3]))


def test_a_conversation_that_leaves_no_room_for_a_reply_is_an_overflow_and_others_get_what_is_left():
    engine = AsyncEngine()
    n_prompt = complete(engine).usage.prompt_tokens
    with pytest.raises(ContextOverflow, match=f"has {n_prompt} tokens; the model reads {n_prompt}"):
        complete(engine, max_context=n_prompt)
    for asked in (None, 5, 1):
        complete(engine, max_context=n_prompt + 2, sampling=Sampling(max_tokens=asked))
    assert [one.sampling.max_tokens for one in engine.requests] == [None, 2, 2, 1]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (TokenReply(ids=[11], logprobs=[-1.0, -2.0]), "2 log-probabilities for 1 tokens"),
        (TokenReply(ids=[11, 12], logprobs=[-1.0, math.nan]), "not a finite number"),
        (TokenReply(ids=[11, -1]), "-1 as a token id"),
        (TokenReply(ids=[2**31]), "OverflowError"),
        (TokenReply(ids=["a"]), "TypeError"),
        (TokenReply(ids=[9]), "IndexError"),  # an id that the tokenizer does not have
    ],
)
def test_a_reply_that_cannot_be_one_is_the_engines_failure(reply, said):
    with pytest.raises(PolicyError, match=said):
        complete(AsyncEngine(lambda _: reply))


def test_an_empty_reply_is_an_empty_message():
    for ids in ([], [END], array("i", [END])):
        assert complete(AsyncEngine(lambda _, ids=ids: TokenReply(ids=ids))).message == assistant("")


def play(*, cache, texts):
    """A conversation of several turns, with tools."""

    async def main():
        answers = iter(texts)
        policy = policy_of(AsyncEngine(lambda _: says(next(answers))), cache=True).caching(cache)
        messages = [user("Begin.")]
        completions = []
        for _ in texts:
            completion = await policy.complete(messages, tools=[SEARCH], session="one")
            completions.append(completion)
            results = [tool_result(call, "found") for call in completion.message.tool_calls]
            messages += [completion.message, *(results or [user("Go on.")])]
        return completions, policy.statistics()

    return run_virtual(main(), limit_seconds=1000)


@given(st.lists(st.text("ab <|\n", max_size=6) | st.just('a<tool_call>{"name": "f"}</tool_call>'), max_size=4))
def test_with_and_without_a_cache_completions_are_the_same_and_each_goes_on_from_the_last(texts):
    completions, known = play(cache=True, texts=texts)
    again, unknown = play(cache=False, texts=texts)
    assert again == completions
    assert unknown.n_hits == 0
    assert unknown.n_tokenised == known.n_tokenised + known.n_hits
    for before, after in pairwise(completions):
        so_far = prompt_of(before) + sampled_in(before)
        assert prompt_of(after)[: len(so_far)] == so_far


def test_caching_on_and_off_share_the_engine_and_its_queue():
    async def main():
        engine = AsyncEngine()
        policy = policy_of(engine)
        other = policy.caching(False)
        assert policy.caching(True) is policy
        assert other.caching(False) is other
        await policy.complete(ASKED)
        await other.complete(ASKED)
        assert (policy.count("a b"), policy.count("a b"), other.count("a b"), other.count("a b")) == (2, 2, 2, 2)
        of_both = policy.statistics(), other.statistics()
        assert [(one.n_tokenised, one.n_hits, one.n_requests, one.n_batches) for one in of_both] == [
            (2, 1, 2, 2),
            (3, 0, 2, 2),
        ]
        assert (of_both[0].mean_batch, of_both[0].mean_queue_seconds) == (1.0, pytest.approx(0.005))
        await other.close()
        with pytest.raises(PolicyError, match="closed"):
            await policy.complete(ASKED)

    run_virtual(main(), limit_seconds=1000)


@pytest.mark.parametrize(
    "setting",
    [
        {"max_batch": 0},
        {"max_waiting": 0},
        {"max_context": 0},
        {"cache_messages": 0},
        {"wait_seconds": -1.0},
        {"wait_seconds": math.nan},
        {"deadline_seconds": 0.0},
        {"deadline_seconds": math.inf},
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(setting):
    with pytest.raises(InvalidInput, match=next(iter(setting))):
        policy_of(AsyncEngine(), **setting)


class LikeTransformers:
    """Gives a list; `LikeTokenizers` an object with one."""

    def encode(self, text, add_special_tokens=True):
        return [START] * add_special_tokens + list(text.encode())

    def decode(self, ids, skip_special_tokens=True):
        return bytes([id for id in ids if id >= 10] if skip_special_tokens else ids).decode()


class LikeTokenizers(LikeTransformers):
    class Encoding:
        def __init__(self, ids):
            self.ids = ids

    def encode(self, text, add_special_tokens=True):
        return self.Encoding(super().encode(text, add_special_tokens))


@pytest.mark.parametrize("inner", [LikeTransformers(), LikeTokenizers()])
def test_a_tokenizer_of_hugging_face_adds_nothing_and_leaves_nothing_out(inner):
    tokenizer = HuggingFaceTokenizer(inner)
    assert list(tokenizer.encode("ab")) == [97, 98]
    assert tokenizer.decode([97, 1]) == "a\x01"

    async def main():
        engine = AsyncEngine(lambda _: TokenReply(ids=array("i", [97, 98, 301])))
        marks = Mark("<s>", 300), Mark("</s>", 301)
        return await EnginePolicy(engine, tokenizer, chatml(*marks), clock=LoopClock()).complete(ASKED)

    assert run_virtual(main(), limit_seconds=10).message == assistant("ab")


def test_what_is_remembered_is_bounded_in_number_and_weight():
    memory = Recent[str, str](2, 10)
    for key, weight in (("a", 5), ("b", 5), ("b", 4), ("a", 6), ("c", 11)):
        memory.put(key, key.upper(), weight)
    assert (len(memory), memory.weight, memory.get("b"), memory.get("c")) == (2, 10, "B", None)
    memory.put("d", "D", 3)
    assert (len(memory), memory.weight, memory.get("a"), memory.get("b")) == (2, 7, None, "B")
