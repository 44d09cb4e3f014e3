"""What callers give to a channel of either kind, checked."""

from collections.abc import Sequence

from outrider.core.errors import InvalidInput

DEFAULT_KEY = "default"


def weights_of(weight: float | Sequence[float], n_items: int, channel: object) -> list[float]:
    """One weight for each item of a `put_many`."""
    weights = [weight] * n_items if isinstance(weight, int | float) else list(weight)
    if len(weights) != n_items:
        raise InvalidInput(f"put_many on {channel}: {n_items} items, but {len(weights)} weights")
    return weights


def check_batch(n: int | None, weight: float | None, channel: object) -> None:
    """Raise `InvalidInput` unless this says how large a batch shall be."""
    if (n is None and weight is None) or (n is not None and n < 1) or (weight is not None and weight <= 0):
        raise InvalidInput(f"get_batch on {channel} needs n of at least 1, or a weight above 0; not {n} and {weight}")
