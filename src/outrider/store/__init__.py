"""The durable queue: one row a rollout, claimed once, leased, fenced."""

from outrider.store.opening import open_store
from outrider.store.protocol import Finished, Resources, Revoked, Statistics, Store
from outrider.store.url import StoreUrl

__all__ = ["Finished", "Resources", "Revoked", "Statistics", "Store", "StoreUrl", "open_store"]
