"""How the processes of a cluster talk: one post each, links between them, frames on the links."""

from outrider.cluster.post.endpoint import Endpoint
from outrider.cluster.post.link import Handler, Link, Message
from outrider.cluster.post.post import Post
from outrider.cluster.post.wire import Part

__all__ = ["Endpoint", "Handler", "Link", "Message", "Part", "Post"]
