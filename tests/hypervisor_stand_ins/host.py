"""Starts the guests of the stand-ins: process machines behind OSWorld's protocol, each at an address of its own."""

import asyncio
import base64
import json
import os
import random
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from contract_machines.served_machine import OWNER
from outrider.pool.osworld_protocol.server import OsworldServer
from outrider.pool.providers.process import ProcessMachine, ProcessProvider

PORT = 5000
N_TRIES = 20
DISK = "/tmp/.disk"
SAVE = f'tar cf - --exclude={DISK} /tmp "$HOME" 2>/dev/null | base64 -w0'


def listen(place: str) -> None:
    """Start a guest for each that asks, until this process is told to end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(place)
        door.listen(16)
        os.write(1, b"ready\n")
        while True:
            visitor, _ = door.accept()
            with visitor:
                asked = json.loads(visitor.recv(65536))
                if (pid := os.fork()) == 0:
                    door.close()
                    visitor.close()
                    live(*asked)
                visitor.sendall(str(pid).encode())


def live(machines: str, disk: str, address: str, fault: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        if fault == "no boot":
            signal.pause()
        elif fault != "dies":
            asyncio.run(guest(Path(machines), Path(disk), Path(address)))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


async def guest(machines: Path, disk: Path, address: Path) -> None:
    """Ends in good order at SIGTERM, and leaves its files on its disk then."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    machine = await ProcessProvider(folder=machines).create(f"g{os.getpid()}", OWNER)
    try:
        if disk.exists():
            await machine.computer.write_file(DISK, disk.read_bytes())
            await machine.computer.execute(f"tar xf {DISK} -C /; rm {DISK}")
        server = await served(machine)
        try:
            address.with_suffix(".new").write_text(server.host)
            address.with_suffix(".new").rename(address)
            await ended.wait()
        finally:
            await server.stop()
        saved = await machine.computer.execute(SAVE, timeout=5)
        disk.write_bytes(base64.b64decode(saved.stdout))
    finally:
        await machine.destroy()


async def served(machine: ProcessMachine) -> OsworldServer:
    """As all guests have it: port 5000 of an address of their own."""
    for _ in range(N_TRIES):
        number = random.randrange(1 << 16, 1 << 24)
        host = f"127.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        server = OsworldServer(machine.computer, host=host, port=PORT)
        with suppress(OSError):
            await server.start()
            return server
    raise RuntimeError("no address is free")


if __name__ == "__main__":
    listen(*sys.argv[1:])
