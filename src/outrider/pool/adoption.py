"""Finding the machines that a pool's last owner has left behind."""

import asyncio
import logging
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from outrider.core.errors import MachineError, boundary
from outrider.core.ids import new_id
from outrider.core.machine import MachineRecord
from outrider.pool.provider import Address, Provider, RunningMachine

_log = logging.getLogger(__name__)


N_TRIES = 3
"""How often it is tried to take over a machine that the journal does not know."""


class LeftBehind(Struct, frozen=True, kw_only=True):
    """What was found: machines that the journal knows, records without a machine, and machines without a record."""

    found: tuple[tuple[MachineRecord, RunningMachine], ...]
    missing: tuple[MachineRecord, ...]
    unknown: tuple[RunningMachine, ...]


async def find_left_behind(
    provider: Provider, owner: str, records: Sequence[MachineRecord], seconds: float
) -> LeftBehind:
    """By the journal's addresses, then by the owner. Each question may take so many seconds.

    Raises `MachineError` if what is there cannot be told or taken over: to go on would mean more machines than M.
    """
    async with asyncio.TaskGroup() as group:
        adopting = [group.create_task(_try(provider, record, seconds)) for record in records]
    pairs = [(record, task.result()) for record, task in zip(records, adopting, strict=True)]
    found = tuple((record, running) for record, running in pairs if running is not None)
    known = {_key(address) for record, running in found for address in (record.address, running.address)}
    with boundary(MachineError, "owned"):
        async with asyncio.timeout(seconds):
            addresses = await provider.owned(owner)
    strays = [address for address in addresses if _key(address) not in known]
    unknown = [await _insist(provider, address, seconds) for address in strays]
    return LeftBehind(
        found=found,
        missing=tuple(record for record, running in pairs if running is None),
        unknown=tuple(running for running in unknown if running is not None),
    )


async def _insist(provider: Provider, address: Address, seconds: float) -> RunningMachine | None:
    """The machine at this address, unless it is gone meanwhile."""
    for n_left in reversed(range(N_TRIES)):
        try:
            return await _adopt(provider, _id_in(address), address, seconds)
        except MachineError as exc:
            if not n_left:
                raise MachineError(f"a machine was left behind at {address} and cannot be ended: {exc}") from exc
    return None


async def _try(provider: Provider, record: MachineRecord, seconds: float) -> RunningMachine | None:
    """The machine of this record, unless it is gone or does not let itself be taken over: then its owner finds it."""
    if not record.address:
        return None
    try:
        return await _adopt(provider, record.machine_id, record.address, seconds)
    except MachineError as exc:
        _log.warning("machine %s cannot be taken over: %s", record.machine_id, exc)
        return None


async def _adopt(provider: Provider, machine_id: str, address: Address, seconds: float) -> RunningMachine | None:
    with boundary(MachineError, "adopt"):
        async with asyncio.timeout(seconds):
            return await provider.adopt(machine_id, address)


def _id_in(address: Address) -> str:
    """The id that the machine was made with, where its address says so."""
    machine_id = address.get("machine_id")
    return machine_id if isinstance(machine_id, str) else new_id("ma")


def _key(address: Address) -> bytes:
    """Equal for addresses that are the same after they were written and read."""
    return msgspec.msgpack.encode(address, order="deterministic")
