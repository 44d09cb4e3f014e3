"""Which requests a server for programs answers."""

import pytest
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from outrider.core.loopback import refusal

KNOWN = frozenset({"localhost", "machine-1"})


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ([], False),
        ([("Host", "127.0.0.1:5000")], False),
        ([("Host", "[fe80::1%25eth0]:5000")], False),
        ([("Host", "LOCALHOST.:5000")], False),
        ([("Host", "machine-1")], False),
        ([("Host", "machine-2")], True),
        ([("Host", "localhost.evil.example")], True),
        ([("Host", "user@evil.example")], True),
        ([("Host", "[::1")], True),
        ([("Host", "")], True),
        ([("Host", "localhost"), ("Host", "evil.example")], True),
        ([("Host", "localhost:1"), ("Origin", "http://localhost:1")], False),
        ([("Host", "localhost:1"), ("Origin", "http://localhost:2")], True),
        ([("Host", "localhost:1"), ("Origin", "http://localhost:1"), ("Origin", "http://evil.example")], True),
        ([("Host", "localhost"), ("Origin", "null")], True),
        ([("Host", "localhost"), ("Origin", "chrome-extension://abc")], True),
        ([("Host", "localhost"), ("Sec-Fetch-Site", "same-origin")], False),
        ([("Host", "localhost"), ("Sec-Fetch-Site", "cross-site")], True),
        ([("Origin", "http://evil.example")], True),
    ],
)
def test_pages_and_unknown_names_are_refused(headers, is_refused):
    request = make_mocked_request("POST", "/", CIMultiDict(headers))
    assert bool(refusal(request, KNOWN)) is is_refused
