"""What a batch and the time before it were like, as flat numbers for a log.

Names: `env/TAG/…` are means over the trajectories of a tag, with the environment's own metrics among them; `tokens/…`
are sums since the batch before; `groups/…`, `slots/…` and `batch/…` are of this moment.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from outrider.core.account import Account, Fate

TIMES = ("reset_seconds", "held_seconds", "model_seconds", "env_seconds")
COUNTED_ELSEWHERE = frozenset({"turns", "prompt_tokens", "completion_tokens", "cached_tokens", "retries", *TIMES})


class Occupancy:
    """How many slots were busy on average, from looks now and then."""

    def __init__(self, n_slots: int) -> None:
        self._n_slots = n_slots
        self._looks: list[int] = []

    def look(self, n_busy: int) -> None:
        self._looks.append(n_busy)

    @property
    def has_looked(self) -> bool:
        return bool(self._looks)

    def take(self) -> float:
        """The share of slots that were busy since this was asked last; 0 if nobody looked."""
        looks, self._looks = self._looks, []
        return fmean(looks) / self._n_slots if looks else 0.0


class LengthBias:
    """Turns of what was trained on against turns of all that ended: 1 if long trajectories are not left out."""

    def __init__(self) -> None:
        self._offered: Counter[str] = Counter()
        self._trained: Counter[str] = Counter()

    def offered(self, account: Account) -> None:
        self._offered.update(n=1, turns=account.n_turns)

    def trained(self, accounts: Iterable[Account]) -> None:
        for account in accounts:
            self._trained.update(n=1, turns=account.n_turns)

    @property
    def ratio(self) -> float:
        if not (self._trained["turns"] and self._offered["turns"]):
            return 1.0
        trained = self._trained["turns"] / self._trained["n"]
        return trained / (self._offered["turns"] / self._offered["n"])


class Trained(NamedTuple):
    """A trajectory of a batch."""

    group_id: str
    tag: str
    reward: float
    account: Account


def metrics_of(trained: Sequence[Trained], version: int) -> dict[str, float]:
    """Those of the trajectories in a batch."""
    firsts = [one.account.first_version for one in trained]
    ages = [version - first for first in firsts if first is not None]
    found = {
        "batch/reward": fmean(one.reward for one in trained),
        "staleness/mean": fmean(ages) if ages else 0.0,
        "staleness/max": float(max(ages, default=0)),
    }
    by_tag: dict[str, list[Trained]] = defaultdict(list)
    for one in trained:
        by_tag[one.tag].append(one)
    for tag, own in by_tag.items():
        found |= {f"env/{tag}/{name}": value for name, value in _tag_metrics(own).items()}
    return found


def _tag_metrics(trained: Sequence[Trained]) -> dict[str, float]:
    accounts = [one.account for one in trained]
    found = {
        "reward": fmean(one.reward for one in trained),
        "turns": fmean(account.n_turns for account in accounts),
        "completion_tokens": fmean(account.completion_tokens for account in accounts),
        "prompt_tokens": fmean(account.prompt_tokens for account in accounts),
        "groups": float(len({one.group_id for one in trained})),
    }
    found |= {name: fmean(getattr(account, name) for account in accounts) for name in TIMES}
    own: dict[str, list[float]] = defaultdict(list)
    for account in accounts:
        for name, value in account.metrics.items():
            if name not in COUNTED_ELSEWHERE:
                own[name].append(value)
    return found | {name: fmean(values) for name, values in own.items()}


def token_metrics(flow: Mapping[Fate, int]) -> dict[str, float]:
    return {f"tokens/{fate}": float(flow.get(fate, 0)) for fate in Fate}
