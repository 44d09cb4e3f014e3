"""Opening a corpus: what stands on disk already is used, what does not is made, once, whoever comes first."""

import asyncio
import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from outrider.core.errors import EnvError, InvalidInput
from outrider.env.rag.cache import FORMAT, Damaged, locked, new_part, publish
from outrider.env.rag.config import EmbeddingsConfig
from outrider.env.rag.corpus import digest_of, passages_of, read_documents, read_files
from outrider.env.rag.index import Index, libraries, load_vectors, save_vectors, write_index
from outrider.env.rag.retriever import Retriever

T = TypeVar("T")

_EMBEDDED_AT_ONCE = 1_024


async def open_retriever(
    corpus: Path, *, passage_words: int, folders: Sequence[Path], embeddings: EmbeddingsConfig | None = None
) -> Retriever:
    """The corpus, ready to be searched; its index in one of `folders`, made in the first that can be written.

    Raises `InvalidInput` for a corpus that cannot be used, or if no folder can be written.
    """
    threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="rag")
    opening = _Opening(corpus, passage_words, folders, threads)
    try:
        return await opening.retriever(embeddings)
    except BaseException:
        threads.shutdown(wait=False, cancel_futures=True)
        raise


def index_folders(corpus: Path, index_dir: str | None, *, is_bundled: bool) -> list[Path]:
    """Where the index of a corpus may be kept. A package's own folder is not ours to write to."""
    if index_dir is not None:
        return [Path(index_dir)]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "outrider" / "rag"
    return [cache] if is_bundled else [corpus.absolute().parent / ".outrider-index", cache]


class _Opening:
    """The steps of opening one corpus. What touches the disk runs in threads."""

    def __init__(self, corpus: Path, passage_words: int, folders: Sequence[Path], threads: ThreadPoolExecutor) -> None:
        self._corpus = corpus
        self._passage_words = passage_words
        self._folders = folders
        self._threads = threads

    async def retriever(self, embeddings: EmbeddingsConfig | None) -> Retriever:
        await self._in_thread(libraries)
        key = await self._in_thread(self._key)
        index = await self._kept(key, Index, lambda part: self._in_thread(self._make_index, part, key))
        if embeddings is None:
            return Retriever(index, self._threads)
        try:
            return await self._with_vectors(key, index, embeddings)
        except BaseException:
            index.close()
            raise

    async def _with_vectors(self, key: str, index: Index, config: EmbeddingsConfig) -> Retriever:
        from outrider.env.rag.embeddings import Embedder  # noqa: PLC0415 it brings the HTTP client along

        async def make(part: Path) -> None:
            arrays = []
            for start in range(0, len(index), _EMBEDDED_AT_ONCE):
                rows = range(start, min(start + _EMBEDDED_AT_ONCE, len(index)))
                passages = await self._in_thread(index.passages, rows)
                arrays.append(await embedder.embed([f"{passage.title}\n{passage.text}" for passage in passages]))
            await self._in_thread(save_vectors, part, arrays)

        embedder = Embedder(config, self._threads)
        try:
            made_by = blake2b(f"{config.base_url}\0{config.model}".encode(), digest_size=8).hexdigest()
            vectors = await self._kept(f"{key}-{made_by}", load_vectors, make)
        except BaseException:
            await embedder.close()
            raise
        return Retriever(index, self._threads, vectors, embedder)

    async def _kept(self, name: str, load: Callable[[Path], T], make: Callable[[Path], Awaitable[None]]) -> T:
        """What `load` finds in a folder of that name; made first where there is none, or a damaged one."""
        for folder in self._folders:
            try:
                return await self._in_thread(load, folder / name)
            except Damaged:
                continue
        place = await self._in_thread(_writable, self._folders) / name
        async with locked(place):
            try:
                return await self._in_thread(load, place)  # another process may just have made it
            except Damaged:
                await self._make(place, make)
                return await self._in_thread(load, place)

    async def _make(self, place: Path, make: Callable[[Path], Awaitable[None]]) -> None:
        part = await self._in_thread(new_part, place)
        try:
            await make(part)
            await self._in_thread(publish, part, place)
        except BaseException as exc:
            shutil.rmtree(part, ignore_errors=True)
            if isinstance(exc, OSError):
                raise EnvError(f"the index cannot be written to {place.parent}: {exc}", stage="rag.index") from exc
            raise

    def _make_index(self, part: Path, key: str) -> None:
        files = list(read_files(self._corpus))
        if self._key_of(digest_of(files)) != key:
            raise EnvError(f"the corpus {self._corpus} changed while it was being read", stage="rag.index")
        try:
            documents = read_documents(files)
        except InvalidInput as exc:
            raise InvalidInput(f"the corpus {self._corpus} cannot be used: {exc}") from exc
        write_index(part, [passage for each in documents for passage in passages_of(each, self._passage_words)])

    def _key(self) -> str:
        return self._key_of(digest_of(read_files(self._corpus)))

    def _key_of(self, digest: str) -> str:
        made_by = f"{FORMAT} bm25s {importlib.metadata.version('bm25s')} {self._passage_words}"
        return blake2b(f"{made_by} {digest}".encode(), digest_size=16).hexdigest()

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)


def _writable(folders: Sequence[Path]) -> Path:
    problem: OSError | None = None
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError as exc:
            problem = exc
    raise InvalidInput(f"there is no place for the index: {problem}; give a folder as `index_dir`") from problem
