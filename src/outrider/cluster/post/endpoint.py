"""Who listens where."""

import os
import socket
import sys
from functools import cache
from pathlib import Path

import msgspec


class Endpoint(msgspec.Struct, frozen=True):
    """A post and where it listens: all of it is checked when somebody connects. `unix` is empty where there is none.

    `node` is the same text for processes of one user that share a kernel's sockets and process ids.
    """

    name: str
    node: str
    unix: str
    host: str
    port: int


@cache
def this_node() -> str:
    """The same text in all processes that can reach each other by Unix sockets and `/proc`."""
    if sys.platform != "linux":
        return socket.gethostname()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [str(Path(f"/proc/self/ns/{name}").stat().st_ino) for name in ("net", "pid")]
    return "/".join([boot, *spaces, str(os.geteuid())])
