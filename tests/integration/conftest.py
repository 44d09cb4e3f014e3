"""A store in a file of its own, on real time, for what runs on top of stores."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outrider import Store, open_store


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    async with open_store(store_url) as opened:
        yield opened
