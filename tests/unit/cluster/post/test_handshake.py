"""What a proof is good for, and what for it is not."""

import msgspec
import pytest
from msgspec.structs import replace

from outrider.cluster.post.endpoint import Endpoint
from outrider.cluster.post.handshake import PROTOCOL, Challenge, Handshake, Way
from outrider.core.errors import PeerLost

KEY = b"the key"
ONE = Endpoint("Group:0", "node", "unix-0", "10.0.0.1", 4000)
OTHER = Endpoint("Group:1", "node", "unix-1", "10.0.0.1", 4001)


def client(**changes):
    settings = {"key": KEY, "own": ONE, "way": Way.UNIX, "wanted": OTHER, **changes}
    return Handshake(settings.pop("key"), settings.pop("own"), **settings)


def server(**changes):
    return client(own=OTHER, wanted=None, **changes)


def told(message):
    """As the other side hears it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message))


def shake_hands(asking, serving):
    claim = asking.take(told(serving.opening()))
    confirmation = serving.take(told(claim))
    assert asking.take(told(confirmation)) is None


def test_two_members_know_each_other():
    asking, serving = client(), server()
    shake_hands(asking, serving)
    assert (asking.peer, serving.peer) == (OTHER, ONE)


@pytest.mark.parametrize(
    "changes",
    [
        {"key": b"another"},
        {"way": Way.TLS},
        *(
            {"wanted": replace(OTHER, **{field: value})}
            for field, value in [("name", "x"), ("node", "x"), ("unix", "x"), ("host", "x"), ("port", 1)]
        ),
    ],
)
def test_another_key_way_or_target_is_refused_by_the_server(changes):
    asking, serving = client(**changes), server()
    claim = asking.take(told(serving.opening()))
    with pytest.raises(PeerLost):
        serving.take(told(claim))
    assert serving.peer is None


@pytest.mark.parametrize("field", ["nonce", "sender", "receiver", "proof"])
def test_a_claim_in_which_anything_was_changed_is_refused(field):
    changed = {"nonce": bytes(32), "sender": OTHER, "receiver": ONE, "proof": bytes(32)}
    asking, serving = client(), server()
    claim = asking.take(told(serving.opening()))
    with pytest.raises(PeerLost):
        serving.take(told(replace(claim, **{field: changed[field]})))
    assert serving.peer is None


def test_a_claim_is_good_for_one_challenge():
    asking, serving, later = client(), server(), server()
    claim = asking.take(told(serving.opening()))
    later.opening()
    with pytest.raises(PeerLost, match="does not know the key"):
        later.take(told(claim))


def test_a_clients_own_proof_is_not_a_servers():
    asking = client()
    claim = asking.take(told(server().opening()))
    with pytest.raises(PeerLost):
        asking.take({"proof": claim.proof})
    assert asking.peer is None


def test_the_confirmation_of_another_connection_is_refused():
    first, second = client(), client()
    serving, other_serving = server(), server()
    confirmation = serving.take(told(first.take(told(serving.opening()))))
    second.take(told(other_serving.opening()))
    with pytest.raises(PeerLost):
        second.take(told(confirmation))


def test_another_version_is_named():
    with pytest.raises(PeerLost, match=f"protocol {PROTOCOL + 1}, this Outrider {PROTOCOL}: use one version"):
        client().take(told(Challenge(PROTOCOL + 1, bytes(32))))


@pytest.mark.parametrize("said", [None, 3, [], {}, {"protocol": "2"}, {"proof": 7}, {"nonce": b"", "sender": {}}])
def test_what_is_no_handshake_is_refused(said):
    for side in (client(), server()):
        with pytest.raises(msgspec.ValidationError):
            side.take(said)
