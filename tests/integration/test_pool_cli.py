"""`outrider pool ls`, as a user and as a script meet it."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from machine_journal import owner_of
from outrider.store import open_store
from processes import run_outrider


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OUTRIDER_STORE", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


def pool_ls(*arguments: str, code: int = 0) -> str:
    store = () if "--store" in arguments else ("--store", "sqlite:///outrider.db")
    done = run_outrider("pool", "ls", *store, *arguments, code=code)
    return done.stderr if code else done.stdout


async def _fill() -> None:
    async with open_store("sqlite:///outrider.db") as store:
        desk = await owner_of(store, "desk")
        await owner_of(store, "vms")
        vms = await owner_of(store, "vms")
        now = time.time()
        await desk.go("d1", "creating", "resetting", "ready", at=now - 100)
        await desk.go("d1", "leased", at=now - 30, holder="ro-7", n_uses=3)
        await desk.go("d2", "creating", at=now - 90)
        await desk.go("d2", "quarantined", at=now - 80, reason="[boot] no answer in 60 s")
        await desk.go("d3", "creating", at=now - 70)
        await desk.go("d3", "gone", at=now - 60)
        await vms.go("v1", "creating", "gone", at=now - 50)


@pytest.fixture
def filled(folder: Path) -> None:
    asyncio.run(_fill())


@pytest.mark.usefixtures("filled")
def test_machines_are_listed_by_pool_with_state_holder_and_reason():
    shown = pool_ls()
    rows = {
        cells[1]: cells[2:-1] for line in shown.splitlines() if len(cells := [c.strip() for c in line.split("│")]) > 8
    }
    assert list(rows) == ["d1", "d2"]
    *d1, since, reason = rows["d1"]
    assert d1 == ["fake", "leased", "ro-7", "3", "1"]
    assert 30 <= int(since.removesuffix(" s ago")) < 90
    assert reason == ""
    assert rows["d2"][1] == "quarantined"
    assert rows["d2"][-1] == "[boot] no answer in 60 s"
    assert "Pool desk, epoch 1, opened" in shown
    assert "Pool vms, epoch 2, opened" in shown
    assert shown.count("no machines now.") == 1
    assert shown.count("Gone: 1; --json lists them.") == 2


@pytest.mark.usefixtures("filled")
def test_one_pool_alone_as_json():
    (pool,) = json.loads(pool_ls("--pool", "desk", "--json"))["pools"]
    assert (pool["name"], pool["epoch"]) == ("desk", 1)
    assert [(one["machine_id"], one["state"]) for one in pool["machines"]] == [
        ("d1", "leased"),
        ("d2", "quarantined"),
        ("d3", "gone"),
    ]
    assert "vms" not in pool_ls("--pool", "desk")


@pytest.mark.usefixtures("filled")
def test_the_moves_of_one_machine_newest_first():
    moves = json.loads(pool_ls("--moves", "d1", "--json"))["moves"]
    assert [move["state"] for move in moves] == ["leased", "ready", "resetting", "creating"]
    shown = pool_ls("--moves", "d1", "--pool", "desk")
    assert shown.index("ready → leased") < shown.index("resetting → ready") < shown.index("creating → resetting")
    assert "earlier" not in shown


async def _use_often() -> None:
    async with open_store("sqlite:///outrider.db") as store:
        owner = await owner_of(store)
        await owner.go("m", "creating", *(("resetting", "ready") * 30))


def test_only_the_last_moves_are_printed_and_the_others_counted():
    asyncio.run(_use_often())
    shown = pool_ls("--moves", "m")
    assert shown.count("→") == 50
    assert "… 11 earlier ones; --json shows all" in shown
    assert len(json.loads(pool_ls("--moves", "m", "--json"))["moves"]) == 61


async def _open_empty() -> None:
    async with open_store("sqlite:///outrider.db"):
        pass


def test_a_store_without_machines_says_where_they_would_be():
    asyncio.run(_open_empty())
    assert "No pool was opened in sqlite:///outrider.db." in pool_ls()
    assert "give that with --store" in pool_ls()
    assert json.loads(pool_ls("--json"))["pools"] == []


@pytest.mark.usefixtures("filled")
def test_a_name_that_is_not_there_is_refused_with_what_there_is():
    assert "no pool 'desc' was opened in this store; there are: desk, vms" in pool_ls("--pool", "desc", code=2)
    assert "no pool 'desc'" in pool_ls("--pool", "desc", "--moves", "d1", code=2)
    assert "no machine 'd9' in this store" in pool_ls("--moves", "d9", code=2)
    assert "no machine 'd1' in this store" in pool_ls("--moves", "d1", "--pool", "vms", code=2)


def test_a_store_that_is_not_there_is_refused_and_not_made(folder: Path):
    assert "there is no store in" in pool_ls(code=2)
    assert list(folder.iterdir()) == []
