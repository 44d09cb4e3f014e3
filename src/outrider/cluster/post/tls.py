"""TLS between nodes: both sides have the cluster's certificate, and take no other."""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

from outrider.cluster.post.certificate import certificate

N_CLUSTERS = 16


class Contexts(NamedTuple):
    """For connections that are accepted, and for those that are opened."""

    server: ssl.SSLContext
    client: ssl.SSLContext


@lru_cache(maxsize=N_CLUSTERS)
def contexts(key: bytes) -> Contexts:
    """Only who knows the key of the cluster can be at either end. Making them takes some milliseconds, once."""
    public, private = certificate(key)
    made = Contexts(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    for context in made:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # a member is known by its certificate, and who it is by the handshake
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=public)
        with _readable(public) as public_path, _readable(private) as private_path:
            context.load_cert_chain(public_path, private_path)
    made.server.num_tickets = 0  # no session is resumed
    return made


@contextmanager
def _readable(text: str) -> Iterator[str]:
    """The path of a pipe that holds the text: `load_cert_chain` takes files only, and a key should not be in one."""
    reader, writer = os.pipe()
    try:
        with os.fdopen(writer, "w") as pipe:
            pipe.write(text)
        yield f"/dev/fd/{reader}"
    finally:
        os.close(reader)
