"""The certificate of a cluster, made from its key alone: each member makes the same one, and trusts no other.

The standard library can use certificates but not make them. This is an ECDSA key on P-256 and a certificate signed by
itself, with no more of X.509 than OpenSSL needs. The arithmetic takes no care to run in constant time: it runs once in
a process, before anybody can ask it anything.
"""

import base64
import hashlib
import hmac

P = 2**256 - 2**224 + 2**192 + 2**96 - 1
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
"""P-256: the field, the order of its group, and the point that generates it. NIST SP 800-186, 3.2.1.3."""

Point = tuple[int, int]

INTEGER, BIT_STRING, OCTET_STRING, OID, UTF8, UTC_TIME, GENERALIZED_TIME = 2, 3, 4, 6, 12, 23, 24
SEQUENCE, SET, TAG_0 = 0x30, 0x31, 0xA0
LONG_LENGTH = 0x80
OID_P256 = bytes.fromhex("2a8648ce3d030107")
OID_EC_PUBLIC_KEY = bytes.fromhex("2a8648ce3d0201")
OID_ECDSA_SHA256 = bytes.fromhex("2a8648ce3d040302")
OID_COMMON_NAME = bytes.fromhex("550403")


def certificate(key: bytes) -> tuple[str, str]:
    """The certificate and its private key, both as PEM."""
    private = _number(key, b"private key")
    content = _to_be_signed(multiplied(private, G))
    signature = _signature(content, private, _number(key, b"nonce of the only signature"))
    signed = _der(SEQUENCE, content, _der(SEQUENCE, _der(OID, OID_ECDSA_SHA256)), _bits(signature))
    curve = _der(TAG_0, _der(OID, OID_P256))
    secret = _der(SEQUENCE, _integer(1), _der(OCTET_STRING, private.to_bytes(32, "big")), curve)
    return _pem("CERTIFICATE", signed), _pem("EC PRIVATE KEY", secret)


def _number(key: bytes, purpose: bytes) -> int:
    """From 1 to N - 1, evenly."""
    return int.from_bytes(hmac.digest(key, b"outrider certificate: " + purpose, "sha512"), "big") % (N - 1) + 1


def _to_be_signed(public: Point) -> bytes:
    name = _der(SEQUENCE, _der(SET, _der(SEQUENCE, _der(OID, OID_COMMON_NAME), _der(UTF8, b"outrider cluster"))))
    always = _der(SEQUENCE, _der(UTC_TIME, b"700101000000Z"), _der(GENERALIZED_TIME, b"99991231235959Z"))
    algorithm = _der(SEQUENCE, _der(OID, OID_EC_PUBLIC_KEY), _der(OID, OID_P256))
    point = b"\4" + b"".join(each.to_bytes(32, "big") for each in public)
    version_3 = _der(TAG_0, _integer(2))
    signed_by = _der(SEQUENCE, _der(OID, OID_ECDSA_SHA256))
    holder = _der(SEQUENCE, algorithm, _bits(point))
    return _der(SEQUENCE, version_3, _integer(1), signed_by, name, always, name, holder)


def _signature(content: bytes, private: int, nonce: int) -> bytes:
    digest = int.from_bytes(hashlib.sha256(content).digest(), "big")
    r = multiplied(nonce, G)[0] % N
    s = pow(nonce, -1, N) * (digest + r * private) % N
    return _der(SEQUENCE, _integer(r), _integer(s))


def multiplied(factor: int, point: Point) -> Point:
    """`point` added to itself that many times; `factor` is from 1 to N - 1."""
    total: Point | None = None
    for bit in f"{factor:b}":
        if total is not None:
            total = _sum(total, total)
        if bit == "1":
            total = point if total is None else _sum(total, point)
    assert total is not None
    return total


def _sum(a: Point, b: Point) -> Point:
    """Of points that are not each other's negative, which multiples below the order never are."""
    slope = 3 * (a[0] * a[0] - 1) * pow(2 * a[1], -1, P) if a == b else (b[1] - a[1]) * pow(b[0] - a[0], -1, P)
    x = (slope * slope - a[0] - b[0]) % P
    return x, (slope * (a[0] - x) - a[1]) % P


def _der(tag: int, *content: bytes) -> bytes:
    body = b"".join(content)
    n_digits = (len(body).bit_length() + 7) // 8
    length = len(body).to_bytes(n_digits or 1, "big")
    return bytes([tag]) + (length if len(body) < LONG_LENGTH else bytes([LONG_LENGTH | n_digits]) + length) + body


def _integer(value: int) -> bytes:
    return _der(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _bits(content: bytes) -> bytes:
    return _der(BIT_STRING, b"\0", content)


def _pem(what: str, der: bytes) -> str:
    return f"-----BEGIN {what}-----\n{base64.encodebytes(der).decode()}-----END {what}-----\n"
