"""What the pools of several shares have counted, as if they were one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from outrider.pool.statistics import PoolStatistics, Quantiles

_MAPPINGS = ("states", "n_failures")
_DURATIONS = ("wait_seconds", "hold_seconds", "reset_seconds", "create_seconds")
_PERCENT = {"p50": 50, "p95": 95, "p99": 99, "greatest": 100}


def summed(parts: Sequence[PoolStatistics]) -> PoolStatistics:
    """Counts are added, and utilisation is that of all machines.

    A quantile of all durations cannot be told from those of the parts; it is the least of these that it cannot exceed.
    """
    values: dict[str, Any] = {}
    for field in PoolStatistics.__struct_fields__:
        found = [getattr(part, field) for part in parts]
        if field in _MAPPINGS:
            values[field] = _added(found)
        elif field in _DURATIONS:
            values[field] = _spread([one for one in found if one is not None])
        elif field != "utilisation":
            values[field] = sum(found)
    leased = sum(part.busy_seconds * (part.utilisation or 0.0) for part in parts)
    busy = values["busy_seconds"]
    return PoolStatistics(**values, utilisation=leased / busy if busy else None)


def of_the_gone(counted: PoolStatistics) -> PoolStatistics:
    """Of a pool that is lost: what it has done remains, what it had does not."""
    return structs.replace(counted, states={}, n_machines=0, n_waiting=0, n_wanted=0)


def _added(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return dict(sum((Counter(each) for each in counts), Counter[str]()))


def _spread(parts: Sequence[Quantiles]) -> Quantiles | None:
    if not parts:
        return None
    n = sum(part.n for part in parts)
    values = sorted({getattr(part, name) for part in parts for name in _PERCENT})

    def below(value: float) -> int:
        """The percents of each part that are surely not greater, times how many they are of."""
        sure = (max((p for name, p in _PERCENT.items() if getattr(part, name) <= value), default=0) for part in parts)
        return sum(percent * part.n for percent, part in zip(sure, parts, strict=True))

    found = {name: next(v for v in values if below(v) >= percent * n) for name, percent in _PERCENT.items()}
    return Quantiles(n=n, **found)
