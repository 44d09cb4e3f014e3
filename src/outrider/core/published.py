"""The policy that a trainer has published: where it is served, and which version of it workers run from now on."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

POLICY_KEY = "policy"
"""Under which name the store's resources hold it."""


class PublishedPolicy(Struct, frozen=True, kw_only=True):
    """A version of the policy. Where `model` and `base_urls` are not given, it is served as the one before it.

    While it is `paused`, no model call begins.
    """

    version: int = 0
    model: str | None = None
    base_urls: tuple[str, ...] = ()
    paused: bool = False


def published_in(resources: Mapping[str, Any]) -> PublishedPolicy | None:
    """The policy among a store's resources, if one is published there."""
    found = resources.get(POLICY_KEY)
    return None if found is None else msgspec.convert(found, PublishedPolicy)
