"""How long a run will still take: the one estimate that all views show."""

import heapq
import random
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from statistics import median

N_LENGTHS = 1000
"""Lengths that are kept: the latest."""

N_CONTINUATIONS = 15
N_DRAWN = 400
"""Waiting rollouts that are drawn one by one; of more, the rest is taken at its mean."""

BEYOND = 1.5
"""What has run longer than everything that has ended is taken to need half as long again."""


class TimeLeft:
    """The median of simulated continuations of the run, by the lengths of its own rollouts so far.

    A rollout that waits gets the length of any other, and the next free slot; one that runs gets the length of one that
    took longer than it has run. So rollouts that end early because they are short do not make the rest look short, and
    the last ones, which leave slots empty, are in the estimate. How many slots there are is how many rollouts have run
    at once, on average: if they wait for machines, or come and go faster than they are claimed, that is in it too.
    """

    def __init__(self) -> None:
        self._at: float | None = None
        self._n_done = 0
        self._starts: list[float] = []
        self._lengths: deque[float] = deque(maxlen=N_LENGTHS)
        self._new_lengths: list[float] = []
        self._began_at = 0.0
        self._ran_seconds = 0.0

    def ended(self, seconds: float | None) -> None:
        """How long a rollout took, before the look that counts it as done. If unknown, the oldest is taken to end."""
        if seconds is not None:
            self._new_lengths.append(seconds)

    def seconds(self, *, at: float, n_done: int, n_total: int, n_running: int) -> float | None:
        """Seconds from `at` on. Call it at every look, also where nothing shows it.

        None while nothing has ended; where all began at once, until half of them have.
        """
        self._look(at, n_done, n_running)
        if n_done >= n_total:
            return 0.0
        n_waiting = max(n_total - n_done - n_running, 0)
        if not self._lengths or (not n_waiting and len(self._lengths) < n_running):
            return None
        ages = [at - start for start in self._starts]
        slots = (self._ran_seconds + sum(ages)) / (at - self._began_at) if at > self._began_at else 0.0
        rng = random.Random(0)  # the same draws at every look, so that the estimate does not flicker
        lengths = sorted(self._lengths)
        return median(_continuation(rng, lengths, ages, n_waiting, slots) for _ in range(N_CONTINUATIONS))

    def _look(self, at: float, n_done: int, n_running: int) -> None:
        """Note what has begun and ended since the last look."""
        since, n_new = self._at, n_done - self._n_done
        if since is None or at < since:  # the wall clock may go back
            self._starts, self._began_at, self._ran_seconds, since, n_new = [], at, 0.0, at, 0
        self._at, self._n_done = at, n_done
        spent = at - since
        n_begun = max(n_running + n_new - len(self._starts), 0)
        if not (self._starts or self._ran_seconds):
            self._began_at = since if n_begun else at
        self._starts += [since + spent * (n + 1) / n_begun for n in range(n_begun)]
        known = self._new_lengths
        for seconds in known[:n_new]:
            self._starts.pop(max(bisect_right(self._starts, since - seconds) - 1, 0))
            self._ran_seconds += seconds
        for n in range(len(known), n_new):
            known.append(max(since + spent * (n + 1) / n_new - self._starts.pop(0), 0.0))
            self._ran_seconds += known[-1]
        del self._starts[n_running:]  # what went back to the queue
        self._lengths += known
        self._new_lengths = []


def _continuation(
    rng: random.Random, ended: Sequence[float], ages: Sequence[float], n_waiting: int, slots: float
) -> float:
    """Seconds until all is done, in one way in which it may go on."""
    lengths = list(ended)
    ends = []
    for age in sorted(ages, reverse=True):
        place = bisect_right(lengths, age)
        drawn = place + rng.randrange(len(lengths) - place + 1)
        length = lengths[drawn] if drawn < len(lengths) else max(age, ended[-1]) * BEYOND
        insort(lengths, length)
        ends.append(length - age)
    if not n_waiting:
        return max(ends)
    n_slots = max(round(slots), len(ends), 1)
    stretch = n_slots / slots if slots else 1.0  # of a slot that is empty between two rollouts
    n_drawn = min(n_waiting, N_DRAWN)
    ends += [0.0] * (n_slots - len(ends))
    heapq.heapify(ends)
    for _ in range(n_drawn):
        heapq.heapreplace(ends, ends[0] + stretch * rng.choice(lengths))
    return max(ends) + (n_waiting - n_drawn) * stretch * sum(lengths) / len(lengths) / n_slots


def left_text(seconds: float | None) -> str:
    """The time in words: `about 40 s left`, `about 2 h 5 min left`; empty if it is not known or over."""
    if not seconds:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"about {hours} h {minutes} min left"
    return f"about {minutes} min {rest} s left" if minutes else f"about {max(rest, 1)} s left"
