"""Retries of samples: `outrider retry` runs `q7:0` again as `q7:0~1`, which then counts in its place."""

import re
from collections.abc import Iterable

_RETRY = re.compile(r"^(?P<first>.*)~(?P<number>\d+)$")


def split_retry(rollout_id: str) -> tuple[str, int]:
    """The id that the sample had at first, and how often it was retried since."""
    if match := _RETRY.match(rollout_id):
        return match["first"], int(match["number"])
    return rollout_id, 0


def next_retry(rollout_id: str) -> str:
    """The id of the next retry."""
    first, number = split_retry(rollout_id)
    return f"{first}~{number + 1}"


def is_retry(rollout_id: str) -> bool:
    return split_retry(rollout_id)[1] > 0


def replaced(ended: Iterable[str]) -> frozenset[str]:
    """Those of the ended rollouts in whose place a later retry of the same sample is counted, which has ended too."""
    ended = list(ended)
    latest: dict[str, int] = {}
    for rollout_id in ended:
        first, number = split_retry(rollout_id)
        latest[first] = max(number, latest.get(first, 0))
    return frozenset(one for one in ended if split_retry(one)[1] < latest[split_retry(one)[0]])
