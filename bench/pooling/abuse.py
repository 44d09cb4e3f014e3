"""Leases of real desktops with real faults: what is left behind, and who sees what another has left.

Each holder looks for what others have planted before it plants files, a process and a property of the screen of its
own. Desktops are killed and frozen while they are held, and while they are not; holders are cancelled, and some never
give back what they hold.
"""

import asyncio
import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from outrider.core.errors import MachineError
from outrider.core.ids import new_id
from outrider.pool import Lease, MachinePool, PoolConfig
from outrider.pool.computer import MoveTo
from outrider.pool.journal import MachineJournal
from outrider.pool.provider import Provider
from pooling.host import command_lines, family

N_HOLDERS = 10
TAKE_SECONDS = 60.0
GONE_SECONDS = 2.0
HOLD_SECONDS = 0.05
"""On average, beside what is done with it."""

PROBE_SECONDS = 1.5
"""After which a frozen desktop is given up; longer than any living one takes."""

OPERATION_SECONDS = 4.0
MAX_HOLD_SECONDS = 2.5
DISTURB_SECONDS = 0.7
"""How often something happens to a desktop that nobody in particular has caused, on average."""

LOOK = """
ls -A /home/user /tmp | grep -s planted
cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -ao 'tail -f [^ ]*pla[n]ted[^ ]*'
xprop -root PLANTED | grep -s '='
true
"""
PLANT = """
echo {token} > /home/user/planted-{token}; echo {token} > /tmp/planted-{token}
setsid sh -c 'exec tail -f /home/user/planted-{token}' > /dev/null 2>&1 < /dev/null &
xprop -root -f PLANTED 8s -set PLANTED {token}
"""


@dataclass(slots=True, kw_only=True)
class Findings:
    """What was done, and what must be 0."""

    n_leases: int = 0
    n_dirty: int = 0
    n_double: int = 0
    """A machine in two hands, or a call that went through after the lease was over."""
    n_leaks: int = 0
    """Processes and machines that are left in the end."""
    faults: Counter[str] = field(default_factory=Counter)
    seen: list[str] = field(default_factory=list)
    """Of others, by those who looked."""


class Abuse:
    """Holders without manners, on machines of `provider`."""

    def __init__(self, provider: Provider, *, n_machines: int, n_leases: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self._provider = provider
        self._n_wanted = n_leases
        self._config = PoolConfig(
            name=new_id("abuse"),
            n_machines=n_machines,
            probe_seconds=PROBE_SECONDS,
            create_seconds=OPERATION_SECONDS,
            reset_seconds=OPERATION_SECONDS,
            destroy_seconds=20.0,
            max_hold_seconds=MAX_HOLD_SECONDS,
            quarantine_seconds=1.0,
            pause_seconds=0.05,
            max_pause_seconds=0.5,
        )
        self._numbers = itertools.count(1)
        self._held: dict[str, Lease] = {}
        self._holders: set[asyncio.Task[None]] = set()
        self.findings = Findings()

    async def run(self, journal: MachineJournal | None = None) -> Findings:
        """Until so many leases were given; then all is closed, and what is left is counted."""
        name = self._config.name
        async with MachinePool(self._provider, self._config, journal=journal) as pool:
            await pool.wait_until_ready(deadline=TAKE_SECONDS)
            async with self._disturbed(pool), asyncio.TaskGroup() as group:
                for number in range(N_HOLDERS):
                    group.create_task(self._hold_again_and_again(pool, f"h{number}"))
        left = pool.statistics().n_leaks + len(await self._provider.owned(name))
        self.findings.n_leaks = left + await _n_processes(name)
        return self.findings

    async def _hold_again_and_again(self, pool: MachinePool, name: str) -> None:
        while self.findings.n_leases < self._n_wanted:
            holder = asyncio.create_task(self._hold(pool, f"{name}-{next(self._numbers)}"))
            self._holders.add(holder)
            try:
                await asyncio.wait([holder])
            finally:
                holder.cancel()
                self._holders.discard(holder)
            if not holder.cancelled():
                holder.result()

    async def _hold(self, pool: MachinePool, name: str) -> None:
        async with pool.acquire(deadline=TAKE_SECONDS, run="abuse", holder=name) as lease:
            self.findings.n_leases += 1
            before = self._held.get(lease.machine_id)
            self.findings.n_double += before is not None and not before.is_over
            self._held[lease.machine_id] = lease
            with suppress(MachineError):
                await self._look(lease)
                await lease.computer.execute(PLANT.format(token=f"{self._config.name}-{name}"), timeout=10)
                await self._misbehave(lease)
        await self._check_refused(lease)

    async def _look(self, lease: Lease) -> None:
        found = (await lease.computer.execute(LOOK, timeout=10)).stdout
        if found.strip():
            self.findings.n_dirty += 1
            self.findings.seen.append(f"{lease.machine_id}: {found}")

    async def _misbehave(self, lease: Lease) -> None:
        """What a holder does, or has done to it, with what it holds."""
        chosen = self._rng.random()
        if chosen < 0.06:
            self._signal(lease, signal.SIGKILL, "killed while held")
            await lease.wait_until_lost()
        elif chosen < 0.09:
            self._signal(lease, signal.SIGSTOP, "frozen while held")
        elif chosen < 0.11:
            self.findings.faults["never given back"] += 1
            await lease.wait_until_lost()
        elif chosen < 0.2:
            self.findings.faults["left a window"] += 1
            await lease.computer.launch(["xterm"])
        elif chosen < 0.3:
            self.findings.faults["cancelled in a call"] += 1
            current = asyncio.current_task()
            assert current is not None
            asyncio.get_running_loop().call_later(0.005, current.cancel)
            await lease.computer.execute("sleep 5", timeout=10)
        else:
            await lease.computer.screenshot()
            await asyncio.sleep(self._rng.expovariate(1 / HOLD_SECONDS))

    async def _check_refused(self, lease: Lease) -> None:
        try:
            await lease.computer.input([MoveTo(1, 1)])
        except MachineError:
            return
        self.findings.n_double += 1

    @asynccontextmanager
    async def _disturbed(self, pool: MachinePool) -> AsyncIterator[None]:
        disturbing = asyncio.create_task(self._disturb(pool))
        try:
            yield
        finally:
            disturbing.cancel()
            await asyncio.wait([disturbing])
            if not disturbing.cancelled():
                disturbing.result()

    async def _disturb(self, pool: MachinePool) -> None:
        """Things that happen to anybody, at any time: also to desktops that are just being made or reset."""
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / DISTURB_SECONDS))
            match self._rng.choice(("kill", "freeze", "cancel", "cancel", "revoke")):
                case "kill":
                    await self._signal_any(signal.SIGKILL, "killed at any time")
                case "freeze":
                    await self._signal_any(signal.SIGSTOP, "frozen at any time")
                case "cancel" if self._holders:
                    self.findings.faults["holder cancelled"] += 1
                    self._rng.choice(sorted(self._holders, key=lambda task: task.get_name())).cancel()
                case "revoke" if leased := [one.machine_id for one in pool.machines if one.state == "leased"]:
                    self.findings.faults["revoked"] += 1
                    pool.revoke(self._rng.choice(leased), "its holder has died")

    async def _signal_any(self, which: signal.Signals, called: str) -> None:
        found = await self._provider.owned(self._config.name)
        if found:
            _send(self._rng.choice(found)["pid"], which)
            self.findings.faults[called] += 1

    def _signal(self, lease: Lease, which: signal.Signals, called: str) -> None:
        _send(lease.address["pid"], which)
        self.findings.faults[called] += 1


def _send(pid: int, which: signal.Signals) -> None:
    """To the process and all below it, so that it can do nothing about it."""
    for one in family(pid) if which is signal.SIGSTOP else [pid]:
        with suppress(ProcessLookupError):
            os.kill(one, which)


async def _n_processes(name: str) -> int:
    """How many processes of this host still have the pool's name on their command line, after a moment to end."""
    for _ in range(int(GONE_SECONDS / 0.05)):
        if not (n := sum(name.encode() in words for words in command_lines())):
            return 0
        await asyncio.sleep(0.05)
    return n
