import re
from pathlib import Path

import pytest

from outrider.core.errors import InvalidInput
from outrider.store import open_store
from outrider.store.memory.store import MemoryStore
from outrider.store.sqlite.store import SqliteStore


@pytest.mark.parametrize(
    "url",
    [
        "",
        "runs.db",
        "/tmp/runs.db",
        "mysql://host/db",
        "sqlite:runs.db",
        "sqlite:/runs.db",
        "sqlite://runs.db",
        "sqlite://host/runs.db",
        "sqlite://",
        "sqlite:///",
        "sqlite:////",
        "sqlite:///:memory:",
        "sqlite:///runs.db?mode=ro",
        "sqlite:///runs.db?synchronous=off",
        "sqlite:///runs.db?synchronous=",
        "sqlite:///runs.db#part",
        "sqlite:///runs\0.db",
        "http://[half",
    ],
)
def test_a_bad_url_is_refused_with_a_hint(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=r"memory://|sqlite:///"):
        open_store(url)
    assert list(tmp_path.iterdir()) == []


async def test_each_scheme_opens_its_engine(tmp_path: Path):
    async with open_store("memory://") as store:
        assert isinstance(store, MemoryStore)
    async with open_store(f"sqlite:///{tmp_path}/runs.db?durability=full") as store:
        assert isinstance(store, SqliteStore)
        assert store.url.shown.endswith("?durability=full")


@pytest.mark.parametrize(("options", "level"), [("", 1), ("?durability=normal", 1), ("?durability=FULL", 2)])
async def test_durability_is_how_sqlite_commits(tmp_path: Path, options: str, level: int):
    async with open_store(f"sqlite:///{tmp_path}/runs.db{options}") as store:
        assert isinstance(store, SqliteStore)
        assert await store._write(lambda desk: desk.connection.execute("PRAGMA synchronous").fetchone()) == (level,)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:///runs.db?durability=ful", "no durability 'ful' (did you mean 'full'?)"),
        ("sqlite:///runs.db?durability=", "give ?durability=normal or ?durability=full"),
        ("sqlite:///runs.db?durabilty=full", "no option 'durabilty' (did you mean 'durability'?)"),
        ("postgresql://u@h/d?durability=fulll", "no durability 'fulll' (did you mean 'full'?)"),
        ("memory://?durability=full", "it ends with its process"),
    ],
)
def test_a_wrong_durability_is_refused_with_the_nearest(url: str, said: str):
    with pytest.raises(InvalidInput, match=re.escape(said)):
        open_store(url)


async def test_the_old_name_of_durability_works_and_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async with open_store(f"sqlite:///{tmp_path}/runs.db?synchronous=full") as store:
        assert isinstance(store, SqliteStore)
        assert await store._write(lambda desk: desk.connection.execute("PRAGMA synchronous").fetchone()) == (2,)
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "?synchronous= is now called ?durability="
    ]


async def test_a_relative_path_lies_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    async with open_store("sqlite:///my runs.db"):
        assert (tmp_path / "my runs.db").exists()


async def test_a_store_can_be_awaited_and_closed_by_hand(tmp_path: Path):
    store = await open_store(f"sqlite:///{tmp_path}/runs.db")
    async with store:
        await store.enqueue_rollout(1)
    async with open_store(f"sqlite:///{tmp_path}/runs.db", create=False) as again:
        assert (await again.query_rollouts()).total == 1


async def test_a_store_that_must_exist_is_not_made(tmp_path: Path):
    with pytest.raises(InvalidInput, match="no store"):
        await open_store(f"sqlite:///{tmp_path}/runs.db", create=False)
    assert not (tmp_path / "runs.db").exists()
