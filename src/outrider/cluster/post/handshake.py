"""How two posts prove to each other that they know the key of the cluster, and that each is the one the other means.

1. The server sends a nonce.
2. The client sends a nonce of its own, who it is, whom it wants to reach, and a proof.
3. The server sends a proof.

A proof is a MAC over the direction, the kind of connection, both nonces and both endpoints. So it is of no use on
another connection, in the other direction, over another kind of socket, or from or to anybody else: a process between
two members can neither relay nor reflect one. The key itself is never sent.
"""

import hmac
import secrets
from enum import StrEnum
from typing import Any

import msgspec

from outrider.cluster.post.endpoint import Endpoint
from outrider.core.decoding import convert
from outrider.core.errors import PeerLost

PROTOCOL = 2
NONCE_BYTES = 32

_encode = msgspec.msgpack.Encoder().encode


class Way(StrEnum):
    """What a connection is made of."""

    UNIX = "unix"
    TLS = "tls"


class Challenge(msgspec.Struct, frozen=True):
    """What a server says first."""

    protocol: int
    nonce: bytes


class Claim(msgspec.Struct, frozen=True):
    """What a client says."""

    nonce: bytes
    sender: Endpoint
    receiver: Endpoint
    proof: bytes


class Confirmation(msgspec.Struct, frozen=True):
    """What a server says last."""

    proof: bytes


class Handshake:
    """One side of it. `take` what the other side says until it returns no reply or `peer` is known."""

    def __init__(self, key: bytes, own: Endpoint, *, way: Way, wanted: Endpoint | None) -> None:
        self.peer: Endpoint | None = None
        """Who the other side is, once that is proven."""
        self._key = key
        self._own = own
        self._way = way
        self._wanted = wanted
        """Whom a client wants to reach; a server takes anybody."""
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._expected_proof: bytes | None = None

    def opening(self) -> Challenge | None:
        """What to send before anything has come."""
        return Challenge(PROTOCOL, self._nonce) if self._wanted is None else None

    def take(self, said: Any) -> Claim | Confirmation | None:
        """What to reply. `PeerLost` or `msgspec.ValidationError`: the other side is not a member, or the wrong one."""
        if self._wanted is None:
            return self._confirm(convert(said, Claim))
        if self._expected_proof is None:
            return self._claim(convert(said, Challenge), self._wanted)
        _check(convert(said, Confirmation).proof, self._expected_proof)
        self.peer = self._wanted
        return None

    def _claim(self, challenge: Challenge, wanted: Endpoint) -> Claim:
        if challenge.protocol != PROTOCOL:
            raise PeerLost(f"it speaks protocol {challenge.protocol}, this Outrider {PROTOCOL}: use one version")
        facts = (PROTOCOL, self._way, challenge.nonce, self._nonce, self._own, wanted)
        self._expected_proof = self._proof("server", facts)
        return Claim(self._nonce, self._own, wanted, self._proof("client", facts))

    def _confirm(self, claim: Claim) -> Confirmation:
        facts = (PROTOCOL, self._way, self._nonce, claim.nonce, claim.sender, claim.receiver)
        _check(claim.proof, self._proof("client", facts))
        if claim.receiver != self._own:
            raise PeerLost(f"{claim.sender.name} wants to reach {claim.receiver.name}, and this is {self._own.name}")
        self.peer = claim.sender
        return Confirmation(self._proof("server", facts))

    def _proof(self, direction: str, facts: tuple[Any, ...]) -> bytes:
        return hmac.digest(self._key, _encode(("outrider handshake", direction, facts)), "sha256")


def _check(proof: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(proof, expected):
        raise PeerLost("it does not know the key, or means somebody else")
