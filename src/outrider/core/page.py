"""A page of a query's answer."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")


class Page(Struct, Generic[T], frozen=True, kw_only=True):
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
