"""A store in a file of its own, on real time, for what runs on top of stores; the programs of the bench folder."""

import importlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from outrider import Store, open_store

HARMFUL = frozenset({
    "test_agents_from_hell", "test_channel_durable", "test_machines_on_ray", "test_postgres_faults", "test_rollout",
    "test_rollout_machines", "test_rollout_workers", "test_run", "test_run_machines", "test_run_on_ray",
    "test_scheduler_faults", "test_scheduler_takeover", "test_sqlite_disk", "test_sqlite_processes", "test_supervisor",
})  # fmt: skip
"""Where processes are killed and answers are lost: what stores were asked is recorded there, and checked in the end."""


@pytest.fixture(autouse=True)
def _checked(request: pytest.FixtureRequest) -> None:
    if request.path.stem in HARMFUL:
        request.getfixturevalue("history")


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    async with open_store(store_url) as opened:
        yield opened


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of the bench folder, as its programs do."""
    bench = Path(__file__).parents[2] / "bench"
    monkeypatch.syspath_prepend(bench)
    yield importlib.import_module
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(f"{bench}/"):
            del sys.modules[name]
