"""The policy that a trainer has published: where it is served, and which version of it workers run from now on."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from outrider.core.decoding import convert

POLICY_KEY = "policy"
"""Under which name the store's resources hold it."""


class Served(Struct, frozen=True, kw_only=True):
    """Where a policy is served. What is not given is as it was before."""

    model: str | None = None
    base_urls: tuple[str, ...] = ()

    def after(self, before: "Served") -> "Served":
        return Served(model=self.model or before.model, base_urls=self.base_urls or before.base_urls)


class PublishedPolicy(Struct, frozen=True, kw_only=True):
    """A version of the policy. Where `model` and `base_urls` are not given, it is served as the one before it.

    While it is `paused`, no model call begins. `further` are policies beside the run's own, by name; one version stands
    for all of them together.
    """

    version: int = 0
    model: str | None = None
    base_urls: tuple[str, ...] = ()
    paused: bool = False
    further: Mapping[str, Served] = {}

    def after(self, before: "PublishedPolicy") -> "PublishedPolicy":
        """With what is left out of it as it was before."""
        own, further = self.served().after(before.served()), dict(before.further)
        for name, served in self.further.items():
            further[name] = served.after(before.served(name))
        return replace(self, model=own.model, base_urls=own.base_urls, further=further)

    def served(self, name: str = "") -> Served:
        """Where the policy of this name is served; the empty name is the run's own."""
        return self.further.get(name, Served()) if name else Served(model=self.model, base_urls=self.base_urls)


def published_in(resources: Mapping[str, Any]) -> PublishedPolicy | None:
    """The policy among a store's resources, if one is published there."""
    found = resources.get(POLICY_KEY)
    return None if found is None else convert(found, PublishedPolicy)
