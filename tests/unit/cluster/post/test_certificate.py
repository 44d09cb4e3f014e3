"""The certificate that members of a cluster make of its key."""

import ssl

import pytest

from outrider.cluster.post.certificate import G, N, P, certificate, multiplied
from outrider.cluster.post.tls import contexts

KEY = b"the key of a cluster"
CHECK_ITS_OWN_SIGNATURE = 0x4000
"""OpenSSL's X509_V_FLAG_CHECK_SS_SIGNATURE, for which Python has no name."""


@pytest.mark.parametrize(
    ("factor", "x", "y"),
    [
        (1, *G),
        (N - 1, G[0], P - G[1]),
        (  # RFC 6979, A.2.5
            0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721,
            0x60FED4BA255A9D31C961EB74C6356D68C049B8923B61FA6CE669622E60F29FB6,
            0x7903FE1008B8BC99A41AE9E95628BC64F2F1B20C2D7E9F5177A3C294D4462299,
        ),
    ],
)
def test_points_are_multiplied_as_the_standard_says(factor, x, y):
    assert multiplied(factor, G) == (x, y)


def test_the_same_key_makes_the_same_certificate_and_another_key_another():
    assert certificate(KEY) == certificate(KEY)
    assert not set(certificate(KEY)) & set(certificate(b"another"))


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    left = list(ends)
    for _ in range(10):
        for end in list(left):
            try:
                end.do_handshake()
                left.remove(end)
            except ssl.SSLWantReadError:
                pass
        if not left:
            break
    ends[0].write(b"hello")
    assert ends[1].read(5) == b"hello"
    return ends


@pytest.mark.parametrize("is_strict", [False, True])
def test_members_meet_by_tls_1_3_each_with_the_certificate(is_strict):
    contexts.cache_clear()  # these are changed
    made = contexts(KEY)
    if is_strict:
        for context in made:
            context.verify_flags |= ssl.VERIFY_X509_STRICT | CHECK_ITS_OWN_SIGNATURE
    client, server = shake_hands(made.client, made.server)
    contexts.cache_clear()
    assert (client.version(), server.version()) == ("TLSv1.3", "TLSv1.3")
    expected = ssl.PEM_cert_to_DER_cert(certificate(KEY)[0])
    assert [end.getpeercert(binary_form=True) for end in (client, server)] == [expected] * 2


def test_a_stranger_with_a_certificate_of_its_own_meets_nobody():
    for client, server in (
        (contexts(b"other").client, contexts(KEY).server),
        (contexts(KEY).client, contexts(b"other").server),
    ):
        with pytest.raises(ssl.SSLError):
            shake_hands(client, server)


def test_a_client_without_a_certificate_is_refused():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with pytest.raises(ssl.SSLError):
        shake_hands(context, contexts(KEY).server)


def test_an_older_version_is_refused():
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake_hands(old, contexts(KEY).server)
