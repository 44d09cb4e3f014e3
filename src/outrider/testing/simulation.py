"""Programs run in an order that a seed chooses, on virtual time: each seed is one schedule, and always the same one.

asyncio runs what is ready first come, first served, so most interleavings never happen in a test. A `SeededLoop` picks
by the seed which of the ready callbacks runs next. What fails under a seed fails under it again, and `shrink` finds how
few of its picks are needed: with all others first come, first served, those few tell the story.

What a program does must depend on the seed alone: no time but the loop's, no thread, no randomness of its own.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from outrider.testing.virtual_time import VirtualLoop

T = TypeVar("T")

Program = Callable[[int], Coroutine[Any, Any, Any]]
"""Makes the coroutine to run under a seed."""

N_TRIES = 300
"""How often `shrink` runs a program at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Which ready callback runs next: the seed chooses at `picks`, or everywhere if None; elsewhere the first runs."""

    seed: int
    picks: frozenset[int] | None = None

    def __str__(self) -> str:
        return f"seed {self.seed}" if self.picks is None else f"seed {self.seed}, picks {sorted(self.picks)}"

    def choose(self, number: int, n_ready: int) -> int:
        """Independent of the picks before it, so that leaving one out changes no other."""
        if n_ready < 2 or (self.picks is not None and number not in self.picks):  # noqa: PLR2004 one leaves no choice
            return 0
        digest = hashlib.blake2b(b"%d/%d" % (self.seed, number), digest_size=8).digest()
        return int.from_bytes(digest) % n_ready


class _Ready(deque[Any]):
    """The loop's queue of ready callbacks."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self._schedule = schedule
        self.n_picks = 0
        self.deviations: list[int] = []
        """The picks that took another than the first."""

    def popleft(self) -> Any:
        place = self._schedule.choose(self.n_picks, len(self))
        if place:
            self.deviations.append(self.n_picks)
        self.n_picks += 1
        self.rotate(-place)
        picked = super().popleft()
        self.rotate(place)
        return picked


class SeededLoop(VirtualLoop):
    """Virtual time, and what is ready runs in the order of a schedule."""

    def __init__(self, schedule: Schedule, *, limit_seconds: float | None = None) -> None:
        super().__init__(limit_seconds=limit_seconds)
        self._ready: _Ready = _Ready(schedule)

    @property
    def deviations(self) -> tuple[int, ...]:
        """The picks so far that took another callback than the first."""
        return tuple(self._ready.deviations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A schedule under which the program failed, how, and the picks it had made by then."""

    schedule: Schedule
    error: BaseException
    deviations: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.schedule}: {type(self.error).__name__}: {self.error}"


def run_seeded(program: Program, schedule: Schedule | int, *, limit_seconds: float | None = None) -> Any:
    """Run the program under one schedule, and raise what it raises."""
    failed, result = _tried(program, _schedule(schedule), limit_seconds)
    if failed is not None:
        raise failed.error
    return result


def explore(program: Program, seeds: Iterable[int], *, limit_seconds: float | None = None) -> Iterator[Failed]:
    """The seeds under which the program fails."""
    for seed in seeds:
        failed, _ = _tried(program, Schedule(seed=seed), limit_seconds)
        if failed is not None:
            yield failed


def shrink(program: Program, failed: Failed, *, limit_seconds: float | None = None, n_tries: int = N_TRIES) -> Failed:
    """The failure with as few picks left to the seed as can be found: any error of the same type counts as the same.

    Leaves out ever smaller parts of the picks for as long as the program fails without them.
    """
    picks = list(failed.deviations)
    size = max(1, len(picks) // 2)
    while n_tries > 0 and picks:
        for begin in range(0, len(picks), size):
            fewer = picks[:begin] + picks[begin + size :]
            again = _fails_with(program, failed, fewer, limit_seconds)
            n_tries -= 1
            if again is not None:
                failed, picks = again, [pick for pick in again.deviations if pick in set(fewer)]
                break
            if n_tries == 0:
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
            continue
        size = min(size, max(1, len(picks) // 2))
    return failed


def _fails_with(program: Program, failed: Failed, picks: Collection[int], limit_seconds: float | None) -> Failed | None:
    schedule = Schedule(seed=failed.schedule.seed, picks=frozenset(picks))
    again, _ = _tried(program, schedule, limit_seconds)
    return again if again is not None and type(again.error) is type(failed.error) else None


def _tried(program: Program, schedule: Schedule, limit_seconds: float | None) -> tuple[Failed | None, Any]:
    loop = SeededLoop(schedule, limit_seconds=limit_seconds)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            return None, runner.run(program(schedule.seed))
        except Exception as exc:  # noqa: BLE001 whatever the program raises is what it was run for
            return Failed(schedule=schedule, error=exc, deviations=loop.deviations), None
        finally:
            loop.lift_limit()


def _schedule(given: Schedule | int) -> Schedule:
    return given if isinstance(given, Schedule) else Schedule(seed=given)
