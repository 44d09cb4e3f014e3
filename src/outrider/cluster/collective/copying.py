"""A tensor copied out of its letter while that still comes, on a thread that neither event loop has to wake."""

import time

from outrider.cluster.collective.mailbox import Letter
from outrider.cluster.collective.memory import copy
from outrider.cluster.collective.segments import STEP_BYTES

FOLLOW_SECONDS = 0.02
"""So long a thread waits for more, and no longer: other letters need it too."""

POLL_SECONDS = 2e-5
SLICE_BYTES = 16 << 20
"""So much is copied before it is seen that the receiver has given up."""


class Copying:
    """How far the copy of one receiver is. `go_on` may run on any thread, one at a time."""

    def __init__(self, letter: Letter, target: memoryview) -> None:
        self.at = 0
        self._letter = letter
        self._target = target
        self._is_given_up = False

    @property
    def is_whole(self) -> bool:
        return self.at >= self._letter.n_bytes

    def go_on(self) -> None:
        """Copy what has come, and what comes meanwhile. On the loop only if all has."""
        letter, deadline = self._letter, time.monotonic() + FOLLOW_SECONDS
        while not (self.is_whole or self._is_given_up):
            end = min(self._n_here(), self.at + SLICE_BYTES)
            if end > self.at:
                copy(self._target[self.at : end], letter.parts[0][self.at : end])
                self.at, deadline = end, time.monotonic() + FOLLOW_SECONDS
            elif letter.is_withdrawn or time.monotonic() > deadline:
                return
            else:
                time.sleep(POLL_SECONDS)

    def give_up(self) -> None:
        """Write no more."""
        self._is_given_up = True

    def _n_here(self) -> int:
        """How much has come, as the loop was told or the sender's steps tell."""
        letter = self._letter
        n_stepped = 0 if letter.steps is None else letter.steps.n_taken() * STEP_BYTES
        return max(letter.n_arrived, min(n_stepped, letter.n_bytes))
