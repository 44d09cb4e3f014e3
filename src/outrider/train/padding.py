"""Rows of different lengths as arrays: padded to one length, or packed end to end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outrider.core.bounds import Count, PositiveCount, check_bounds
from outrider.core.errors import InvalidInput
from outrider.train.arrays import Bools, NDArray, np
from outrider.train.sample import Sample, no_tokens

Pad = Literal["right", "left"]
Overlong = Literal["error", "truncate"]

_FILL: dict[str, Any] = {"loss_mask": False, "logprobs": 0.0, "versions": -1}
"""What stands beside padding."""


_MOST = int(np.iinfo(np.int32).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How rows become arrays; see `Batch.to_numpy`."""

    pad: Pad | None = "right"
    pad_id: Count = 0
    max_length: PositiveCount | None = None
    pad_to_multiple_of: PositiveCount | None = None
    overlong: Overlong = "error"

    def __post_init__(self) -> None:
        if self.pad not in ("right", "left", None):
            raise InvalidInput(f"pad is {self.pad!r}; it may be 'right', 'left' or None")
        if self.overlong not in ("error", "truncate"):
            raise InvalidInput(f"overlong is {self.overlong!r}; it may be 'error' or 'truncate'")
        check_bounds(self)
        if self.pad is None and self.pad_to_multiple_of is not None:
            raise InvalidInput("pad_to_multiple_of is given, and pad is None: packed rows are not padded")

    def width(self, longest: int) -> int:
        """How long padded rows are. Rounding up to a multiple may go beyond `max_length`: what is added is padding."""
        step = self.pad_to_multiple_of or 1
        return -(-longest // step) * step


def token_arrays(samples: Sequence[Sample], layout: Layout) -> dict[str, NDArray[Any]]:
    """Arrays with an element for each token, and `lengths` and `is_cut` for each row. All are new."""
    whole = np.fromiter((sample.n_tokens for sample in samples), np.int32, len(samples))
    lengths = _kept_lengths(samples, whole, layout)
    kept = {name: _joined(samples, lengths, name) for name in ("tokens", *_FILL)}
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    positions = (np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)).astype(np.int32)
    rows: dict[str, NDArray[Any]] = {"lengths": lengths, "is_cut": lengths < whole}
    if layout.pad is None:
        if starts[-1] > _MOST:
            raise InvalidInput(f"{starts[-1]} tokens do not fit into one packed array; take fewer groups")
        return kept | rows | {"position_ids": positions, "cu_seqlens": starts.astype(np.int32)}
    there = _places(lengths, layout)
    fills = {"tokens": layout.pad_id, **_FILL}
    padded = {name: _spread(kept[name], there, fill) for name, fill in fills.items()}
    return padded | rows | {"position_ids": _spread(positions, there, 0), "attention_mask": there}


def _kept_lengths(samples: Sequence[Sample], whole: NDArray[np.int32], layout: Layout) -> NDArray[np.int32]:
    if layout.max_length is None:
        return whole
    too_long = np.flatnonzero(whole > layout.max_length)
    if too_long.size and layout.overlong == "error":
        worst = samples[int(np.argmax(whole))]
        raise InvalidInput(
            f"{too_long.size} of {whole.size} rows have more than {layout.max_length} tokens, the longest "
            f"{whole.max()} (rollout {worst.rollout_id!r}); raise max_length, or cut them off with overlong='truncate'"
        )
    return np.minimum(whole, np.int32(min(layout.max_length, _MOST)))


def _joined(samples: Sequence[Sample], lengths: NDArray[np.int32], name: str) -> NDArray[Any]:
    """One array of all rows, end to end. The end of a row that is too long is left out."""
    rows = [getattr(sample, name)[:length] for sample, length in zip(samples, lengths, strict=True)]
    return np.concatenate([no_tokens()[name], *rows])


def _places(lengths: NDArray[np.int32], layout: Layout) -> Bools:
    """Where a padded array has tokens."""
    width = layout.width(int(lengths.max(initial=0)))
    columns = np.arange(width, dtype=np.int32)
    if layout.pad == "right":
        return columns < lengths[:, None]
    return columns >= (width - lengths)[:, None]


def _spread(values: NDArray[Any], there: Bools, fill: Any) -> NDArray[Any]:
    """`values` in the places that are true, row by row, and `fill` in the others."""
    array = np.full(there.shape, fill, values.dtype)
    array[there] = values
    return array
