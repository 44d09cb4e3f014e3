"""A first day with servers that have the habits of real ones; against the real ones it is a part of the soak."""

import asyncio
from pathlib import Path

import pytest

from first_day import evaluate_three_things, make_ten_mistakes
from outrider.testing import ModelServer
from outrider.testing.model_server import Manner


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OUTRIDER_STORE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("manner", "key"),
    [(Manner.TRANSFORMERS, ()), (Manner.LITELLM, ("--api-key-env", "PROXY_KEY"))],
    ids=["transformers", "litellm"],
)
async def test_a_first_day_has_three_results_and_ten_mistakes_with_a_line_each(manner: Manner, key: tuple[str, ...]):
    async with ModelServer("B", manner=manner, key="sk-proxy" if key else None) as server:
        flags = ("--base-url", server.base_url, "--model", "test-model", *key)
        await asyncio.to_thread(evaluate_three_things, flags, PROXY_KEY="sk-proxy")
        answers = await asyncio.to_thread(make_ten_mistakes, server.base_url, "test-model", *key, PROXY_KEY="sk-proxy")
    assert len(answers) == 10
