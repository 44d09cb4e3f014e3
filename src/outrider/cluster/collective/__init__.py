"""Messages between workers: objects and tensors from one to another, by the fastest way there is."""

from outrider.cluster.collective.group import CollectiveGroup

__all__ = ["CollectiveGroup"]
