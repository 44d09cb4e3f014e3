"""Where the servers are, from the spec and the environment."""

import pytest
from yarl import URL

from outrider.core.errors import InvalidInput
from outrider.policy.openai.address import base_urls, key_of
from outrider.policy.openai.transport import proxy_for
from outrider.policy.spec import PolicySpec


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def urls(*given):
    return [str(url) for url in base_urls(PolicySpec(model="m", base_urls=given))]


def test_the_spec_goes_before_the_environment_and_that_before_the_public_address(monkeypatch):
    assert urls() == ["https://api.openai.com/v1"]
    monkeypatch.setenv("OPENAI_BASE_URL", "http://a/v1, http://b:8000/v1/,http://a/v1")
    assert urls() == ["http://a/v1", "http://b:8000/v1"]
    assert urls("http://c/v1") == ["http://c/v1"]


@pytest.mark.parametrize("text", ["localhost:8000/v1", "ftp://host/v1", "http://", "/v1", "http://host:port/v1"])
def test_what_is_no_address_is_refused_and_pointed_at(text):
    with pytest.raises(InvalidInput, match="base URL"):
        urls(text)


def test_a_password_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(InvalidInput, match="leave out the user and password") as caught:
        urls("http://me:hunter2@host/v1")
    assert "hunter2" not in str(caught.value)


def test_the_key_comes_from_the_variable_the_spec_names(monkeypatch):
    spec = PolicySpec(model="m", api_key_variable="MY_KEY", base_urls=("http://localhost:8000/v1",))
    assert key_of(spec) is None
    monkeypatch.setenv("MY_KEY", " sk-1\n")
    assert key_of(spec) == "sk-1"


def test_the_public_server_is_not_asked_without_a_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InvalidInput, match="OPENAI_API_KEY is not set"):
        key_of(PolicySpec(model="m"))


def test_a_key_that_no_header_can_carry_is_refused_and_not_repeated(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1\nX: 2")
    with pytest.raises(InvalidInput, match="OPENAI_API_KEY") as caught:
        key_of(PolicySpec(model="m"))
    assert "sk-1" not in str(caught.value)


def test_proxies_of_the_environment_are_used_but_not_for_this_machine(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert proxy_for(URL("https://api.openai.com/v1")) == "http://proxy:3128"
    assert proxy_for(URL("https://inside.example/v1")) is None
    assert proxy_for(URL("http://127.0.0.1:8000/v1")) is None
