"""Random trees of conversations: whatever agents do to their history, each completion is trained once, as it was."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from conversations import events_of, tokens_between, turn
from outrider.core.chat import Message, assistant, system, user
from outrider.core.turn import TurnRecord
from outrider.policy.scripted.tokens import completion_ids, decode, prompt_ids
from outrider.train import Sample, sampled

OPENING = (system("S"), user("begin"))
AGENTS = ("", "critic")
GARBAGE: tuple[dict[str, bytes], ...] = (
    {},
    {"prompt_ids": b"", "completion_ids": b"\1\0\0\0", "logprobs": b"\0\0\0\0"},
    {"prompt_ids": b"\1\0\0\0", "completion_ids": b"", "logprobs": b""},
    {"prompt_ids": b"\1\0\0\0", "completion_ids": b"\1\0\0", "logprobs": b"\0\0\0"},
    {"prompt_ids": b"\1\0\0\0", "completion_ids": b"\1\0\0\0", "logprobs": b"\0\0\0\0\0\0\0\0"},
    {"prompt_ids": b"\1\0\0\0\xff\xff\xff\xff", "completion_ids": b"\1\0\0\0", "logprobs": b"\0\0\0\0"},
)


@dataclass(frozen=True, kw_only=True)
class Act:
    """One thing an agent does before it asks its model."""

    kind: str
    which: int
    words: str
    reply: str
    agent: str
    version: int
    garbage: int


acts = st.lists(
    st.builds(
        Act,
        kind=st.sampled_from(["go on", "go on", "go on", "retry", "fork", "trim", "rewrite", "afresh", "garbage"]),
        which=st.integers(0, 30),
        words=st.text("abé", max_size=3),
        reply=st.text("xyλ", max_size=3),
        agent=st.sampled_from(AGENTS),
        version=st.integers(0, 3),
        garbage=st.integers(0, len(GARBAGE) - 1),
    ),
    max_size=14,
)


def played(plan: Sequence[Act]) -> list[tuple[str, TurnRecord]]:
    """The turns of such a conversation, each with its whole request."""
    turns: list[tuple[str, TurnRecord]] = []
    for act in plan:
        own = [record for agent, record in turns if agent == act.agent]
        tokens = GARBAGE[act.garbage] if act.kind == "garbage" else None
        record = turn(request_of(act, own), assistant(act.reply), tokens=tokens, policy_version=act.version)
        turns.append((act.agent, record))
    return turns


def request_of(act: Act, own: Sequence[TurnRecord]) -> tuple[Message, ...]:
    if not own or act.kind == "afresh":
        return (*OPENING, user(act.words)) if act.which % 2 else OPENING
    base = own[act.which % len(own)] if act.kind in {"fork", "retry"} else own[-1]
    said = (*base.added, base.reply)
    if act.kind == "retry":
        return base.added
    if act.kind == "trim":
        said = (*OPENING, *said[2 + act.which % 3 :])
    elif act.kind == "rewrite":
        said = tuple(
            user("summary") if place == act.which % len(said) else message for place, message in enumerate(said)
        )
    return (*said, user(act.words)) if act.words else said


def is_garbage(record: TurnRecord) -> bool:
    return (record.tokens or {}) in GARBAGE


def whole(record: TurnRecord) -> bytes:
    return record.tokens["prompt_ids"] + record.tokens["completion_ids"]


def n_sequences_expected(turns: Sequence[tuple[str, TurnRecord]]) -> int:
    """By text alone: each turn begins a sequence, but one for each turn that others go on from."""
    kept = [(agent, record.added, (*record.added, record.reply)) for agent, record in turns if not is_garbage(record)]
    children: Counter[Any] = Counter()
    for agent, request, _ in kept:
        starts = [said for other, _, said in kept if other == agent and said == request[: len(said)]]
        if starts:
            children[agent, max(starts, key=len)] += 1
    ends = Counter((agent, said) for agent, _, said in kept)
    return len(kept) - sum(min(ends[end], n) for end, n in children.items())


@given(acts)
def test_every_completion_is_trained_exactly_once(plan: list[Act]):
    turns = played(plan)
    result = sampled(events_of(*turns))
    trained = Counter(index for sample in result.samples if not sample.is_text for index in sample.turns)
    text = Counter(index for sample in result.samples for one in sample.text for index in [one.index])
    assert trained + text == Counter(range(len(turns)))
    assert text == Counter(index for index, (_, record) in enumerate(turns) if is_garbage(record))
    n_written = sum(len(record.tokens["completion_ids"]) // 4 for _, record in turns if not is_garbage(record))
    assert sum(int(sample.loss_mask.sum()) for sample in result.samples) == n_written == result.report.n_trained


@given(acts)
def test_a_sample_is_what_the_engine_read_and_wrote(plan: list[Act]):
    turns = played(plan)
    for sample in sampled(events_of(*turns)).samples:
        if sample.is_text:
            continue
        records = [turns[index][1] for index in sample.turns]
        assert {turns[index][0] for index in sample.turns} == {sample.agent}
        assert sample.tokens.tobytes() == whole(records[-1])
        last = records[-1]
        assert decode(sample.tokens.tobytes()) == decode(prompt_ids(last.added) + completion_ids(last.reply))
        in_loss = np.zeros(sample.n_tokens, bool)
        for record in records:
            start, end = len(record.tokens["prompt_ids"]) // 4, len(whole(record)) // 4
            assert sample.tokens[:end].tobytes() == whole(record)
            assert sample.logprobs[start:end].tobytes() == record.tokens["logprobs"]
            assert (sample.versions[start:end] == record.policy_version).all()
            assert not in_loss[start:end].any()
            in_loss[start:end] = True
        assert (sample.loss_mask == in_loss).all()
        assert not sample.logprobs[~in_loss].any()


@given(acts)
def test_turns_are_merged_wherever_they_can_be(plan: list[Act]):
    turns = played(plan)
    report = sampled(events_of(*turns)).report
    assert report.n_sequences == n_sequences_expected(turns)
    assert report.n_drifted == 0


@given(acts, st.randoms(use_true_random=False))
def test_the_order_of_turns_matters_only_between_prompts_of_one_length(plan: list[Act], rng: random.Random):
    turns = played(plan)
    shuffled = rng.sample(turns, len(turns))
    one, other = sampled(events_of(*turns)), sampled(events_of(*shuffled))
    contents = [Counter(sample.tokens.tobytes() for sample in each.samples) for each in (one, other)]
    assert contents[0] == contents[1]
    assert replace(one.report, n_drifted=0, n_forks=0) == replace(other.report, n_drifted=0, n_forks=0)
    lengths = [len(record.tokens["prompt_ids"]) for _, record in turns if not is_garbage(record)]
    if len(set(lengths)) == len(lengths):
        assert Counter(map(shown, one.samples)) == Counter(map(shown, other.samples))


def shown(sample: Sample) -> tuple[Any, ...]:
    arrays = (sample.tokens, sample.loss_mask, sample.logprobs, sample.versions)
    return (sample.agent, *(array.tobytes() for array in arrays), len(sample.text))


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=8), st.data())
def test_ids_alone_decide(completions: list[list[int]], data: st.DataObject):
    """Prompts that begin with an earlier end, or almost: with few ids there are many coincidences."""
    turns: list[TurnRecord] = []
    for completion in completions:
        base = data.draw(st.sampled_from(turns)) if turns else None
        start = [] if base is None else np.frombuffer(whole(base), np.int32).tolist()
        cut = data.draw(st.integers(0, len(start)))
        prompt = start[: max(cut, 1)] + data.draw(st.lists(st.integers(0, 3), min_size=not start, max_size=2))
        ids = [np.array(part, "<i4").tobytes() for part in (prompt, completion)]
        turns.append(turn((), assistant("?"), tokens=tokens_between(*ids)))
    samples = sampled(events_of(*turns)).samples
    assert Counter(index for sample in samples for index in sample.turns) == Counter(range(len(turns)))
    for sample in samples:
        assert sample.tokens.tobytes() == whole(turns[sample.turns[-1]])
        for index in sample.turns:
            assert sample.tokens.tobytes().startswith(whole(turns[index]))
