"""Who waits for machines, and whose turn it is: one line for each run, served in turns.

Invariants:
- Within a run, whoever came first is served first.
- Runs take turns: after a ticket is served, its run goes to the end, so that a large run cannot crowd out a small one.
- Whoever's turn it is is waited for. A ticket for several machines is not overtaken by those that ask for fewer, so it
  is served as soon as so many are free; until then nobody owns the ones that are.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A wish for `n` machines at once. Numbers grow in the order the tickets were drawn."""

    number: int
    run: str
    holder: str
    n: int
    asked_at: float


class WaitingLine:
    """Tickets in the order they will be served."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[int, Ticket]] = {}
        self.n_wanted = 0
        """How many machines the tickets ask for together."""

    def __len__(self) -> int:
        return sum(len(tickets) for tickets in self._runs.values())

    @property
    def tickets(self) -> tuple[Ticket, ...]:
        """All, run by run."""
        return tuple(ticket for tickets in self._runs.values() for ticket in tickets.values())

    @property
    def next(self) -> Ticket | None:
        """Whose turn it is."""
        return next((ticket for tickets in self._runs.values() for ticket in tickets.values()), None)

    def join(self, ticket: Ticket) -> None:
        self._runs.setdefault(ticket.run, {})[ticket.number] = ticket
        self.n_wanted += ticket.n

    def leave(self, ticket: Ticket) -> bool:
        """Whether it was still waiting. Its run keeps its turn."""
        tickets = self._runs.get(ticket.run, {})
        if tickets.pop(ticket.number, None) is None:
            return False
        self.n_wanted -= ticket.n
        if not tickets:
            del self._runs[ticket.run]
        return True

    def serve(self, ticket: Ticket) -> None:
        """It leaves, and the other runs come before its own."""
        self.leave(ticket)
        if ticket.run in self._runs:
            self._runs[ticket.run] = self._runs.pop(ticket.run)
