"""Filters: which complete groups are not worth training on, and why."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from outrider.core.errors import InvalidInput
from outrider.core.loading import load


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """A complete group as a filter sees it; the tuples have one element for each member."""

    group_id: str
    tag: str
    seed: int
    rewards: tuple[float, ...]
    metrics: tuple[Mapping[str, float], ...]
    n_turns: tuple[int, ...]
    completion_tokens: tuple[int, ...]


GroupFilter = Callable[[GroupResult], bool | str]
"""Whether to drop the group: true, or a text that says why."""


def zero_variance(group: GroupResult) -> bool:
    """All members have the same reward, so that none is better than its group."""
    return min(group.rewards) == max(group.rewards)


BUILT_IN: Mapping[str, GroupFilter] = {"zero_variance": zero_variance}


class Filters:
    """Filters by name: those built in, and a user's own as `module:function`."""

    def __init__(self, names: Sequence[str]) -> None:
        self._filters = {name: _filter_of(name) for name in names}

    def reason_to_drop(self, group: GroupResult) -> str | None:
        """Why the first filter that drops the group does so; None if all of them keep it."""
        for name, drops in self._filters.items():
            try:
                answer = drops(group)
            except Exception as exc:
                raise InvalidInput(f"the filter {name} failed on group {group.group_id}: {exc!r}") from exc
            if answer:
                return f"{name}: {answer}" if isinstance(answer, str) else name
        return None


def _filter_of(name: str) -> GroupFilter:
    if name in BUILT_IN:
        return BUILT_IN[name]
    if ":" not in name:
        raise InvalidInput(
            f"there is no filter {name!r}; there are {', '.join(BUILT_IN)}, or your own as module:function"
        )
    found = load(name, "filter", such_as="my_filters:too_easy")
    if not callable(found):
        raise InvalidInput(f"the filter {name!r} is not a function; write one that takes a GroupResult")
    chosen: GroupFilter = found
    return chosen
