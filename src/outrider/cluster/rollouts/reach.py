"""Which nodes see the file that a run's store is: a path may lead elsewhere there, or nowhere."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from outrider.cluster.info import NodeInfo
from outrider.cluster.rollouts.berths import Berths
from outrider.runner.worker import LineHandler
from outrider.store import StoreUrl
from outrider.store.opening import sqlite_place

if TYPE_CHECKING:
    from outrider.cluster.group import WorkerGroup

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class StoreFile(msgspec.Struct, frozen=True):
    """A file and what tells it from all others, on other machines too."""

    path: str
    boot_id: str
    device: int
    inode: int

    @classmethod
    def of(cls, store_url: StoreUrl) -> "StoreFile | None":
        """The file of this store, as it is seen from here; None for a store on a server."""
        return cls._at(sqlite_place(store_url.shown)[0]) if store_url.scheme == "sqlite" else None

    @classmethod
    def _at(cls, path: Path) -> "StoreFile | None":
        try:
            found = os.stat(path)  # noqa: PTH116 not more than that
        except OSError:
            return None
        boot_id = BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
        return cls(str(path), boot_id, found.st_dev, found.st_ino)

    @property
    def is_seen(self) -> bool:
        """Whether the path leads to the same file in this process."""
        return self._at(Path(self.path)) == self


class StoreUnseen(Exception):
    """A node does not see the store, and is left out."""


async def check_sight(
    group: "WorkerGroup[Any]", node: NodeInfo, store_url: StoreUrl, berths: Berths, say: LineHandler
) -> None:
    """Raise `StoreUnseen` if the worker on that node does not see the store; say once that the node is left out."""
    file = StoreFile.of(store_url)
    if file is None or (await group.sees(file).async_wait())[0]:
        return
    if berths.leave_out(node):
        say(
            f"⚠️ node {node.ip} is left out: it does not see the store, the file {file.path} of this machine; "
            "to use all nodes, give a store on a server: --store postgresql://USER@HOST/DATABASE"
        )
    raise StoreUnseen
