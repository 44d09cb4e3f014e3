"""A blocking engine in its thread, whole episodes over token ids, and their recordings."""

import asyncio
import json
import re
import threading
from pathlib import Path

import pytest

from guessing import HIGHEST, play
from leaks import no_leaks
from outrider.core.chat import user
from outrider.core.errors import PolicyError
from outrider.core.event import EventKind
from outrider.core.turn import turn_of
from outrider.policy.engine import EnginePolicy, TokenReply
from outrider.policy.recording import open_recording, open_replay
from outrider.testing import eventually
from outrider.train import sampled
from token_engine import AsyncEngine, WordTokenizer, prompt_of, sampled_in, says

ASKED = [user("Hi")]


class BlockingEngine:
    """Echoes prompts. It remembers the threads it was called in, and stops in a call while it is held."""

    def __init__(self):
        self.threads = set()
        self.sizes = []
        self.in_call = threading.Event()
        self.free = threading.Event()
        self.free.set()
        self._one_at_a_time = threading.Lock()

    def generate(self, requests):
        assert self._one_at_a_time.acquire(blocking=False)
        try:
            self.threads.add(threading.current_thread())
            self.sizes.append(len(requests))
            self.in_call.set()
            assert self.free.wait(60)
            return [TokenReply(ids=asked.prompt_ids) for asked in requests]
        finally:
            self._one_at_a_time.release()


async def test_a_blocking_engine_serves_a_thousand_callers_from_one_thread():
    engine = BlockingEngine()
    async with no_leaks():
        policy = EnginePolicy(engine, WordTokenizer())
        asked = [policy.complete([user(f"question {number}")]) for number in range(1000)]
        completions = await asyncio.gather(*asked)
        assert all(sampled_in(one) == prompt_of(one) for one in completions)
        assert all(f"question {number}" in one.message.content for number, one in enumerate(completions))
        assert len(engine.threads) == 1
        assert engine.threads != {threading.current_thread()}
        assert (sum(engine.sizes), max(engine.sizes)) == (1000, 256)
        statistics = policy.statistics()
        assert (statistics.n_requests, statistics.n_batches) == (1000, len(engine.sizes))
        await policy.close()


async def test_a_blocking_engine_that_does_not_return_keeps_nobody_and_is_used_again_when_it_does():
    engine = BlockingEngine()
    engine.free.clear()
    policy = EnginePolicy(engine, WordTokenizer(), deadline_seconds=0.05)
    async with no_leaks():
        with pytest.raises(PolicyError, match="within its deadline"):
            await policy.complete(ASKED)
        with pytest.raises(PolicyError, match="within its deadline"):
            await policy.complete(ASKED)
        assert engine.sizes == [1]
        engine.free.set()

        async def answers():
            return await policy.complete(ASKED)

        await eventually(answers)
        await policy.close()


async def test_closing_does_not_wait_for_an_engine_that_is_stuck(monkeypatch):
    monkeypatch.setattr("outrider.policy.engine.calling.CLOSE_SECONDS", 0.05)
    engine = BlockingEngine()
    engine.free.clear()
    async with no_leaks():
        policy = EnginePolicy(engine, WordTokenizer())
        asked = asyncio.ensure_future(policy.complete(ASKED))

        async def is_in_call():
            return engine.in_call.is_set()

        await eventually(is_in_call)
        async with asyncio.timeout(30):
            await policy.close()
            with pytest.raises(PolicyError, match="closed before"):
                await asked
        engine.free.set()


@pytest.mark.parametrize("error", [ValueError("wrong"), SystemExit(3), StopIteration()])
async def test_whatever_a_blocking_engine_raises_its_requests_fail_and_the_next_are_served(error):
    class Failing(BlockingEngine):
        def generate(self, requests):
            if not self.sizes:
                self.sizes.append(0)
                raise error
            return super().generate(requests)

    policy = EnginePolicy(Failing(), WordTokenizer())
    with pytest.raises(PolicyError, match=type(error).__name__):
        await policy.complete(ASKED)
    await policy.complete(ASKED)
    await policy.close()


async def test_a_coroutine_from_a_function_that_is_not_async_is_named():
    inner = AsyncEngine()

    class Wrapped:
        def generate(self, requests):
            return inner.generate(requests)

    policy = EnginePolicy(Wrapped(), WordTokenizer())
    with pytest.raises(PolicyError, match="write `async def generate`"):
        await policy.complete(ASKED)
    await policy.close()


def guesser(tokenizer: WordTokenizer) -> AsyncEngine:
    """Plays the guessing game: all that it knows, it reads from the ids of its prompt."""

    def answer(asked):
        low, high = 1, HIGHEST
        for said in re.findall(r"<tool_response>\n(\w+)\n", tokenizer.decode(asked.prompt_ids)):
            middle = (low + high) // 2
            low, high = (middle + 1, high) if said == "higher" else (low, middle - 1)
        number = (low + high) // 2
        return says(f'Halve it.\n<tool_call>\n{{"name": "guess", "arguments": {{"number": {number}}}}}\n</tool_call>')

    return AsyncEngine(answer)


async def test_an_episode_over_token_ids_is_one_sample_to_train_on():
    tokenizer = WordTokenizer()
    policy = EnginePolicy(guesser(tokenizer), tokenizer, model="tiny")
    played = await play(policy, seed=3)
    turns = [turn_of(event) for event in played.of(EventKind.TURN)]
    assert played.rollout.reward == 1.0
    assert len(turns) > 2
    assert {(turn.model, turn.finish_reason) for turn in turns} == {("tiny", "tool_calls")}
    assert len(sampled(played.events).samples) == 1
    assert policy.statistics().n_hits > 0
    await policy.close()


async def test_a_recording_of_it_is_replayed_and_so_is_one_from_before_queues_were_timed(tmp_path: Path):
    tokenizer = WordTokenizer()
    path = tmp_path / "calls.jsonl"
    recorded = await open_recording(EnginePolicy(guesser(tokenizer), tokenizer), str(path))
    first = await play(recorded, rollout_id="r0", seed=3)
    await recorded.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(line["completion"].pop("queue_seconds") > 0 for line in lines)
    old = tmp_path / "old.jsonl"
    old.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for recording in (path, old):
        replayed = await open_replay(str(recording))
        again = await play(replayed, rollout_id="r0", seed=3)
        await replayed.close()
        turns = [[turn_of(event).tokens for event in one.of(EventKind.TURN)] for one in (first, again)]
        assert turns[0] == turns[1]
