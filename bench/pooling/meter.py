"""Watches rollouts take and give back machines, whoever hands them out, and judges all by the pool's own definition."""

import asyncio

from outrider.pool.statistics import Counts, Durations


class Meter:
    """Utilisation as `MachinePool` defines it, seen by those who wait: a machine is leased while it is in their hands.

    A machine that is reset while somebody waits for it counts as idle, also if its holder has to wait for that.
    """

    def __init__(self, n_machines: int) -> None:
        self._counts = Counts()
        self._n_machines = n_machines
        self._n_leased = self._n_waiting = 0
        self.waits, self.releases = Durations(), Durations()

    def asks(self) -> float:
        """Somebody waits from now on; the time."""
        self._pass()
        self._n_waiting += 1
        return self.now()

    def took(self, asked_at: float) -> None:
        self._pass()
        self._n_waiting -= 1
        self._n_leased += 1
        self.waits.add(self.now() - asked_at)

    def gives_back(self) -> float:
        """Somebody is done with a machine; the time."""
        self._pass()
        self._n_leased -= 1
        return self.now()

    def gave_back(self, began_at: float) -> None:
        self.releases.add(self.now() - began_at)

    @property
    def utilisation(self) -> float | None:
        self._pass()
        return self._counts.summary((), n_machines=self._n_machines, n_waiting=0, n_wanted=0).utilisation

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def _pass(self) -> None:
        n_free = self._n_machines - self._n_leased
        self._counts.pass_time(self.now(), n_leased=self._n_leased, n_free=n_free, n_wanted=self._n_waiting)
