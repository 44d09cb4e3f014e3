import re
import sqlite3
from importlib.resources import files

import pytest

from outrider.core.ledger import GroupState
from outrider.core.machine import MachineState
from outrider.store import sql
from outrider.store.ledger_steps import GroupQuery
from outrider.store.machine_steps import MachineQuery, MoveQuery
from outrider.store.sql import migrations, queries
from outrider.store.sqlite import ledger_reads, machines
from outrider.store.sqlite import reads as sqlite_reads
from outrider.store.sqlite.file import connect

DATABASES = [entry.name for entry in files(sql).iterdir() if entry.is_dir() and not entry.name.startswith("_")]


@pytest.mark.parametrize("database", DATABASES)
def test_every_query_has_a_name_of_its_own_and_a_sentence(database: str):
    scripts = [entry for entry in files(sql).joinpath(database).iterdir() if entry.name.endswith(".sql")]
    texts = [script.read_text() for script in scripts if not script.name[:4].isdigit()]
    blocks = [block for text in texts for block in text.split("-- name: ")[1:]]
    names = [block.partition("\n")[0].strip() for block in blocks]
    assert len(set(names)) == len(names)
    for block in blocks:
        sentence = block.splitlines()[1]
        assert re.fullmatch(r"-- [A-Z].*", sentence), block


def test_fragments_are_filled_in_and_comments_left_out():
    found = queries("sqlite", current="c", ledger="l")
    assert found["current"] == "SELECT c FROM rollouts WHERE rollout_id = ?"
    assert found["ledgers"] == "SELECT l FROM ledgers ORDER BY name"
    for query in sqlite_reads.SQL.values():
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
    values = [None] * (len(set(re.findall(r"\?\d", query))) or query.count("?"))
    return [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {query}", values)]


def test_every_query_fits_the_schema(database: sqlite3.Connection):
    for query in sqlite_reads.SQL.values():
        _plan(database, query)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "next",
            "next_tags",
            "lane_head",
            "waiting_at",
            "rollout",
            "claimed_by_request",
            "claim",
            "current",
            "expired",
            "next_expiry",
        ),
        *("set_ended", "attempts", "current_at", "n_events", "held", "renew", "see_worker", "feed", "feed_end"),
        "latest_resources",
    ],
)
def test_a_query_on_the_way_of_a_claim_never_reads_a_whole_table(database: sqlite3.Connection, name: str):
    for step in _plan(database, sqlite_reads.SQL[name]):
        whole = re.match(r"SCAN (rollouts|r|attempts|a|inputs|i|events|workers|resources)\b", step)
        assert whole is None or name in {"feed_end", "next_expiry", "latest_resources"}, step


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("ledger", "SEARCH ledgers USING PRIMARY KEY"),
        ("set_ledger", "SEARCH ledgers USING PRIMARY KEY"),
        ("groups", "SEARCH groups USING PRIMARY KEY"),
        ("set_group", "SEARCH groups USING PRIMARY KEY"),
        ("set_clock", "SEARCH groups USING PRIMARY KEY"),
        ("count_groups", "SEARCH groups USING COVERING INDEX groups_by_state"),
        ("known_rollouts", "SEARCH rollouts USING COVERING INDEX"),
        ("insert_asks", "SEARCH r USING INDEX"),
        ("asks_after", "SEARCH a USING INDEX asks_open (ledger=? AND "),
        ("open_asks", "SEARCH asks USING INDEX"),
        ("set_granted", "SEARCH asks USING INDEX"),
        ("grants", "SEARCH asks USING INDEX"),
        ("forget_asks", "SEARCH asks USING INDEX asks_by_group"),
        ("insert_account", "SEARCH r USING INTEGER PRIMARY KEY"),
        ("ended_attempt", "SEARCH r USING INDEX"),
        ("accounts", "SEARCH a USING INDEX accounts_by_rollout"),
        ("late_accounts", "SEARCH a USING INDEX accounts_without_fate"),
        ("set_fate", "SEARCH accounts USING PRIMARY KEY"),
        ("tally", "SEARCH accounts USING COVERING INDEX accounts_tally"),
        ("progress", "SEARCH r USING INDEX rollouts_leases"),
    ],
)
def test_a_query_of_a_ledger_goes_by_an_index(database: sqlite3.Connection, name: str, index: str):
    plan = _plan(database, sqlite_reads.SQL[name])
    assert any(step.startswith(index) for step in plan), plan
    assert [step for step in plan if re.match(r"SCAN (?!(json_each|j) VIRTUAL)", step)] == []


@pytest.mark.parametrize(
    ("chosen", "index"),
    [
        ({}, "groups_by_number (ledger=?)"),
        ({"states": (GroupState.OPENED, GroupState.COMPLETE)}, "groups_by_state (ledger=? AND state=?)"),
        ({"group_ids": ("g1",)}, "PRIMARY KEY (group_id=?)"),
        ({"batch": 3}, "groups_by_batch (ledger=? AND batch=?)"),
        ({"batch": 3, "states": (GroupState.DELIVERED,)}, "groups_by_batch (ledger=? AND batch=?)"),
    ],
)
def test_groups_of_a_state_or_batch_are_found_without_reading_the_others(database, chosen, index: str):
    ran: list[str] = []
    database.set_trace_callback(ran.append)
    ledger_reads.groups(database, GroupQuery(ledger="l", limit=1, **chosen))
    database.set_trace_callback(None)
    assert len(ran) == 2
    for query in ran:
        assert any(index in step for step in _plan(database, query)), query


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("written", "SEARCH pools USING PRIMARY KEY"),
        ("set_written", "SEARCH pools USING PRIMARY KEY"),
        ("machines", "SEARCH machines USING PRIMARY KEY"),
    ],
)
def test_a_write_to_the_journal_of_machines_goes_by_an_index(database: sqlite3.Connection, name: str, index: str):
    plan = _plan(database, sqlite_reads.SQL[name])
    assert any(step.startswith(index) for step in plan), plan
    assert [step for step in plan if re.match(r"SCAN (?!json_each VIRTUAL)", step)] == []


@pytest.mark.parametrize(
    ("read", "index"),
    [
        (lambda db: machines.machines(db, MachineQuery(pool=None, states=(MachineState.READY,))), "(state=?)"),
        (lambda db: machines.machines(db, MachineQuery(pool="p", states=tuple(MachineState))), "(state=? AND pool=?)"),
        (lambda db: machines.machine_moves(db, MoveQuery(machine_id="m", limit=1)), "by_machine (machine_id=?)"),
        (lambda db: machines.machine_moves(db, MoveQuery(pool="p", limit=1)), "by_pool (pool=?)"),
        (lambda db: machines.machine_moves(db, MoveQuery(machine_id="m", pool="p")), "by_machine (machine_id=?)"),
    ],
)
def test_machines_of_a_state_and_moves_of_a_machine_are_found_without_reading_the_others(database, read, index: str):
    ran: list[str] = []
    database.set_trace_callback(ran.append)
    read(database)
    database.set_trace_callback(None)
    assert ran
    for query in ran:
        plan = _plan(database, query)
        assert any(index in step for step in plan), plan
        assert "moves" not in query or "USE TEMP B-TREE FOR ORDER BY" not in plan
