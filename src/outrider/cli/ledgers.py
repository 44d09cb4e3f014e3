"""The ledgers of a store, for `outrider status`: how far each is, and what it waits for."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

from msgspec import Struct
from rich.table import Table

from outrider.cli.console import Console
from outrider.core.account import Fate
from outrider.core.ledger import GroupState, Ledger
from outrider.store import Store
from outrider.train.watch import Phase, Standing, standings_of

N_SHOWN = 10
OPEN = "open"
"""What tokens are called whose group is not closed yet."""


class Waiting(Struct, frozen=True, kw_only=True):
    """A live member: in which phase it is, since when, and where."""

    group_id: str
    rollout_id: str
    tag: str
    phase: Phase
    since: datetime
    seconds: float
    worker_id: str


_DELIVERED = {Fate.TRAINED.value: "delivered"}
"""The store does not know what a trainer could learn of the tokens in a batch."""


class LedgerStatus(Struct, frozen=True, kw_only=True):
    """A ledger now. `live` are the members under way, longest without progress first."""

    name: str
    version: int
    epoch: int
    n_batches: int
    groups: Mapping[GroupState, int]
    tokens: Mapping[str, int]
    phases: Mapping[Phase, int]
    live: tuple[Waiting, ...]

    def print_to(self, console: Console) -> None:
        table = Table(title=f"Ledger {self.name}", title_justify="left", show_header=False)
        table.add_row("policy version", f"{self.version}, {self.n_batches} batches delivered, epoch {self.epoch}")
        table.add_row("groups", counts_text(self.groups.items()))
        table.add_row("tokens", counts_text((_DELIVERED.get(fate, fate), n) for fate, n in self.tokens.items()))
        table.add_row("members under way", counts_text(self.phases.items()))
        console.print(table)
        if self.live:
            console.print(_live_table(self))


async def ledgers_of(store: Store, now: datetime) -> list[LedgerStatus]:
    return [await _status_of(store, ledger, now) for ledger in await store.query_ledgers()]


async def _status_of(store: Store, ledger: Ledger, now: datetime) -> LedgerStatus:
    groups: Counter[GroupState] = Counter()
    for (_, state), n in (await store.count_groups(ledger.name)).items():
        groups[state] += n
    tally = await store.tally(ledger.name)
    standings = standings_of(await store.query_progress(ledger.name))
    phases = Counter(standing.phase for standing in standings)
    return LedgerStatus(
        name=ledger.name,
        version=ledger.version,
        epoch=ledger.epoch,
        n_batches=ledger.n_batches,
        groups={state: groups[state] for state in GroupState},
        tokens={fate or OPEN: tally.tokens.get(fate, 0) for fate in (*Fate, None)},
        phases={phase: phases[phase] for phase in Phase},
        live=tuple(_waiting(standing, now) for standing in standings),
    )


def _waiting(standing: Standing, now: datetime) -> Waiting:
    return Waiting(
        group_id=standing.group_id,
        rollout_id=standing.rollout_id,
        tag=standing.tag,
        phase=standing.phase,
        since=standing.since,
        seconds=round(standing.seconds(now), 3),
        worker_id=standing.worker_id,
    )


def counts_text(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in counts)


def _live_table(ledger: LedgerStatus) -> Table:
    more = len(ledger.live) - N_SHOWN
    caption = f"and {more:,} more; --json has all" if more > 0 else None
    title = f"What {ledger.name} waits for, longest without progress first"
    columns = ("member", "group", "environment", "phase", "for", "since (UTC)", "worker")
    table = Table(*columns, title=title, title_justify="left", caption=caption, caption_justify="left")
    for one in ledger.live[:N_SHOWN]:
        since = f"{one.since:%H:%M:%S}"
        table.add_row(one.rollout_id, one.group_id, one.tag, one.phase, f"{one.seconds:.0f} s", since, one.worker_id)
    return table
