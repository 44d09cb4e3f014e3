"""What the rag environments can be told."""

from typing import Annotated

from msgspec import Struct

from outrider.core.bounds import MAX_COUNT, Count, PositiveCount, PositiveSeconds, Within, check_bounds
from outrider.env.rag.corpus import PASSAGE_WORDS
from outrider.env.scoring import ScorerConfig


class EmbeddingsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An OpenAI-compatible server of vectors. Its key is read from the variable `api_key_env` names, never saved.

    `max_retries` counts the tries after the first; `deadline_seconds` bounds a request with all of them.
    """

    base_url: str
    model: str
    api_key_env: str | None = None
    batch_size: PositiveCount = 64
    max_retries: Count = 3
    deadline_seconds: PositiveSeconds = 60.0

    def __post_init__(self) -> None:
        check_bounds(self)


class RagConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`corpus`: a JSONL file or a folder of texts; None: the bundled one.

    `top_k` is how many passages a search gives, and the most it can be asked for. The index is kept in `index_dir`, or
    else in a folder `.outrider-index` beside the corpus, or where that cannot be written, in the user's cache. With
    `embeddings` a search goes by meaning too. `instructions` takes the place of the usual system message.
    """

    corpus: str | None = None
    top_k: Annotated[int, Within(1, 100)] = 5
    passage_words: Annotated[int, Within(20, MAX_COUNT)] = PASSAGE_WORDS
    index_dir: str | None = None
    embeddings: EmbeddingsConfig | None = None
    scorer: str | None = None
    scorer_config: ScorerConfig = ScorerConfig()
    instructions: str | None = None

    def __post_init__(self) -> None:
        check_bounds(self)
