"""A process killed inside SQLite's own writes, some of them half done: what was acknowledged is there, only that."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from history_checking import history_in
from outrider import open_store
from outrider.testing.history import check_store
from soaking import note_soak, time_limit, until

HERE = Path(__file__).parent
SOAK_SECONDS = 60.0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("torn") / "torn_writes.so"
    command = ["gcc", "-Wall", "-Werror", "-O1", "-shared", "-fPIC", "-o", made, HERE / "torn_writes.c", "-ldl"]
    subprocess.run(command, check=True)
    return made


async def check_deaths(library: Path, folder: Path, history: Path, *, options: str, n_deaths: int, seed: int) -> None:
    url = f"sqlite:///{folder / 'torn.db'}{options}"
    async with open_store(url):  # the schema is made in peace, or most children would die of it
        pass
    path = os.pathsep.join([str(HERE.parent), str(HERE)])
    environment = {**os.environ, "PYTHONPATH": path, "LD_PRELOAD": str(library), "TORN_NAME": "torn.db"}
    command = [sys.executable, HERE / "torn_writes.py", url, str(n_deaths), str(seed)]
    print(f"seed {seed}")
    subprocess.run(command, env=environment, check=True)
    async with open_store(url) as store:
        n_calls = await check_store(store, history)
    with closing(sqlite3.connect(folder / "torn.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    note_soak("killed inside SQLite's writes", deaths=n_deaths, calls_checked=n_calls)


@pytest.mark.parametrize(("options", "seed"), [("", 1), ("?durability=full", 2)])
async def test_what_was_acknowledged_outlives_torn_writes(
    library: Path, tmp_path: Path, history: Path, options: str, seed: int
):
    await check_deaths(library, tmp_path, history, options=options, n_deaths=40, seed=seed)


@pytest.mark.soak
@pytest.mark.timeout(time_limit(SOAK_SECONDS))
async def test_what_was_acknowledged_outlives_hundreds_of_torn_writes(
    library: Path, tmp_path_factory: pytest.TempPathFactory
):
    for seed in until(SOAK_SECONDS):
        folder = tmp_path_factory.mktemp("torn")
        with history_in(tmp_path_factory.mktemp("history")) as history:
            await check_deaths(library, folder, history, options="", n_deaths=100, seed=100 + seed)
