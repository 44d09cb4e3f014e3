"""`python -m outrider.pool.osworld_protocol`: make a machine here and serve it to whoever attaches, until Ctrl-C."""

import asyncio
import os
import signal
import sys
from typing import NamedTuple

import click

from outrider.core.errors import InvalidInput, MachineError
from outrider.core.tasks import uninterrupted
from outrider.core.undumpable import become_undumpable
from outrider.pool.osworld_protocol.client import DEFAULT_PORT
from outrider.pool.osworld_protocol.server import OsworldServer
from outrider.pool.provider import RunningMachine
from outrider.pool.registry import provider_of
from outrider.pool.spec import DEFAULT_PROVIDER, MachineSpec

FAILED, REFUSED = 1, 2


@click.command()
@click.option("--provider", default=DEFAULT_PROVIDER, show_default=True, metavar="NAME", help="The kind of machine.")
@click.option("--image", metavar="IMAGE", help="What it is made of, as the provider has it.")
@click.option("--snapshot", metavar="NAME", help="The state that it begins with.")
@click.option("--width", type=click.IntRange(min=1), metavar="PIXELS")
@click.option("--height", type=click.IntRange(min=1), metavar="PIXELS")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="No password is asked: who can reach it controls the machine.",
)
@click.option("--name", "names", multiple=True, help="A name by which clients ask for it, beside its addresses.")
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0: any.")
def main(*, host: str, port: int, names: tuple[str, ...], **kind: object) -> None:
    """Make a machine and serve it by OSWorld's in-guest protocol, until Ctrl-C; `POST /reset` resets it."""
    become_undumpable()
    try:
        asyncio.run(_serve(MachineSpec(**kind), Place(host, port, names)))  # type: ignore[arg-type]
    except asyncio.CancelledError:
        return
    except (InvalidInput, OSError) as exc:
        click.echo(exc, err=True)
        sys.exit(REFUSED)
    except MachineError as exc:
        click.echo(exc, err=True)
        sys.exit(FAILED)


class Place(NamedTuple):
    """Where a machine is served."""

    host: str
    port: int
    names: tuple[str, ...]


async def _serve(spec: MachineSpec, place: Place) -> None:
    serving = asyncio.current_task()
    assert serving is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    provider = provider_of(spec)
    try:
        await provider.check(1)
        machine = await provider.create("served", f"server {os.getpid()}")
        try:
            await _serve_machine(machine, place)
        finally:
            await uninterrupted(machine.destroy())
    finally:
        await uninterrupted(provider.close())


async def _serve_machine(machine: RunningMachine, place: Place) -> None:
    """Until it dies, which is raised; while it is reset, what it runs in may end without that."""
    resetting = asyncio.Lock()

    async def reset() -> None:
        async with resetting:
            await machine.reset()

    async with OsworldServer(machine.computer, **place._asdict(), reset=reset) as server:
        click.echo(f"a machine answers at {place.host}:{server.port}; Ctrl-C ends it")
        while True:
            reason = await machine.wait_until_dead()
            async with resetting:
                try:
                    await machine.probe()
                except MachineError as exc:
                    raise MachineError(f"the machine is gone: {reason}", stage="machine.serve") from exc


if __name__ == "__main__":
    main(prog_name="python -m outrider.pool.osworld_protocol")
