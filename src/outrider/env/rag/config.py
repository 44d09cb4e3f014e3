"""What the rag environments can be told."""

from typing import Annotated

from msgspec import Meta, Struct

from outrider.env.rag.corpus import PASSAGE_WORDS
from outrider.env.scoring import ScorerConfig


class EmbeddingsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An OpenAI-compatible server of vectors. Its key is read from the variable `api_key_env` names, never saved.

    `max_retries` counts the tries after the first; `deadline_seconds` bounds a request with all of them.
    """

    base_url: str
    model: str
    api_key_env: str | None = None
    batch_size: Annotated[int, Meta(ge=1)] = 64
    max_retries: Annotated[int, Meta(ge=0)] = 3
    deadline_seconds: Annotated[float, Meta(gt=0)] = 60.0


class RagConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`corpus`: a JSONL file or a folder of texts; None: the bundled one.

    `top_k` is how many passages a search gives, and the most it can be asked for. The index is kept in `index_dir`, or
    else in a folder `.outrider-index` beside the corpus, or where that cannot be written, in the user's cache. With
    `embeddings` a search goes by meaning too. `instructions` takes the place of the usual system message.
    """

    corpus: str | None = None
    top_k: Annotated[int, Meta(ge=1, le=100)] = 5
    passage_words: Annotated[int, Meta(ge=20)] = PASSAGE_WORDS
    index_dir: str | None = None
    embeddings: EmbeddingsConfig | None = None
    scorer: str = "exact_match"
    scorer_config: ScorerConfig = ScorerConfig()
    instructions: str | None = None
