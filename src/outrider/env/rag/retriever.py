"""Searching a corpus: by words, and where there are vectors by meaning too."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from outrider.env.rag.corpus import Passage
from outrider.env.rag.index import Index, nearest_rows

if TYPE_CHECKING:
    from outrider.env.rag.embeddings import Embedder

QUICK_PASSAGES = 20_000
"""How many passages are searched by words on the event loop: it takes about half a millisecond."""

_FUSION = 60
"""The constant of reciprocal rank fusion, as Cormack and others chose it in 2009."""

_DEPTH = 4
"""How many times more passages than asked for each of two rankings gives, for them to be fused."""


class Retriever:
    """An open corpus, shared by many episodes. `close` gives back its files, threads and connections."""

    def __init__(
        self, index: Index, threads: ThreadPoolExecutor, vectors: Any = None, embedder: "Embedder | None" = None
    ) -> None:
        self._index = index
        self._threads = threads
        self._vectors = vectors
        self._embedder = embedder

    async def search(self, query: str, k: int) -> list[Passage]:
        """At most `k` passages, the best first."""
        run = asyncio.get_running_loop().run_in_executor
        if self._embedder is not None:
            query_vector = (await self._embedder.embed([query]))[0]
            return await run(self._threads, self._by_both, query, query_vector, k)
        if len(self._index) > QUICK_PASSAGES:
            return await run(self._threads, self._by_words, query, k)
        return self._by_words(query, k)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._vectors = None
        self._index.close()
        if self._embedder is not None:
            await self._embedder.close()

    def _by_words(self, query: str, k: int) -> list[Passage]:
        return self._index.passages(self._index.search(query, k))

    def _by_both(self, query: str, query_vector: Any, k: int) -> list[Passage]:
        by_words = self._index.search(query, k * _DEPTH)
        by_meaning = nearest_rows(self._vectors, query_vector, k * _DEPTH)
        return self._index.passages(fused([by_words, by_meaning])[:k])


def fused(rankings: Sequence[Sequence[int]]) -> list[int]:
    """Rankings made one: a row counts by its places in them, not by scores that cannot be compared."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for place, row in enumerate(ranking, start=1):
            scores[row] = scores.get(row, 0.0) + 1.0 / (_FUSION + place)
    return sorted(scores, key=lambda row: (-scores[row], row))
