"""Which hosts may be reached."""

import pytest

from outrider.core.errors import InvalidInput
from outrider.env.web.hosts import AllowedHosts, HostRule, plain_host

PUBLIC = "93.184.216.34"
PRIVATE = [
    "127.0.0.1",
    "10.1.2.3",
    "169.254.169.254",
    "192.168.0.1",
    "::1",
    "fe80::1%eth0",
    "::ffff:127.0.0.1",
    "0.0.0.0",
]


@pytest.mark.parametrize(
    ("rule", "host", "port", "covered"),
    [
        ("example.com", "example.com", 80, True),
        ("example.com", "example.com", 443, True),
        ("example.com", "example.com", 8080, False),
        ("example.com:8080", "example.com", 8080, True),
        ("example.com:8080", "example.com", 80, False),
        ("Example.COM.", "example.com", 80, True),
        ("example.com", "www.example.com", 80, False),
        ("example.com", "example.com.evil.org", 80, False),
        ("*.example.com", "www.example.com", 80, True),
        ("*.example.com", "a.b.example.com", 80, True),
        ("*.example.com", "example.com", 80, False),
        ("*.example.com", "notexample.com", 80, False),
        ("*", "anything.org", 443, True),
        ("*", "anything.org", 22, False),
        ("*:8000", "anything.org", 8000, True),
        ("[::1]:8080", "::1", 8080, True),
        ("bücher.example", "xn--bcher-kva.example", 80, True),
    ],
)
def test_a_rule_covers_its_host_and_port_and_nothing_else(rule: str, host: str, port: int, covered: bool):
    assert HostRule.of(rule).covers(host, port) is covered


@pytest.mark.parametrize(
    "text",
    ["", "http://example.com", "example.com/path", "exa mple.com", "*example.com", "a@b.com", "a:b", "a:123456", "*."],
)
def test_what_is_not_a_host_is_refused_with_the_way_to_write_one(text: str):
    with pytest.raises(InvalidInput, match=r"write example\.com"):
        HostRule.of(text)


def test_nothing_is_allowed_unless_it_is_named():
    assert not AllowedHosts([]).allow("example.com", 80)


def test_a_task_narrows_what_the_run_allows_and_never_widens_it():
    hosts = AllowedHosts(["*.example.com"], narrowed_to=["www.example.com", "evil.org"])

    assert hosts.allow("www.example.com", 80)
    assert not hosts.allow("mail.example.com", 80)
    assert not hosts.allow("evil.org", 80)
    assert not AllowedHosts(["example.com"], narrowed_to=[]).allow("example.com", 80)


@pytest.mark.parametrize("address", PRIVATE)
def test_a_wildcard_does_not_lead_into_private_networks(address: str):
    assert not AllowedHosts(["*"]).allow_address(address, "rebound.example.com", 80)
    assert not AllowedHosts(["*"], narrowed_to=["rebound.example.com"]).allow_address(
        address, "rebound.example.com", 80
    ), "a task cannot open what the operator did not name"


def test_the_operator_can_name_a_private_host():
    assert AllowedHosts(["127.0.0.1:8080"]).allow_address("127.0.0.1", "127.0.0.1", 8080)
    assert not AllowedHosts(["127.0.0.1:8080"]).allow_address("127.0.0.1", "127.0.0.1", 80)


def test_public_addresses_need_no_name():
    assert AllowedHosts(["*"]).allow_address(PUBLIC, "example.com", 80)


@pytest.mark.parametrize(("host", "plain"), [("A.Test.", "a.test"), ("[::1]", "::1"), ("", ""), ("ü" * 80, "ü" * 80)])
def test_hosts_are_compared_in_one_form(host: str, plain: str):
    assert plain_host(host) == plain
