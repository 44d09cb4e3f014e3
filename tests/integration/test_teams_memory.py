"""A team takes as much memory as its rows have text: a prompt and a reply are kept once, however long they are."""

import subprocess
import sys

import pytest

PLAYED = """
import asyncio, resource, sys
from outrider.core.chat import assistant
from outrider.orchestra import Agent, Orchestra, Performance, VerdictRule
from outrider.policy import ChatPolicy, Completion

N_SAMPLES, N_ROUNDS, N_CHARACTERS = 8, 3, 1_000_000
letter, limit = sys.argv[1], int(sys.argv[2]) or None

class Talker(ChatPolicy):
    async def complete(self, messages, *, tools=(), sampling=None, session=""):
        return Completion(message=assistant(letter * N_CHARACTERS + "<verify>no</verify>"))
    async def check(self, sampling=None): ...
    async def close(self): ...

async def play(team):
    for _ in team.rounds(N_ROUNDS):
        said = await team.call("solver")
        team.approve(await team.call("critic"))
    return said.text

agents = [Agent(name="solver", prompt="{context}"), Agent(name="critic", prompt="{context}", parse=VerdictRule())]
team = Orchestra(agents, play, performance=Performance(max_context_length=limit))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
result = asyncio.run(team.run([f"question {n}" for n in range(N_SAMPLES)], policy=Talker()))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
texts = [message.content for row in result.rows for message in (*row.request, row.reply)]
assert len(result.rows) == N_SAMPLES * N_ROUNDS * 2
print(peak, sum(map(sys.getsizeof, texts)), sum(sys.getsizeof(row.reply.content) for row in result.rows))
"""
SLACK_BYTES = 40 * 2**20
"""What is under way at once: a prompt that is joined, a reply that is parsed, eight samples of them at the most."""


@pytest.mark.parametrize("letter", ["x", "€"])
def test_long_replies_take_the_memory_of_their_rows(letter: str):
    peak, text, _ = played(letter, limit=0)
    assert text > 160_000_000
    assert peak < 1.15 * text + SLACK_BYTES


def test_a_limit_of_the_context_is_kept_before_anything_is_joined():
    peak, text, replies = played("x", limit=10_000)
    assert text < 1.01 * replies
    assert peak < 1.15 * replies + SLACK_BYTES


def played(letter: str, limit: int) -> list[int]:
    """Bytes: the peak of the process over where it began, the texts of all rows, and those of the replies alone."""
    done = subprocess.run(
        [sys.executable, "-c", PLAYED, letter, str(limit)], capture_output=True, text=True, timeout=120, check=True
    )
    return [int(word) for word in done.stdout.split()]
