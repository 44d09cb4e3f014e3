"""Machines that rollouts borrow: a pool of them, and the kinds there are."""

from outrider.pool.computer import Computer, Executed, Input
from outrider.pool.config import PoolConfig
from outrider.pool.journal import MachineJournal, NoJournal
from outrider.pool.lease import Lease
from outrider.pool.manager import ThreadedVMPoolManager, VMPoolManager
from outrider.pool.pool import MachinePool
from outrider.pool.provider import Address, Provider, RunningMachine
from outrider.pool.statistics import PoolStatistics, Quantiles

__all__ = [
    "Address",
    "Computer",
    "Executed",
    "Input",
    "Lease",
    "MachineJournal",
    "MachinePool",
    "NoJournal",
    "PoolConfig",
    "PoolStatistics",
    "Provider",
    "Quantiles",
    "RunningMachine",
    "ThreadedVMPoolManager",
    "VMPoolManager",
]
