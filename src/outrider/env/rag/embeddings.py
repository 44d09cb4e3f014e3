"""Vectors of texts from an OpenAI-compatible server, for searching by meaning."""

import asyncio
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from msgspec import Struct

from outrider.core.clock import SystemClock, sleep
from outrider.core.decoding import from_json
from outrider.core.errors import EnvError, PolicyError
from outrider.env.rag.config import EmbeddingsConfig
from outrider.env.rag.index import libraries
from outrider.policy.openai.address import base_urls, key_variables, keys_of
from outrider.policy.openai.backoff import pause
from outrider.policy.openai.failure import Setback, error_of, refusal_of
from outrider.policy.openai.transport import HttpTransport
from outrider.policy.spec import PolicySpec

_OK = 200


class _Vector(Struct):
    """One text's vector; `index` is the text's place in the request."""

    embedding: list[float]
    index: int | None = None


class _Reply(Struct):
    """The answer to POST /embeddings."""

    data: list[_Vector]


def server_of(config: EmbeddingsConfig) -> PolicySpec:
    """The server of vectors, described as that of a policy."""
    named = () if config.api_key_env is None else (config.api_key_env,)
    return PolicySpec(model=config.model, base_urls=(config.base_url,), api_key_env=named, takes_default_key=False)


class Embedder:
    """Asks for vectors. Made on the event loop that uses it; `threads` do its sums and belong to the caller."""

    def __init__(self, config: EmbeddingsConfig, threads: ThreadPoolExecutor) -> None:
        self._config = config
        self._threads = threads
        spec = server_of(config)
        self._url = base_urls(spec)[0] / "embeddings"
        self._clock = SystemClock()
        self._rng = random.Random()
        self._transport = HttpTransport(keys_of(spec), self._clock)
        self._key_variable = next(iter(key_variables(spec).values()), None)

    async def embed(self, texts: Sequence[str]) -> Any:
        """One row of unit length for each text, as a numpy array. Raises `EnvError`."""
        batches = [texts[at : at + self._config.batch_size] for at in range(0, len(texts), self._config.batch_size)]
        rows = [vector for batch in batches for vector in await self._embed_batch(batch)]
        return await asyncio.get_running_loop().run_in_executor(self._threads, _unit_rows, rows)

    async def close(self) -> None:
        await self._transport.close()

    async def _embed_batch(self, texts: Sequence[str]) -> list[list[float]]:
        body = msgspec.json.encode({"model": self._config.model, "input": list(texts), "encoding_format": "float"})
        try:
            async with asyncio.timeout(self._config.deadline_seconds):
                reply = await self._retried(body)
        except TimeoutError as exc:
            limit = self._config.deadline_seconds
            raise EnvError(f"{self._url} gave no vectors within {limit:g} s", stage="rag.embed") from exc
        except PolicyError as exc:
            raise EnvError(f"no vectors: {exc}", stage="rag.embed") from exc
        return self._in_order(reply, len(texts))

    async def _retried(self, body: bytes) -> bytes:
        for n_retries in range(self._config.max_retries + 1):
            try:
                return await self._asked(body)
            except Setback as exc:
                if n_retries == self._config.max_retries:
                    raise
                await sleep(self._clock, pause(n_retries, exc.asked_seconds, self._rng))
        raise AssertionError("the last try returns or raises")

    async def _asked(self, body: bytes) -> bytes:
        exchange = await self._transport.post(self._url, body)
        if exchange.status == _OK:
            return exchange.body
        raise error_of(
            refusal_of(exchange.status, exchange.body),
            exchange.headers,
            model=self._config.model,
            key_variable=self._key_variable,
            url=str(self._url),
            now=self._clock.time(),
        )

    def _in_order(self, reply: bytes, n_texts: int) -> list[list[float]]:
        try:
            vectors = from_json(reply, _Reply).data
        except msgspec.DecodeError as exc:
            raise EnvError(f"{self._url} did not answer with vectors: {exc}", stage="rag.embed") from exc
        if all(vector.index is not None for vector in vectors):
            vectors.sort(key=lambda vector: vector.index or 0)
        if len(vectors) != n_texts:
            raise EnvError(f"{self._url} gave {len(vectors)} vectors for {n_texts} texts", stage="rag.embed")
        return [vector.embedding for vector in vectors]


def _unit_rows(rows: list[list[float]]) -> Any:
    _, np = libraries()
    if len({len(row) for row in rows}) != 1 or not rows[0]:
        raise EnvError("the vectors have different lengths or none", stage="rag.embed")
    with np.errstate(over="ignore"):
        array = np.array(rows, dtype=np.float32)
        lengths = np.linalg.norm(array, axis=1, keepdims=True)
    if not np.isfinite(lengths).all():
        raise EnvError("the vectors have numbers that are not finite", stage="rag.embed")
    return array / np.maximum(lengths, np.finfo(np.float32).tiny)
