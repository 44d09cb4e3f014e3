"""A page of a query's answer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """`items` from `offset`, at most `limit` of `total` (-1: all). Iterable and sized."""

    items: tuple[T, ...]
    total: int
    limit: int
    offset: int

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> T:
        return self.items[index]
