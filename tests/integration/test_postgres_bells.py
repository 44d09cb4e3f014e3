"""The folder in which processes of one machine wake each other cannot be used: each listens for itself."""

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from disks import make_read_only, small_disk
from ordinary_user import ORDINARY_USER
from outrider.store import StoreUrl, open_store
from outrider.store.bell import Topic
from outrider.store.postgres import bell
from outrider.store.postgres.address import address_of
from outrider.testing import eventually
from postgres_load import n_listeners, no_connections_left, waiting_claim
from postgres_server import PostgresServer

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk or give a folder away")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, as stores see it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def spoilt(request: pytest.FixtureRequest, temporary: Path) -> Iterator[Path]:
    """The folder for bells, which cannot be used."""
    folder = temporary / f"outrider-bells-{os.geteuid()}"
    match request.param:
        case "a file":
            folder.write_text("in its place")
        case "a link":
            (temporary / "elsewhere").mkdir(mode=0o700)
            folder.symlink_to("elsewhere")
        case "open to others":
            folder.mkdir()
            folder.chmod(0o777)
        case "of another user":
            folder.mkdir(mode=0o700)
            os.chown(folder, ORDINARY_USER, ORDINARY_USER)
        case "gone":
            temporary.rmdir()
        case "read-only":
            with small_disk(folder, 1 << 20):
                folder.chmod(0o700)
                make_read_only(folder)
                yield folder
            return
    yield folder


@pytest.mark.parametrize(
    "spoilt",
    [
        "a file",
        "a link",
        "open to others",
        pytest.param("of another user", marks=needs_root),
        "gone",
        pytest.param("read-only", marks=needs_root),
    ],
    indirect=True,
)
async def test_who_waits_is_woken_where_no_folder_can_be_shared(
    spoilt: Path,
    postgres_server: PostgresServer,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    async with (
        no_connections_left(postgres_server, postgres_url),
        open_store(postgres_url) as one,
        open_store(postgres_url) as two,
        open_store(postgres_url) as other,
    ):
        monkeypatch.undo()  # the test itself needs such a folder
        async with waiting_claim(one) as first, waiting_claim(two) as second:

            async def both_listen() -> bool:
                return await n_listeners(postgres_server, postgres_url) == 2

            await eventually(both_listen)
            assert await one.get_latest_resources(wait=0.01) is None  # another bell, which is not warned of again
            for _ in range(2):
                await other.enqueue_rollout("x")
            async with asyncio.timeout(20):
                claimed = await first, await second
            assert None not in claimed
    said = [record for record in caplog.records if record.name == bell.__name__ and record.levelno >= logging.WARNING]
    assert len(said) == 2, said  # by each of those that waited
    assert all("cannot share one listening connection" in record.getMessage() for record in said)


@needs_root
async def test_nothing_is_written_in_the_folder_of_another_user(temporary: Path, postgres_url: str):
    """It may have prepared links there, under the names of bells, to files that only this user can write."""
    precious = temporary / "precious"
    precious.write_text("precious")
    folder = address_of(StoreUrl(postgres_url)).folder_on_this_machine
    folder.mkdir(parents=True, mode=0o700)
    for topic in Topic:
        (folder / f"{topic}-bell").symlink_to(precious)
    for each in (folder, folder.parent):
        os.chown(each, ORDINARY_USER, ORDINARY_USER)
    async with (
        open_store(postgres_url) as listening,
        open_store(postgres_url) as other,
        waiting_claim(listening) as claim,
    ):
        await asyncio.sleep(2 * bell.SETTLE_SECONDS)
        await other.enqueue_rollout("x")
        assert await claim is not None
    assert precious.read_text() == "precious"
    shutil.rmtree(folder.parent)
