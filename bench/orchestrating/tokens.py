"""A tokenizer for the benchmark: byte-level BPE, trained on the text of this checkout."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from outrider.policy.engine import HuggingFaceTokenizer

ROOT = Path(__file__).parents[2]
TEXTS = ("README.md", "docs/**/*.md", "src/**/*.py", "tests/**/*.py")
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
MAX_VOCABULARY = 32_000
MIN_FREQUENCY = 2


class CountingTokenizer:
    """Counts the tokens that it makes, and the CPU seconds that it takes for them."""

    def __init__(self, inner: Tokenizer) -> None:
        self._inner = HuggingFaceTokenizer(inner)
        self.n_tokens = 0
        self.seconds = 0.0

    def encode(self, text: str) -> Sequence[int]:
        began = time.thread_time()
        ids = self._inner.encode(text)
        self.seconds += time.thread_time() - began
        self.n_tokens += len(ids)
        return ids

    def decode(self, ids: list[int]) -> str:
        return self._inner.decode(ids)

    def parts(self, text: str) -> Iterable[str]:
        return self._inner.parts(text)


def trained(patterns: tuple[str, ...] = TEXTS) -> tuple[CountingTokenizer, int]:
    """The tokenizer and the size of its vocabulary: as many entries as the text has pairs that stand in it twice."""
    texts = [path.read_text() for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MAX_VOCABULARY,
        min_frequency=MIN_FREQUENCY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return CountingTokenizer(made), made.get_vocab_size()
