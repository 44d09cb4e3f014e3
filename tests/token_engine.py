"""A tokenizer with words and single characters, so that a text has many spellings, and engines to try policies with."""

import asyncio
import re
from array import array
from collections.abc import Callable, Sequence

from outrider.policy import Completion, Sampling
from outrider.policy.engine import TokenReply, TokenRequest
from outrider.policy.engine.packing import unpack_ids

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
START, END, END_OF_TEXT = range(3)
FIRST_CHARACTER = 10
FIRST_WORD = FIRST_CHARACTER + 0x110000


class WordTokenizer:
    """Each new word gets the next id. As the tokenizers of models do, it takes special tokens wherever they stand."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        self.texts: list[str] = []

    def encode(self, text: str) -> list[int]:
        self.texts.append(text)
        parts = re.split("(" + "|".join(map(re.escape, SPECIAL)) + ")", text)
        return [id for part in parts for id in self._ids(part)]

    def decode(self, ids: Sequence[int]) -> str:
        known = {id: word for word, id in self.words.items()}
        return "".join(
            SPECIAL[id] if id < FIRST_CHARACTER else known[id] if id >= FIRST_WORD else chr(id - FIRST_CHARACTER)
            for id in ids
        )

    def _ids(self, part: str) -> list[int]:
        if part in SPECIAL:
            return [SPECIAL.index(part)]
        words = re.findall(r" ?\w+|\s+|[^\w\s]", part)
        return [self.words.setdefault(word, FIRST_WORD + len(self.words)) for word in words]


def spelled(text: str) -> list[int]:
    """The text as a model might sample it: character by character, as the tokenizer itself never would."""
    return [FIRST_CHARACTER + ord(character) for character in text]


def says(text: str, *, end: Sequence[int] = (END,)) -> TokenReply:
    ids = [*spelled(text), *end]
    return TokenReply(ids=ids, logprobs=[-0.5] * len(ids))


class AsyncEngine:
    """Answers each request with what `answer` returns, after `seconds`. `batches` has when each came, and its size."""

    def __init__(self, answer: Callable[[TokenRequest], object] = lambda _: says("yes"), seconds: float = 0.0) -> None:
        self.batches: list[tuple[float, int]] = []
        self.requests: list[TokenRequest] = []
        self.n_running = 0
        self._answer = answer
        self._seconds = seconds

    async def generate(self, requests: Sequence[TokenRequest]) -> Sequence[TokenReply | Exception]:
        assert self.n_running == 0
        self.n_running += 1
        try:
            self.batches.append((asyncio.get_running_loop().time(), len(requests)))
            self.requests += requests
            await asyncio.sleep(self._seconds)
            return [self._answer(request) for request in requests]  # type: ignore[misc]
        finally:
            self.n_running -= 1


def prompt_of(completion: Completion) -> "array[int]":
    assert completion.tokens is not None
    return unpack_ids(completion.tokens.prompt_ids)


def sampled_in(completion: Completion) -> "array[int]":
    assert completion.tokens is not None
    return unpack_ids(completion.tokens.completion_ids)


def request(*ids: int) -> TokenRequest:
    return TokenRequest(prompt_ids=array("i", ids), sampling=Sampling())
