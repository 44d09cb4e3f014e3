"""Channels: queues with names between the workers of a cluster."""

from outrider.cluster.channel.channel import Channel
from outrider.cluster.channel.handles import Leased

__all__ = ["Channel", "Leased"]
