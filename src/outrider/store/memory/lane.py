"""What waits in one lane of the memory engine: highest priority first, then oldest.

Places only grow, so rollouts that wait for the first time stand in plain queues, one a priority: to take the next one
costs the same however many wait. A heap holds the head of each queue, and what waits again in its old place.
"""

import heapq
from collections import deque


class Lane:
    """Places in the order in which they are taken."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[int]] = {}
        self._heads: list[tuple[int, int]] = []

    def add(self, priority: int, seq: int) -> None:
        """A new rollout, whose place comes after all that were added before."""
        queue = self._queues.setdefault(-priority, deque())
        if not queue:
            heapq.heappush(self._heads, (-priority, seq))
        queue.append(seq)

    def add_again(self, priority: int, seq: int) -> None:
        """A rollout that was taken before."""
        heapq.heappush(self._heads, (-priority, seq))

    @property
    def head(self) -> tuple[int, int] | None:
        """What comes next, comparable with the heads of other lanes: its priority turned round, and its place."""
        return self._heads[0] if self._heads else None

    def pop(self) -> None:
        """Take the head."""
        rank, seq = heapq.heappop(self._heads)
        queue = self._queues.get(rank)
        if queue and queue[0] == seq:
            queue.popleft()
            if queue:
                heapq.heappush(self._heads, (rank, queue[0]))
            else:
                del self._queues[rank]
