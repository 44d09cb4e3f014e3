"""The pure part of a pool: what becomes of each machine, and who gets which. No I/O, no clock.

What happened is told to a `Fleet` with the time at which it did; `decide` then says what is to be done.

Invariants:
- No more than M machines exist, whatever their state; after a `resize` to fewer, none is made until that holds again.
- A machine moves along `core.machine.AFTER` only, and every move comes out of `drain`, in order.
- Only a ready machine is leased, to one holder, under an epoch that it never had before.
- At rest, fewer machines are ready than the ticket whose turn it is asks for.
- Nothing that fails is tried again without a pause that grows.
"""

from collections import Counter
from collections.abc import Callable

from outrider.core.errors import InvalidInput, MachineError
from outrider.core.machine import MachineMove, MachineRecord, MachineState
from outrider.pool.config import PoolConfig
from outrider.pool.orders import Create, Destroy, Grant, Lose, Order, Refuse, Reset
from outrider.pool.provider import Address
from outrider.pool.roster import Machine, Roster, plain
from outrider.pool.setbacks import Setbacks
from outrider.pool.statistics import Counts, PoolStatistics
from outrider.pool.waiting import Ticket, WaitingLine

CREATING, RESETTING, READY, LEASED, QUARANTINED, DESTROYING, GONE = MachineState

STARTED_AGAIN = "its pool was started again"


class Fleet:
    """The machines of one pool and those who wait for them."""

    def __init__(self, config: PoolConfig, *, pool: str, provider: str, new_machine_id: Callable[[], str]) -> None:
        self._config = config
        self._roster = Roster(pool=pool, provider=provider, new_machine_id=new_machine_id)
        self._line = WaitingLine()
        self._setbacks = Setbacks(config)
        self._orders: list[Order] = []
        self._n_tickets = 0
        self._closed: str | None = None
        self.n_machines = config.n_machines
        self.counts = Counts()

    def records(self) -> tuple[MachineRecord, ...]:
        return tuple(self._roster.record(machine) for machine in self._roster)

    def drain(self) -> tuple[tuple[MachineRecord, ...], tuple[MachineMove, ...]]:
        """What the journal must learn since the last time."""
        return self._roster.drain()

    def n(self, *states: MachineState) -> int:
        """How many machines are in these states."""
        return self._roster.n(*states)

    def has(self, machine_id: str) -> bool:
        return self._roster.get(machine_id, *MachineState) is not None

    def is_held(self, machine_id: str, epoch: int) -> bool:
        """Whether the lease of this epoch is the one that counts."""
        machine = self._roster.get(machine_id, LEASED)
        return machine is not None and machine.epoch == epoch

    def statistics(self, now: float) -> PoolStatistics:
        self._pass_time(now)
        return self.counts.summary(
            (machine.state for machine in self._roster),
            n_machines=self.n_machines,
            n_waiting=len(self._line),
            n_wanted=self._line.n_wanted,
        )

    def standing(self, now: float) -> str:
        """In words: what there is, and what went wrong last."""
        states = Counter(machine.state for machine in self._roster)
        have = ", ".join(f"{n} {state}" for state, n in states.items()) or "none exists"
        return f"of {self.n_machines} machines {have}; {len(self._line)} wait{self._setbacks.last(now)}"

    def ask(self, *, run: str, holder: str, n: int, now: float) -> Ticket:
        """A place in the line. Raises `InvalidInput` for more than there can be, `MachineError` for who gets none."""
        if not 1 <= n <= self.n_machines:
            raise InvalidInput(f"{n} machines were asked for, and pool {self._roster.pool!r} has {self.n_machines}")
        if holder != plain(holder):
            raise InvalidInput(f"the holder of a machine is named {holder[:80]!r}, which cannot be written down")
        if self._closed is not None:
            raise MachineError(self._closed, stage="pool.acquire")
        if self._setbacks.is_poison(holder):
            raise MachineError(self._setbacks.verdict(holder), stage="pool.acquire")
        self._pass_time(now)
        self._n_tickets += 1
        ticket = Ticket(number=self._n_tickets, run=run, holder=holder, n=n, asked_at=now)
        self._line.join(ticket)
        return ticket

    def withdraw(self, ticket: Ticket, now: float) -> bool:
        """Whether it was still waiting."""
        self._pass_time(now)
        left = self._line.leave(ticket)
        self.counts.n_refused += left
        return left

    def release(self, machine_id: str, epoch: int, now: float) -> None:
        """The holder of this epoch is done. Once more, or too late, changes nothing."""
        machine = self._roster.get(machine_id, LEASED)
        if machine is not None and machine.epoch == epoch:
            self._after_use(machine, "released", now)

    def revoke(self, machine_id: str, reason: str, now: float) -> None:
        """Take it from its holder, if it has one."""
        machine = self._roster.find(machine_id)
        if machine.state is LEASED:
            self.counts.n_revokes += 1
            self._lose(machine, reason)
            self._after_use(machine, reason, now)

    def reset(self, machine_id: str, reason: str, now: float) -> None:
        """Reset it, whoever holds it; nothing if it is being made, reset or ended, or is in quarantine."""
        self.revoke(machine_id, reason, now)
        machine = self._roster.find(machine_id)
        if machine.state is READY:
            self._move(machine, RESETTING, reason, now)

    def stop(self, machine_id: str, reason: str, now: float) -> None:
        """End it, whoever holds it. Another is made in its place."""
        machine = self._roster.find(machine_id)
        self.counts.n_revokes += machine.state is LEASED
        self._end(machine, reason, now)

    def resize(self, n_machines: int, now: float) -> None:
        """Another M. Whoever asked for more machines at once than that is refused."""
        if n_machines < 1:
            raise InvalidInput(f"a pool needs at least 1 machine, not {n_machines}; to end it, close it")
        self._pass_time(now)
        self.n_machines = n_machines
        for ticket in self._line.tickets:
            if ticket.n > n_machines:
                self._refuse(ticket, f"{ticket.n} machines were asked for, and the pool was resized to {n_machines}")

    def close(self, reason: str, now: float) -> None:
        """Refuse all who wait, take all machines back and end them. Nothing is made or reset any more."""
        self._closed = self._closed or reason
        for ticket in self._line.tickets:
            self._refuse(ticket, reason)
        for machine in self._roster:
            self._end(machine, reason, now)

    def adopt(self, record: MachineRecord, now: float) -> None:
        """A machine of the pool's last owner was found: it is reset, or ended if it was on its way out."""
        machine = self._roster.restore(record)
        if machine.state is QUARANTINED:
            self._end(machine, STARTED_AGAIN, now)
        elif machine.state not in {RESETTING, DESTROYING}:
            self._move(machine, RESETTING, STARTED_AGAIN, now)

    def forget(self, record: MachineRecord, now: float) -> None:
        """A machine of the pool's last owner was not found."""
        self._move(self._roster.restore(record), GONE, f"it was not there when {STARTED_AGAIN}", now)

    def adopt_unknown(self, address: Address, now: float) -> str:
        """A machine of this owner that the journal does not know: it is ended. The id it gets."""
        machine = self._roster.add(DESTROYING, "the journal does not know it", now)
        machine.address = address
        return machine.machine_id

    def created(self, machine_id: str, address: Address, now: float) -> None:
        machine = self._roster.get(machine_id, CREATING)
        if machine is not None:
            machine.address = address
            self._move(machine, RESETTING, "made", now)

    def create_failed(self, machine_id: str, reason: str, now: float) -> None:
        machine = self._roster.get(machine_id, CREATING)
        if machine is not None:
            self.counts.failures["create"] += 1
            self._setbacks.unmade(reason, now)
            self._move(machine, GONE, reason, now)

    def was_reset(self, machine_id: str, address: Address, now: float, *, remark: str | None = None) -> None:
        """It is proved to be clean and well. A `remark` tells what was unusual about its reset."""
        machine = self._roster.get(machine_id, RESETTING)
        if machine is not None:
            if machine.is_fresh:
                self._setbacks.made()
            machine.address, machine.blamed = address, None
            self._move(machine, READY, f"clean: {remark}" if remark else "clean", now)
            machine.is_fresh = False

    def reset_failed(self, machine_id: str, reason: str, now: float) -> None:
        """It is kept to be looked at, and never handed out again."""
        machine = self._roster.get(machine_id, RESETTING)
        if machine is not None:
            self.counts.failures["reset"] += 1
            self._set_back(machine, reason, now)
            self._move(machine, QUARANTINED, reason, now)

    def died(self, machine_id: str, reason: str, now: float) -> None:
        machine = self._roster.get(machine_id, CREATING, RESETTING, READY, LEASED, QUARANTINED)
        if machine is not None:
            self.counts.n_deaths += 1
            self._set_back(machine, reason, now)
            self._end(machine, reason, now)

    def destroyed(self, machine_id: str, now: float) -> None:
        machine = self._roster.get(machine_id, DESTROYING)
        if machine is not None:
            self._move(machine, GONE, machine.reason, now)

    def destroy_failed(self, machine_id: str, reason: str, now: float) -> None:
        """It keeps its place, since it may still be there; ending it is tried again."""
        machine = self._roster.get(machine_id, DESTROYING)
        if machine is not None:
            self.counts.failures["destroy"] += 1
            self._setbacks.note(reason, now)
            machine.n_tries += 1
            machine.retry_at = now + self._setbacks.pause(machine.n_tries)
            machine.is_ordered = False

    def decide(self, now: float) -> list[Order]:
        """What is to be done now. Asked again without anything having happened, the answer is empty."""
        self._pass_time(now)
        if self._closed is None:
            self._expire(now)
            self._shrink(now)
            self._grant(now)
            self._make_room(now)
            self._begin_resets()
            self._begin_creations(now)
        for machine in self._roster.within(DESTROYING):
            if not machine.is_ordered and machine.retry_at <= now:
                machine.is_ordered = True
                self._orders.append(Destroy(machine.machine_id))
        orders, self._orders = self._orders, []
        return orders

    def next_due(self, now: float) -> float | None:
        """When `decide` has something to say though nothing happens; None: never."""
        if self._closed is None:
            times = [due for machine in self._roster if (due := self._due(machine)) is not None]
            if len(self._roster) < self.n_machines and self._setbacks.resume_at > now:
                times.append(self._setbacks.resume_at)
        else:
            times = [machine.retry_at for machine in self._roster.within(DESTROYING) if not machine.is_ordered]
        return min(times, default=None)

    def _due(self, machine: Machine) -> float | None:
        match machine.state:
            case MachineState.LEASED:
                return machine.moved_at + self._config.max_hold_seconds
            case MachineState.QUARANTINED:
                return machine.moved_at + self._config.quarantine_seconds
            case MachineState.READY if self._config.max_age_seconds is not None:
                return machine.created_at + self._config.max_age_seconds
            case MachineState.DESTROYING if not machine.is_ordered:
                return machine.retry_at
            case _:
                return None

    def _expire(self, now: float) -> None:
        """Leases held too long, machines that are too old, and quarantines that are over or too many."""
        for machine in self._roster.within(LEASED, READY, QUARANTINED):
            due = self._due(machine)
            if due is None or now < due:
                continue
            if machine.state is LEASED:
                reason = f"held by {machine.holder} for more than {self._config.max_hold_seconds:g} s"
                self.revoke(machine.machine_id, reason, now)
            else:
                self.counts.n_recycled += machine.state is READY
                self._end(machine, "its time is over", now)
        kept = self._roster.within(QUARANTINED)
        for machine in kept[: max(len(kept) - self._config.max_quarantined, 0)]:
            self._end(machine, f"more than {self._config.max_quarantined} in quarantine", now)

    def _shrink(self, now: float) -> None:
        """End what is too many, the least useful first; those that are leased are ended when they are released."""
        surplus = len(self._roster) - self._roster.n(DESTROYING) - self.n_machines
        for state in (QUARANTINED, CREATING, RESETTING, READY):
            for machine in self._roster.within(state)[: max(surplus, 0)]:
                self._end(machine, f"the pool was resized to {self.n_machines}", now)
                surplus -= 1

    def _grant(self, now: float) -> None:
        ready = self._roster.within(READY)
        while (ticket := self._line.next) is not None and ticket.n <= len(ready):
            given, ready = ready[: ticket.n], ready[ticket.n :]
            self._line.serve(ticket)
            self.counts.wait.add(now - ticket.asked_at)
            for machine in given:
                machine.epoch += 1
                machine.n_uses += 1
                machine.holder = machine.blamed = ticket.holder
                self._move(machine, LEASED, f"leased to {ticket.holder}", now)
            self._orders.append(Grant(ticket, tuple((machine.machine_id, machine.epoch) for machine in given)))

    def _make_room(self, now: float) -> None:
        """Quarantined machines give way to those who wait, oldest first."""
        if len(self._roster) < self.n_machines:
            return
        ending = sum(machine.n_tries == 0 for machine in self._roster.within(DESTROYING))
        missing = self._line.n_wanted - ending - self._roster.n(READY, CREATING, RESETTING)
        for machine in self._roster.within(QUARANTINED)[: max(missing, 0)]:
            self._end(machine, "its place was needed", now)

    def _begin_resets(self) -> None:
        resetting = self._roster.within(RESETTING)
        free = self._config.max_resetting - sum(machine.is_ordered for machine in resetting)
        for machine in [machine for machine in resetting if not machine.is_ordered][: max(free, 0)]:
            machine.is_ordered = True
            self._orders.append(Reset(machine.machine_id, machine.is_fresh))

    def _begin_creations(self, now: float) -> None:
        """As many as there is room for; after a failure one at a time, and not before the pause is over."""
        if now < self._setbacks.resume_at:
            return
        width = 1 if self._setbacks.n_unmade else self._config.max_creating
        n = min(self.n_machines - len(self._roster), width - self._roster.n(CREATING))
        for _ in range(n):
            machine = self._roster.add(CREATING, "the pool needs it", now)
            machine.is_ordered = True
            self._orders.append(Create(machine.machine_id))

    def _after_use(self, machine: Machine, reason: str, now: float) -> None:
        """To its next reset, or to its end if it has served its time."""
        uses, age = self._config.max_uses, self._config.max_age_seconds
        if uses is not None and machine.n_uses >= uses:
            self.counts.n_recycled += 1
            self._move(machine, DESTROYING, f"{reason}; it has served {machine.n_uses} leases", now)
        elif age is not None and now - machine.created_at >= age:
            self.counts.n_recycled += 1
            self._move(machine, DESTROYING, f"{reason}; it is older than {age:g} s", now)
        else:
            self._move(machine, RESETTING, reason, now)

    def _end(self, machine: Machine, reason: str, now: float) -> None:
        if machine.state is DESTROYING:
            return
        if machine.state is LEASED:
            self._lose(machine, reason)
        self._move(machine, DESTROYING, reason, now)

    def _lose(self, machine: Machine, reason: str) -> None:
        self._orders.append(Lose(machine.machine_id, machine.epoch, reason))
        machine.epoch += 1

    def _refuse(self, ticket: Ticket, reason: str) -> None:
        self._line.leave(ticket)
        self.counts.n_refused += 1
        self._orders.append(Refuse(ticket, reason))

    def _set_back(self, machine: Machine, reason: str, now: float) -> None:
        """Note a failure: who is to blame for it, or else that machines come to nothing."""
        self._setbacks.note(reason, now)
        if machine.n_uses == 0:
            self._setbacks.unmade(reason, now)
        if self._setbacks.blame(machine.blamed):
            for ticket in self._line.tickets:
                if ticket.holder == machine.blamed:
                    self._refuse(ticket, self._setbacks.verdict(ticket.holder))
        machine.blamed = None

    def _move(self, machine: Machine, state: MachineState, reason: str, now: float) -> None:
        self._pass_time(now)
        before = machine.state
        seconds = self._roster.move(machine, state, reason, now)
        self.counts.moved(before, state, seconds, is_fresh=machine.is_fresh)

    def _pass_time(self, now: float) -> None:
        n_leased = self._roster.n(LEASED)
        self.counts.pass_time(now, n_leased=n_leased, n_free=self.n_machines - n_leased, n_wanted=self._line.n_wanted)
