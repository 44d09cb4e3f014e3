"""A store in a file of its own, on real time, for what runs on top of stores; the programs of the bench folder."""

import importlib
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from history_checking import unrecorded_in
from outrider import Store, open_store

HARMFUL = frozenset({
    "test_counts_after_kills", "test_desktop_leases", "test_postgres_faults", "test_scheduler_takeover",
    "test_sqlite_processes",
})  # fmt: skip
"""Where answers are lost in other ways than by signals that the test itself sends, or which others send for it."""

KILLS = re.compile(r"SIGKILL|SIGSTOP|\.kill\(")
OPENS_A_STORE = re.compile(r"open_store|store_url|postgres_url|run_outrider|OUTRIDER\b")


@cache
def is_harmful(path: Path) -> bool:
    """Whether what the tests of a file ask of stores is recorded, and checked in the end."""
    source = path.read_text()
    return path.stem in HARMFUL or bool(KILLS.search(source) and OPENS_A_STORE.search(source))


@pytest.fixture(autouse=True)
def _checked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Also fails a test whose workers are not recorded."""
    folder = request.getfixturevalue("history") if is_harmful(request.path) else None
    yield
    assert folder is None or not (found := unrecorded_in(folder)), f"no claim is recorded of {sorted(found)}"


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
