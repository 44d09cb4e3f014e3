"""From turns to sequences: turns go into one sequence where their token ids continue exactly, and only there.

Invariants:
- A turn goes on from the longest earlier turn whose prompt and completion its own prompt begins with, id for id. If no
  other turn has gone on from there, it lengthens that turn's sequence; otherwise it forks, into a new one.
- Each completion is new in exactly one sequence. Where a fork repeats it, it is context.
- Ids are compared and joined as the engine gave them, never made from text.
- The order of turns matters only between prompts of the same length: of two that could lengthen a sequence, the shorter
  prompt does, and of equally long ones the earlier turn.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from outrider.train.arrays import PACKED_FLOAT, PACKED_INT, NDArray, frozen, np, unpacked


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTurn:
    """One model call in packed ids. `logprobs` has one number for each id of the completion, or none at all."""

    index: int
    prompt: bytes
    completion: bytes
    logprobs: bytes
    version: int

    @property
    def length(self) -> int:
        """Bytes of prompt and completion."""
        return len(self.prompt) + len(self.completion)

    @property
    def place(self) -> slice:
        """Where the completion's tokens are, in any sequence that holds them."""
        size = PACKED_INT.itemsize
        return slice(len(self.prompt) // size, self.length // size)

    def is_continued_by(self, prompt: bytes) -> bool:
        return prompt.startswith(self.completion, len(self.prompt)) and prompt.startswith(self.prompt)


@dataclass(slots=True, kw_only=True)
class TokenSequence:
    """Turns that continue each other. `context` are the turns before its first one that other sequences hold."""

    context: tuple[TokenTurn, ...] = ()
    turns: list[TokenTurn] = field(default_factory=list)

    @property
    def is_fork(self) -> bool:
        return bool(self.context)

    @property
    def indices(self) -> tuple[int, ...]:
        return tuple(turn.index for turn in self.turns)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that the last turn's model saw and said, one element a token, with what a sample has beside it."""
        last = self.turns[-1]
        tokens = unpacked(last.prompt + last.completion, PACKED_INT)
        mask = np.zeros(tokens.size, np.bool_)
        logprobs = np.zeros(tokens.size, np.float32)
        versions = np.full(tokens.size, -1, np.int32)
        for turn in self.context:
            versions[turn.place] = turn.version
        for turn in self.turns:
            versions[turn.place] = turn.version
            mask[turn.place] = True
            given = unpacked(turn.logprobs, PACKED_FLOAT)
            logprobs[turn.place] = np.where(np.isfinite(given), given, np.nan) if turn.logprobs else np.nan
        return {
            "tokens": frozen(tokens),
            "loss_mask": frozen(mask),
            "logprobs": frozen(logprobs),
            "versions": frozen(versions),
        }


@dataclass(slots=True)
class _End:
    """Where a turn ended, and whether the next one can go on from there within the same sequence."""

    turn: TokenTurn
    sequence: TokenSequence

    @property
    def length(self) -> int:
        return self.turn.length

    @property
    def is_open(self) -> bool:
        return self.sequence.turns[-1] is self.turn

    def path(self) -> tuple[TokenTurn, ...]:
        """All turns up to this one."""
        n_turns = next(n for n, turn in enumerate(self.sequence.turns, 1) if turn is self.turn)
        return (*self.sequence.context, *self.sequence.turns[:n_turns])


def sequences_of(turns: Iterable[TokenTurn]) -> list[TokenSequence]:
    """The sequences of one agent's turns, in the order of their first turns."""
    ends: list[_End] = []
    sequences: list[TokenSequence] = []
    for turn in sorted(turns, key=lambda turn: (len(turn.prompt), turn.index)):
        end = _end_before(turn.prompt, ends)
        if end is not None and end.is_open:
            sequence = end.sequence
        else:
            sequence = TokenSequence(context=() if end is None else end.path())
            sequences.append(sequence)
        sequence.turns.append(turn)
        insort(ends, _End(turn, sequence), key=attrgetter("length"))
    return sorted(sequences, key=lambda sequence: sequence.turns[0].index)


def _end_before(prompt: bytes, ends: list[_End]) -> _End | None:
    """The longest end that the prompt begins with; of equal ones an open one, and then the latest."""
    found = None
    for end in _not_longer(len(prompt), ends):
        if found is not None and (found.is_open or end.length < found.length):
            break
        if end.turn.is_continued_by(prompt) and (found is None or end.is_open):
            found = end
    return found


def _not_longer(length: int, ends: list[_End]) -> Iterator[_End]:
    """The longest first."""
    for index in reversed(range(bisect_right(ends, length, key=attrgetter("length")))):
        yield ends[index]
