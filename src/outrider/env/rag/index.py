"""The index of a corpus on disk: BM25 by bm25s, and the passages themselves, both mapped into memory."""

import importlib
import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from outrider.core.decoding import json_decoder
from outrider.core.errors import EnvError, InvalidInput
from outrider.core.extras import install_command
from outrider.env.rag.cache import Damaged, check_whole
from outrider.env.rag.corpus import Passage
from outrider.env.rag.words import words_of

_PASSAGES = "passages.jsonl"
_STARTS = "starts.npy"
_VECTORS = "vectors.npy"


def libraries() -> tuple[Any, Any]:
    """bm25s and numpy, which take a quarter of a second to import: not on the event loop."""
    try:
        return importlib.import_module("bm25s"), importlib.import_module("numpy")
    except ImportError as exc:
        raise InvalidInput(f"searching a corpus needs libraries: {install_command('rag')}") from exc


def write_index(folder: Path, passages: Sequence[Passage]) -> None:
    """Write the index of `passages` to `folder`."""
    bm25s, np = libraries()
    vocabulary: dict[str, int] = {}
    ids = [
        [vocabulary.setdefault(word, len(vocabulary)) for word in words_of(f"{passage.title}\n{passage.text}")]
        for passage in passages
    ]
    if not vocabulary:
        raise InvalidInput("the corpus has no words in it")
    bm25 = bm25s.BM25()
    bm25.index((ids, vocabulary), show_progress=False)
    bm25.save(folder, show_progress=False)
    starts = [0]
    with (folder / _PASSAGES).open("wb") as file:
        for passage in passages:
            starts.append(starts[-1] + file.write(msgspec.json.encode(passage) + b"\n"))
    np.save(folder / _STARTS, np.array(starts, dtype=np.int64))


class Index:
    """An open index. Searching reads only, so several threads may do it."""

    def __init__(self, folder: Path) -> None:
        """Raises `Damaged` if the folder does not hold a whole index."""
        check_whole(folder)
        bm25s, self._np = libraries()
        try:
            self._bm25 = bm25s.BM25.load(folder, mmap=True)
            self._starts = self._np.load(folder / _STARTS, mmap_mode="r")
            with (folder / _PASSAGES).open("rb") as file:
                self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError, TypeError, KeyError) as exc:
            raise Damaged(str(exc)) from exc
        self._decoder = json_decoder(Passage)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def passages(self, rows: Iterable[int]) -> list[Passage]:
        return [self._decoder.decode(self._text[self._starts[row] : self._starts[row + 1]]) for row in rows]

    def search(self, query: str, k: int) -> list[int]:
        """The rows of the best passages, best first; only those that share a word with the query."""
        vocabulary = self._bm25.vocab_dict
        ids = [vocabulary[word] for word in words_of(query) if word in vocabulary]
        if not ids:
            return []
        return best_rows(self._np, self._bm25.get_scores_from_ids(ids), k, above=0.0)

    def close(self) -> None:
        self._text.close()
        self._bm25 = self._starts = None


def best_rows(np: Any, scores: Any, k: int, *, above: float) -> list[int]:
    """The `k` rows with the highest scores over `above`, best first; the earlier row where they are equal."""
    rows = np.flatnonzero(scores > above)
    scores = scores[rows]
    if len(rows) > k:
        kept = scores >= np.partition(scores, -k)[-k]
        rows, scores = rows[kept], scores[kept]
    found: list[int] = rows[np.lexsort((rows, -scores))][:k].tolist()
    return found


def save_vectors(folder: Path, arrays: Sequence[Any]) -> None:
    _, np = libraries()
    np.save(folder / _VECTORS, np.concatenate(arrays))


def load_vectors(folder: Path) -> Any:
    """The vectors, a row for each passage. Raises `Damaged` if they are not whole."""
    check_whole(folder)
    _, np = libraries()
    try:
        return np.load(folder / _VECTORS, mmap_mode="r")
    except (OSError, ValueError) as exc:
        raise Damaged(str(exc)) from exc


def nearest_rows(vectors: Any, query: Any, k: int) -> list[int]:
    """The `k` rows of `vectors` that point most where `query` does, best first. All have unit length."""
    _, np = libraries()
    if vectors.shape[1] != len(query):
        raise EnvError(
            f"the corpus has vectors of {vectors.shape[1]} numbers and the query one of {len(query)}; the server has "
            "another model than before: remove the index",
            stage="rag.search",
        )
    return best_rows(np, vectors @ query, k, above=-float("inf"))
