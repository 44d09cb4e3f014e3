import re
import sqlite3
from importlib.resources import files

import pytest

from outrider.store import sql
from outrider.store.sql import migrations, queries
from outrider.store.sqlite import reads as sqlite_reads
from outrider.store.sqlite.file import connect

DATABASES = [entry.name for entry in files(sql).iterdir() if entry.is_dir() and not entry.name.startswith("_")]


@pytest.mark.parametrize("database", DATABASES)
def test_every_query_has_a_name_of_its_own_and_a_sentence(database: str):
    text = files(sql).joinpath(database, "queries.sql").read_text()
    blocks = text.split("-- name: ")[1:]
    names = [block.partition("\n")[0].strip() for block in blocks]
    assert len(set(names)) == len(names)
    for block in blocks:
        sentence = block.splitlines()[1]
        assert re.fullmatch(r"-- [A-Z].*", sentence), block


def test_fragments_are_filled_in_and_comments_left_out():
    found = queries("sqlite", given="r.g", rollout="r.a", attempt="a.b", last_attempt="r.b", current="c")
    assert found["current"] == "SELECT c FROM rollouts WHERE rollout_id = ?"
    for query in found.values():
        assert "{" not in query
        assert "--" not in query


@pytest.mark.parametrize("database", DATABASES)
def test_migrations_are_numbered_from_one_without_a_gap(database: str):
    names = sorted(entry.name for entry in files(sql).joinpath(database).iterdir() if entry.name[:4].isdigit())
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
    assert len(migrations(database)) == len(names) >= 1


@pytest.fixture
def database(tmp_path):
    connection = connect(tmp_path / "runs.db", synchronous="normal", create=True, migrate=True)
    yield connection
    connection.close()


def _plan(database: sqlite3.Connection, query: str) -> list[str]:
    values = [None] * (1 if "?1" in query else query.count("?"))
    return [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {query}", values)]


def test_every_query_fits_the_schema(database: sqlite3.Connection):
    for query in sqlite_reads.SQL.values():
        _plan(database, query)


@pytest.mark.parametrize(
    "name",
    [
        *("lanes", "lane_head", "rollout", "claimed_by_request", "claim", "current", "expired", "next_expiry"),
        *("set_ended", "attempts", "current_at", "n_events", "held", "renew", "see_worker", "feed", "feed_end"),
        "latest_resources",
    ],
)
def test_a_query_on_the_way_of_a_claim_never_reads_a_whole_table(database: sqlite3.Connection, name: str):
    for step in _plan(database, sqlite_reads.SQL[name]):
        whole = re.match(r"SCAN (rollouts|r|attempts|a|inputs|i|events|workers|resources)\b", step)
        assert whole is None or name in {"feed_end", "next_expiry", "latest_resources"}, step
