"""The worker that is a channel."""

from outrider.cluster.channel.host import ChannelHost
from outrider.cluster.post import Endpoint
from outrider.cluster.worker import Worker


class ChannelWorker(Worker):
    """Serves one channel on its post for as long as it lives."""

    def __init__(self, maxsize: int, max_bytes: int) -> None:
        super().__init__()
        self._host = ChannelHost(self._seated.post, maxsize, max_bytes)

    def where(self) -> Endpoint:
        """Where the channel is served; answered when it is."""
        return self._seated.post.endpoint
