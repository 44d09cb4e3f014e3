"""Process machines behind servers of OSWorld's protocol, each in a process of its own, forked from one that is warm."""

import asyncio
import os
import signal
import sys
import traceback
from pathlib import Path

from outrider.pool.osworld_protocol.server import OsworldServer
from outrider.pool.providers.process import ProcessProvider

OWNER = "served"


async def serve(folder: str, machine_id: str) -> None:
    """Tells its port and its process; ends in good order at SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    machine = await ProcessProvider(folder=Path(folder)).create(machine_id, OWNER)
    try:
        async with OsworldServer(machine.computer, reset=machine.reset) as server:
            os.write(1, f"{server.port} {os.getpid()}\n".encode())
            await ended.wait()
    finally:
        await machine.destroy()


def main() -> None:
    """One server for each line of input, which names a folder and a machine."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                asyncio.run(serve(*line.split()))
            except BaseException as exc:
                traceback.print_exc()
                os.write(1, f"failed: {exc!r}\n".encode())
            finally:
                os._exit(0)


if __name__ == "__main__":
    main()
