"""What the shared half of a store hands to its engine of a ledger, and what an engine is to write for it.

`plan_of` decides for all engines alike: an engine reads what a step touches, asks it, and writes what it says.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from outrider.core.account import Fate
from outrider.core.clock import utc
from outrider.core.errors import InvalidInput, LedgerLost, UnknownId
from outrider.core.ledger import BEFORE, Grant, GroupEntry, GroupMove, GroupState, Ledger, LedgerWrite, NewGroup
from outrider.core.rollout import RolloutRequest
from outrider.store.steps import (
    NewRollout,
    check_id,
    check_integer,
    check_kind,
    check_text,
    check_window,
    checked_ids,
    member,
    new_rollout,
)


class LedgerStep(Struct, frozen=True, kw_only=True):
    """A checked write to a ledger. `new` are the members of the groups to open, then the further ones."""

    ledger: str
    epoch: int
    opened: tuple[NewGroup, ...] = ()
    new: tuple[NewRollout, ...] = ()
    granted: tuple[Grant, ...] = ()
    moved: tuple[GroupMove, ...] = ()
    fates: Mapping[str, Fate] = {}
    version: int | None = None

    @property
    def group_ids(self) -> tuple[str, ...]:
        """The groups that a plan for this step must know, if they are there."""
        opened = (group.group_id for group in self.opened)
        grown = (one.request.group_id for one in self.new if one.request.group_id is not None)
        return tuple(dict.fromkeys((*opened, *grown, *(move.group_id for move in self.moved))))


class GroupQuery(Struct, frozen=True, kw_only=True):
    """Which groups of a ledger to list."""

    ledger: str
    states: tuple[GroupState, ...] | None = None
    batch: int | None = None
    group_ids: tuple[str, ...] | None = None
    limit: int = -1
    offset: int = 0

    def __post_init__(self) -> None:
        check_id("ledger", self.ledger)
        check_window(self.limit, self.offset)
        if self.batch is not None:
            check_integer("batch", self.batch, bits=64, least=0)


class LedgerPlan(Struct, frozen=True, kw_only=True):
    """What a step changes besides its new members, grants and fates: groups as they are to stand after it."""

    inserted: tuple[GroupEntry, ...]
    moved: tuple[GroupEntry, ...]
    """Groups that were there before. Their clocks are those from before the grants of this step."""
    closed: tuple[str, ...]
    """Those of `moved` that are closed by this step, whose asks are to be forgotten."""
    version: int
    n_opened: int
    n_batches: int


def step_of(ledger: Ledger, write: LedgerWrite) -> LedgerStep:
    """Check a write as far as that can be done without the store; `InvalidInput` says what to give instead."""
    check_kind("a ledger", ledger, Ledger)
    check_kind("a write to a ledger", write, LedgerWrite)
    requests = [request for group in map(_checked_group, write.opened) for request in group.members]
    new = tuple(_member_of_a_group(request) for request in (*requests, *write.members))
    _refuse_twice("rollout_id", [one.rollout_id for one in new])
    _refuse_twice("group_id", [group.group_id for group in write.opened])
    if any(before.number >= after.number for before, after in pairwise(write.opened)):
        raise InvalidInput("groups to open must stand in the order of their numbers, each with a number of its own")
    if write.version is not None:
        check_integer("version", write.version, bits=64, least=0)
    return LedgerStep(
        ledger=ledger.name,
        epoch=ledger.epoch,
        opened=write.opened,
        new=new,
        granted=tuple(map(_checked_grant, write.granted)),
        moved=_checked_moves(write.moved),
        fates={checked_ids("fates", (id,))[0]: member(Fate, fate) for id, fate in write.fates.items()},
        version=write.version,
    )


def plan_of(
    step: LedgerStep, ledger: Ledger, found: Mapping[str, GroupEntry], fresh: Sequence[NewRollout], now: float
) -> LedgerPlan:
    """What a step changes: `found` are the groups of its `group_ids`, `fresh` those of its members not yet there.

    Raises `LedgerLost` if its epoch is over and `InvalidInput` for what cannot be done: then nothing of it may be.
    """
    if step.epoch != ledger.epoch:
        raise LedgerLost(step.ledger, step.epoch, ledger.epoch)
    groups = {id: _of_ledger(entry, step.ledger) for id, entry in found.items()}
    inserted = [group for group in step.opened if not _is_repeated(group, groups.get(group.group_id))]
    for group in inserted:
        if group.number < ledger.n_opened:
            raise InvalidInput(
                f"group {group.group_id!r} cannot be number {group.number} of ledger {step.ledger!r}: "
                f"numbers below {ledger.n_opened} are taken"
            )
        groups[group.group_id] = _entry_of(group, step.ledger, now)
    for one in fresh:
        _refuse_closed(one, groups)
    for group_id, moves in _by_group(step.moved).items():
        groups[group_id] = _moved(_known(groups, group_id), moves, now)
    changed = [entry for id, entry in groups.items() if id in found and entry.state is not found[id].state]
    new = tuple(groups[group.group_id] for group in inserted)
    batches = [entry.batch for entry in (*new, *changed) if entry.batch is not None]
    return LedgerPlan(
        inserted=new,
        moved=tuple(changed),
        closed=tuple(e.group_id for e in changed if e.state.is_closed and not found[e.group_id].state.is_closed),
        version=max(ledger.version, -1 if step.version is None else step.version),
        n_opened=max([ledger.n_opened, *(entry.number + 1 for entry in new)]),
        n_batches=max([ledger.n_batches, *(batch + 1 for batch in batches)]),
    )


def clocks_of(granted: Collection[Grant]) -> dict[str, int]:
    """The least version that is granted now in each group: its clock becomes no higher."""
    clocks: dict[str, int] = {}
    for grant in granted:
        clocks[grant.group_id] = min(grant.version, clocks.get(grant.group_id, grant.version))
    return clocks


def _entry_of(group: NewGroup, ledger: str, now: float) -> GroupEntry:
    return GroupEntry(
        group_id=group.group_id,
        ledger=ledger,
        number=group.number,
        state=GroupState.OPENED,
        tag=group.tag,
        seed=group.seed,
        size=group.size,
        opened_at=utc(now),
        moved_at=utc(now),
    )


def _of_ledger(entry: GroupEntry, ledger: str) -> GroupEntry:
    if entry.ledger != ledger:
        raise InvalidInput(f"group {entry.group_id!r} is in ledger {entry.ledger!r}, not in {ledger!r}")
    return entry


def _is_repeated(group: NewGroup, entry: GroupEntry | None) -> bool:
    if entry is None:
        return False
    if (group.number, group.tag, group.seed, group.size) != (entry.number, entry.tag, entry.seed, entry.size):
        raise InvalidInput(
            f"group {group.group_id!r} was opened before, as number {entry.number} and otherwise than now; "
            "give a new group an id of its own"
        )
    return True


def _known(groups: Mapping[str, GroupEntry], group_id: str) -> GroupEntry:
    if group_id not in groups:
        raise UnknownId("group", group_id)
    return groups[group_id]


def _refuse_closed(new: NewRollout, groups: Mapping[str, GroupEntry]) -> None:
    entry = _known(groups, new.request.group_id or "")
    if entry.state.is_closed:
        raise InvalidInput(
            f"rollout {new.rollout_id!r} cannot become a member of group {entry.group_id!r}, which is {entry.state}"
        )


def _by_group(moves: Sequence[GroupMove]) -> dict[str, list[GroupMove]]:
    found: dict[str, list[GroupMove]] = {}
    for move in moves:
        found.setdefault(move.group_id, []).append(move)
    return found


def _moved(entry: GroupEntry, moves: Sequence[GroupMove], now: float) -> GroupEntry:
    """The group after these moves; unchanged if it stands where they lead to, for then they are repeated."""
    if entry.state is moves[-1].state:
        for move in moves:
            if move.batch not in (None, entry.batch):
                raise InvalidInput(
                    f"group {entry.group_id!r} is in batch {entry.batch}, so it cannot be in {move.batch}"
                )
        return entry
    for move in moves:
        _refuse_detour(entry.group_id, entry.state, move.state)
        entry = replace(
            entry,
            state=move.state,
            batch=entry.batch if move.batch is None else move.batch,
            members=move.members or entry.members,
            reason=entry.reason if move.reason is None else move.reason,
            moved_at=utc(now),
        )
    return entry


def _refuse_detour(group_id: str, state: GroupState, to: GroupState) -> None:
    if to is not state and state not in BEFORE.get(to, ()):
        after = ", ".join(later for later, before in BEFORE.items() if state in before)
        raise InvalidInput(f"group {group_id!r} is {state} and cannot become {to}, only: {after or 'nothing else'}")


def _checked_moves(moves: Sequence[GroupMove]) -> tuple[GroupMove, ...]:
    checked = tuple(map(_checked_move, moves))
    for group_id, several in _by_group(checked).items():
        for before, after in pairwise(several):
            _refuse_detour(group_id, before.state, after.state)
    return checked


def _checked_group(group: NewGroup) -> NewGroup:
    check_kind("a group to open", group, NewGroup)
    check_id("group_id", group.group_id)
    check_id("tag of a group", group.tag)
    check_integer("number of a group", group.number, bits=63, least=0)
    check_integer("seed of a group", group.seed, bits=64)
    check_integer("size of a group", group.size, bits=32, least=1)
    for request in group.members:
        check_kind("a member of a group", request, RolloutRequest)
        if request.group_id != group.group_id:
            raise InvalidInput(
                f"a member of group {group.group_id!r} has the group_id {request.group_id!r}; give it the group's"
            )
    return group


def _member_of_a_group(request: RolloutRequest) -> NewRollout:
    check_kind("a member of a group", request, RolloutRequest)
    if request.rollout_id is None or request.group_id is None:
        raise InvalidInput("a member of a group needs a rollout_id and a group_id, so that the write can be repeated")
    return new_rollout(request)


def _refuse_twice(name: str, ids: Sequence[str]) -> None:
    if len(set(ids)) < len(ids):
        twice = next(id for id in ids if ids.count(id) > 1)
        raise InvalidInput(f"the {name} {twice!r} is given twice in one write; nothing was written")


def _checked_grant(grant: Grant) -> Grant:
    check_kind("a grant", grant, Grant)
    check_id("group_id of a grant", grant.group_id)
    check_id("attempt_id of a grant", grant.attempt_id)
    check_integer("version of a grant", grant.version, bits=64, least=0)
    return grant


def _checked_move(move: GroupMove) -> GroupMove:
    check_kind("a move", move, GroupMove)
    check_id("group_id of a move", move.group_id)
    if move.batch is not None:
        check_integer("batch of a move", move.batch, bits=63, least=0)
    if move.reason is not None:
        check_text("reason of a move", move.reason)
    state = member(GroupState, move.state)
    for needed, name, given in (
        (GroupState.COMPLETE, "members", bool(move.members)),
        (GroupState.DELIVERED, "batch", move.batch is not None),
        (GroupState.DROPPED, "reason", bool(move.reason)),
    ):
        if state is needed and not given:
            raise InvalidInput(f"group {move.group_id!r} becomes {state} without a {name}; give its {name}")
    return replace(move, state=state, members=checked_ids("members of a move", move.members))
